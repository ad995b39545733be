// SPDX-License-Identifier: Apache-2.0
// Sees operators before their kernels run: the one boxed fallback behind the library's dispatch key
// (a key has at most one).
//
// Operators reach it in two ways:
//  - an argument carries the key: a sharded parameter or a view of one.  The engine gathers what
//    the operator is about to read;
//  - the thread includes the key: a MetaDevice scope, which sends factories to the meta device.
//
// Note [casts]: PyTorch casts what goes into a unit's module and what comes out of it.  A C++
// module tells neither, so casts are made at the operators that take the unit's parameters:
//  - of a unit that mixed precision leaves alone, inputs are raised to the dtype of its parameters,
//    and results lowered again;
//  - of a unit that casts its inputs, those that are neither parameters nor buffers get its
//    param_dtype, except those of pointwise operators, which promote dtypes themselves;
//  - results get the output_dtype of a unit whose module has no submodules.
// A module that is called by fsdp::call() gets and returns what PyTorch's would.
#pragma once

#include <c10/core/DispatchKey.h>

namespace fsdp::internal {

// Returns kInterceptionKey: a function, so that code which uses the key also links the fallback.
c10::DispatchKey interception_key() noexcept;

}  // namespace fsdp::internal
