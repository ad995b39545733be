// SPDX-License-Identifier: Apache-2.0
// The store where the ranks of a job meet, and find each other before they communicate.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include "libfsdp/internal/comm/lifeline.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {

struct StoreEndpoint {
  c10::intrusive_ptr<c10d::Store> store;
  std::string served_by;     // "rank 0"
  bool served_here = false;  // true: other ranks lose the store when this process ends
};

// Returns the TCPStore at that address: served by rank 0, or by torchrun's agent if
// TORCHELASTIC_USE_AGENT_STORE says so.  A process serves a port once, for all its groups, until it
// ends, so that groups can follow one another.
// Throws: c10::Error if rank 0 cannot serve the port, or the host is not known; PeerError if
// nothing answers there, or something that is not a store.
StoreEndpoint store_endpoint(const std::string& addr, std::uint16_t port, int rank,
                             std::chrono::milliseconds timeout);

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
