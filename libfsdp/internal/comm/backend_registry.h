// SPDX-License-Identifier: Apache-2.0
// The backends of c10d by name.  Gloo is always there; libraries that are linked add theirs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp::internal {

struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  // of the new group only
  std::string group;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::chrono::milliseconds timeout;
  bool one_host = true;
  std::string towards;  // with several hosts: an address that all of them reach
};

struct BackendKind {
  // Checks before ranks wait for each other.  Throws c10::Error, for example "no CUDA device".
  std::function<void(const BackendRequest&)> check;
  // Collective.
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendRequest&)> make;
  bool for_one_rank = false;              // true: a group of one rank has a backend
  bool reduces_while_scattering = false;  // see collectives.h
  bool gathers_into_a_copy = false;       // broadcasts in place are the faster all-gather
  // True if waiting holds up a stream of the device and not the thread.
  bool waits_on_stream = false;
  // Returns whether the backend has sums, minima and maxima of this dtype itself; else they are
  // computed from gathered parts.
  std::function<bool(int scalar_type, bool is_sum)> reduces;
  // Returns whether the work of the current stream is being captured in a graph, so that nobody may
  // ask or wait for the device.  Null: there are no graphs.
  std::function<bool()> is_capturing;
};

void register_backend(const std::string& name, BackendKind kind);

// Lifetime: of the process.
// Throws: c10::Error listing the backends if there is none of that name.
const BackendKind& backend_kind(const std::string& name);

// Returns the kind named "gloo".
BackendKind gloo_backend();

}  // namespace fsdp::internal
