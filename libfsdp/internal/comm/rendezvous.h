// SPDX-License-Identifier: Apache-2.0
// Lets ranks find each other at a store before they communicate.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "libfsdp/internal/comm/lifeline.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {

struct Newcomer {
  int rank = 0;
  int world_size = 1;
  std::string backend;
  std::string device;        // the type of its devices
  std::string host;          // for people
  std::string network;       // equal for ranks that reach each other over loopback
  LifelineAddress lifeline;  // as other machines reach it; no host: none is served
};

// Returns the host name of this machine.
std::string host_name();
std::string network_id();

// Returns the local rank of `rank`, if no launcher names it: the number of lower ranks on the same
// machine.
int local_rank_of(const std::vector<Newcomer>& newcomers, int rank);

// Returns every rank's record, by rank, once all have come.  `serves`: the store ends with this
// process, so a failure is thrown only once the ranks that came know of it, or after two seconds.
// Throws: PeerError naming the ranks that do not come by the deadline; c10::Error naming both ranks
// if a rank was started with another world size, backend or type of devices, or with a rank that is
// taken.
std::vector<Newcomer> join(StoreClient& store, const std::string& prefix, const Newcomer& self,
                           bool serves, std::chrono::milliseconds timeout);

}  // namespace fsdp::internal
