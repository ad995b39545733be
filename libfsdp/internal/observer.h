// SPDX-License-Identifier: Apache-2.0
// Sees the arguments of operators that take sharded parameters, before the kernel runs.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

namespace fsdp::internal {

// Gathers the units of the parameters (or views of them) among the arguments.
// Throws: what Engine::use throws; the operator does not run then.
void observe(c10::ArrayRef<c10::IValue> arguments);

}  // namespace fsdp::internal
