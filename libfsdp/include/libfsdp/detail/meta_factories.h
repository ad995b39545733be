// SPDX-License-Identifier: Apache-2.0
// The effect of a MetaDevice scope on the operators of its thread.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::internal {

// While one lives, the operators of this thread pass through the fallback of dispatch_key.h.
class MetaFactories {
 public:
  MetaFactories();
  ~MetaFactories();
  MetaFactories(const MetaFactories&) = delete;
  MetaFactories& operator=(const MetaFactories&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_key_;
};

// Returns whether such a scope is open in this thread.
bool meta_factories_active() noexcept;

// If the operator makes a tensor without an input tensor or a given device, gives it the meta
// device.  `stack` ends with the operator's arguments.
void send_factory_to_meta(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

}  // namespace fsdp::internal
