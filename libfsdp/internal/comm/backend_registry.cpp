// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/backend_registry.h"

#include <map>
#include <mutex>
#include <utility>

#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, BackendKind> kinds{{"gloo", gloo_backend()}};
  std::map<c10::DeviceType, std::string> of_type{{c10::DeviceType::CPU, "gloo"},
                                                 {c10::DeviceType::CUDA, "nccl"}};
};

// Never destroyed: groups may outlive static objects of other files.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

}  // namespace

void register_backend(const std::string& name, BackendKind kind) {
  const std::lock_guard lock(registry().mutex);
  registry().kinds.insert_or_assign(name, std::move(kind));
}

bool has_backend(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  return registry().kinds.count(name) != 0;
}

const BackendKind& backend_kind(const std::string& name) {
  const std::lock_guard lock(registry().mutex);
  const auto& kinds = registry().kinds;
  const auto found = kinds.find(name);
  if (found != kinds.end()) return found->second;
  std::string known;
  for (const auto& [other, kind] : kinds) known += (known.empty() ? "" : ", ") + other;
  FSDP_CHECK(name != "nccl", "backend nccl is not part of this program (it has: ", known,
             "): link fsdp::cuda");
  FSDP_CHECK(false, "expected one of the backends ", known, ", but got '", name, "'");
}

void register_device_type(c10::DeviceType type, const std::string& backend) {
  const std::lock_guard lock(registry().mutex);
  registry().of_type.insert_or_assign(type, backend);
}

std::string default_backend(c10::DeviceType type) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().of_type.find(type);
  if (found != registry().of_type.end()) return found->second;
  std::string known;
  for (const auto& [other, backend] : registry().of_type)
    known += (known.empty() ? "" : ", ") + name_of_type(other);
  FSDP_CHECK(false, "expected one of the devices ", known, ", but got ", name_of_type(type),
             ", for which no backend is known");
}

}  // namespace fsdp::internal
