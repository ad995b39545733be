// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/storage_lock.h"

namespace fsdp::internal {
namespace {

// The flag is private, and no function clears it.  An explicit instantiation may name private
// members ([temp.spec.general]/6).
using Flag = bool c10::StorageImpl::*;
template <Flag flag>
struct Reach {
  friend Flag throw_flag() { return flag; }
};
Flag throw_flag();
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace

void set_locked(c10::StorageImpl& storage, bool locked) noexcept {
  storage.*throw_flag() = locked;
}

}  // namespace fsdp::internal
