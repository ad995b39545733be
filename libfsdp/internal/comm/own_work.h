// SPDX-License-Identifier: Apache-2.0
// The thread state in which the library runs its own tensor operators.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::internal {

// The dispatch key by which the library sees operators: LibTorch's DeferredInit, kept there for
// extensions; nothing in LibTorch registers on it.  It ranks above autograd, autocast and the
// backends' selection, so that its fallback (libfsdp/internal/engine/observer.h) sees each operator
// once, as the user called it.
inline constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::DeferredInit;

// While it lives, operators are not recorded, neither for autograd nor for profilers, and not seen
// by the engine.  Tensors made inside may be written later, even in inference mode.
class OwnWork {
 public:
  OwnWork() = default;
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  at::DisableRecordFunctionGuard no_record_;
  c10::InferenceMode no_inference_{false};
  at::NoGradGuard no_grad_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::impl::ExcludeDispatchKeyGuard unseen_{kInterceptionKey};
};

}  // namespace fsdp::internal
