// SPDX-License-Identifier: Apache-2.0
// How ranks find each other at a store before they talk.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "libfsdp/internal/comm/lifeline.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp {

struct Newcomer {
  int rank = 0;
  int world_size = 1;
  std::string backend;
  std::string host;          // for people
  std::string network;       // the same for ranks that reach each other over loopback
  LifelineAddress lifeline;  // as other machines reach it; no host where it serves none
};

// Of this process.
std::string host_name();
std::string network_id();

// Returns every rank's, by rank, once all have come.  Where the store ends with this process
// (`serves`), a failure is thrown when those who came know of it too, or after two seconds.
// Throws: PeerError where ranks do not come by the deadline, naming them; c10::Error where one
// comes that was started with another world size or backend, or as a rank that is taken, naming
// both.
std::vector<Newcomer> join(StoreClient& store, const std::string& prefix, const Newcomer& self,
                           bool serves, std::chrono::milliseconds timeout);

}  // namespace fsdp
