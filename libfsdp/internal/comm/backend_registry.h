// SPDX-License-Identifier: Apache-2.0
// The backends of c10d by name, and those of the types of devices.  Gloo is always there; libraries
// that are linked add others.  Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "libfsdp/nccl_options.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fsdp::internal {

class FlightRecord;

struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;  // of the new group only
  std::string group;
  int rank = 0;
  int size = 1;
  c10::Device device = c10::kCPU;  // of this rank
  std::chrono::milliseconds timeout;
  bool one_host = true;
  std::string towards;  // with several hosts: an address that all of them reach
  // For a subgroup: the backend of the group it comes from, every rank of which makes a subgroup
  // now, and a number that only the ranks of one subgroup share.
  c10::intrusive_ptr<c10d::Backend> parent;
  int color = 0;
  std::vector<std::uint64_t> global_ranks;
  NcclOptions nccl;
  // Null if no file was named.  Backends that end the process themselves write it before.
  std::shared_ptr<FlightRecord> flight_record;
};

struct BackendKind {
  // Checks before ranks wait for each other.  Throws c10::Error, for example "no CUDA device".
  std::function<void(const BackendRequest&)> check = [](const BackendRequest&) {};
  // Collective.
  std::function<c10::intrusive_ptr<c10d::Backend>(const BackendRequest&)> make;
  // The type of the tensors that it moves without a copy on the CPU.
  c10::DeviceType device_type = c10::DeviceType::CPU;
  bool for_one_rank = false;              // true: a group of one rank has a backend
  bool reduces_while_scattering = false;  // see collectives.h
  bool gathers_into_a_copy = false;       // broadcasts in place are the faster all-gather
  // True if a wait blocks a stream of the device instead of the thread.
  bool waits_on_stream = false;
  // Returns whether the backend has sums, minima and maxima of this dtype itself; else they are
  // computed from gathered parts.
  std::function<bool(int scalar_type, bool is_sum)> reduces;
  // Returns whether the work of the current stream is being captured in a graph, so that the device
  // must not be queried or waited for.  Null: there are no graphs.
  std::function<bool()> is_capturing;
  // Returns the last collectives of this process in a form for tools.  Null: none are kept.
  std::function<std::string()> flight_record;
};

void register_backend(const std::string& name, BackendKind kind);

bool has_backend(const std::string& name);

// Lifetime: of the process.
// Throws: c10::Error listing the backends if there is none of that name.
const BackendKind& backend_kind(const std::string& name);

// Adds a type of devices, for PrivateUse1, or replaces the backend of one.
void register_device_type(c10::DeviceType type, const std::string& backend);

// Returns the backend for groups whose tensors are on devices of this type: "gloo" for the CPU,
// "nccl" for CUDA.
// Throws: c10::Error listing the types if this one is not known.
std::string default_backend(c10::DeviceType type);

// Returns the kind named "gloo".
BackendKind gloo_backend();

}  // namespace fsdp::internal
