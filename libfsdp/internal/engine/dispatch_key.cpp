// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/dispatch_key.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "libfsdp/detail/meta_factories.h"
#include "libfsdp/internal/engine/observer.h"
#include "libfsdp/internal/units/interception_key.h"

namespace fsdp::internal {
namespace {

// The key is left out while the kernel runs: operators that the kernel calls need no observation,
// because everything that it may read was unsharded before.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (meta_factories_active()) send_factory_to_meta(op.schema(), *stack);
  ObservedCall call(op, *stack);
  if (call.answered()) return;
  {
    const c10::impl::ExcludeDispatchKeyGuard without_key(kInterceptionKey);
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptionKey), stack);
  }
  call.ran(*stack);
}

}  // namespace

c10::DispatchKey interception_key() noexcept {
  return kInterceptionKey;
}

}  // namespace fsdp::internal

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fsdp::internal::intercept>());
}
