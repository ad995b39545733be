// SPDX-License-Identifier: Apache-2.0
// Locks storages so that nobody can ask for their memory.
#pragma once

#include <c10/core/StorageImpl.h>

namespace fsdp::internal {

// If `locked`, data_ptr(), accessor() and anything else that asks for the memory throws the
// storage's message from now on; otherwise it no longer does.  LibTorch offers only the first (see
// StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_).
// Requires: the message was set once by that function; a set_data_ptr_noswap() follows.
void set_locked(c10::StorageImpl& storage, bool locked) noexcept;

}  // namespace fsdp::internal
