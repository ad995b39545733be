// SPDX-License-Identifier: Apache-2.0
// The dispatch key by which the library sees operators before their kernels run, and the one boxed
// fallback behind it (a key can have no second).
//
// Operators reach the fallback in two ways:
//  - an argument carries the key: a sharded parameter or a view of one.  The engine gathers what
//    the operator is about to read: see libfsdp/internal/engine/observer.h;
//  - the thread includes the key: a MetaDevice scope, which sends factories to the meta device:
//    see libfsdp/detail/meta_factories.h.
//
// The key is LibTorch's DeferredInit, kept there for extensions; nothing in LibTorch registers on
// it.  It ranks above autograd, autocast and the backends' selection, so that the fallback sees
// each operator once, as the user called it.
#pragma once

#include <c10/core/DispatchKey.h>

namespace fsdp::internal {

// A function, so that code which uses the key also links the fallback.
c10::DispatchKey interception_key() noexcept;

}  // namespace fsdp::internal
