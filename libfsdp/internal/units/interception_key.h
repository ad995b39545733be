// SPDX-License-Identifier: Apache-2.0
// The dispatch key by which the library sees operators: LibTorch's DeferredInit, kept there for
// extensions; nothing in LibTorch registers on it.  It ranks above autograd, autocast and the
// backends' selection, so that its fallback (libfsdp/internal/engine/dispatch_key.h) sees each
// operator once, as the user called it.
#pragma once

#include <c10/core/DispatchKey.h>

namespace fsdp::internal {

inline constexpr c10::DispatchKey kInterceptionKey = c10::DispatchKey::DeferredInit;

}  // namespace fsdp::internal
