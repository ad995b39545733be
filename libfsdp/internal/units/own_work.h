// SPDX-License-Identifier: Apache-2.0
// The thread state in which the library runs its own tensor operators.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "libfsdp/internal/units/interception_key.h"

namespace fsdp::internal {

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
