// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/backend_registry.h"

#include <map>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, BackendKind> kinds{{"gloo", gloo_backend()}};
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

}  // namespace fsdp::internal
