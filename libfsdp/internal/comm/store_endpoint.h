// SPDX-License-Identifier: Apache-2.0
// The store where the ranks of a job meet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

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

}  // namespace fsdp::internal
