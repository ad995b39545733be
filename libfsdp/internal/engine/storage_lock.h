// SPDX-License-Identifier: Apache-2.0
// Storages whose memory cannot be asked for.
#pragma once

#include <c10/core/StorageImpl.h>

namespace fsdp::internal {

// From now on data_ptr(), accessor() and whatever else asks for the memory throws the storage's
// message; or does not any more.  LibTorch can only do the first (see
// StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_).
// Requires: the message was set once by that function; a set_data_ptr_noswap() follows.
void set_locked(c10::StorageImpl& storage, bool locked) noexcept;

}  // namespace fsdp::internal
