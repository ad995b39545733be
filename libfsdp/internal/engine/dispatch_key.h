// SPDX-License-Identifier: Apache-2.0
// The one boxed fallback behind the library's dispatch key (a key has at most one).
//
// Operators reach it in two ways:
//  - an argument carries the key: a sharded parameter or a view of one.  The engine gathers what
//    the operator is about to read: see libfsdp/internal/engine/observer.h;
//  - the thread includes the key: a MetaDevice scope, which sends factories to the meta device:
//    see libfsdp/detail/meta_factories.h.
#pragma once

#include <c10/core/DispatchKey.h>

namespace fsdp::internal {

// Returns kInterceptionKey: a function, so that code which uses the key also links the fallback.
c10::DispatchKey interception_key() noexcept;

}  // namespace fsdp::internal
