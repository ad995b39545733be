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
  LifelineAddress lifeline;  // as other machines reach it; no host if it serves none
};

// Returns the host name of this machine.
std::string host_name();
std::string network_id();

// Returns the number of ranks before `rank` on the machine that it runs on: its local rank, where
// no launcher names one.
int local_rank_of(const std::vector<Newcomer>& newcomers, int rank);

// Returns every rank's record, by rank, once all have come.  If the store ends with this process
// (`serves`), a failure is thrown once those who came know of it too, or after two seconds.
// Throws: PeerError naming the ranks that do not come by the deadline; c10::Error naming both
// ranks if one comes that was started with another world size, backend or type of devices, or
// as a rank that is taken.
std::vector<Newcomer> join(StoreClient& store, const std::string& prefix, const Newcomer& self,
                           bool serves, std::chrono::milliseconds timeout);

}  // namespace fsdp::internal
