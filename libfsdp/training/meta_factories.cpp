// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/detail/meta_factories.h"

#include <algorithm>
#include <cstddef>

#include <c10/core/Device.h>

#include "libfsdp/internal/engine/dispatch_key.h"

namespace fsdp::internal {
namespace {

thread_local int open_scopes = 0;

}  // namespace

MetaFactories::MetaFactories() : include_key_(interception_key()) {
  ++open_scopes;
}

MetaFactories::~MetaFactories() {
  --open_scopes;
}

bool meta_factories_active() noexcept {
  return open_scopes > 0;
}

void send_factory_to_meta(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto& arguments = schema.arguments();
  const auto device =
      std::find_if(arguments.begin(), arguments.end(),
                   [](const c10::Argument& argument) { return argument.name() == "device"; });
  if (device == arguments.end()) return;
  const auto values = torch::jit::last(stack, arguments.size());
  const auto holds_tensor = [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList();
  };
  if (std::any_of(values.begin(), values.end(), holds_tensor)) return;
  const auto index = static_cast<std::size_t>(device - arguments.begin());
  c10::IValue& value = stack[stack.size() - arguments.size() + index];
  if (value.isNone()) value = c10::Device(c10::kMeta);
}

}  // namespace fsdp::internal
