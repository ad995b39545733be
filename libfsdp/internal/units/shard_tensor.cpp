// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/shard_tensor.h"

#include <utility>

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

namespace fsdp::internal {
namespace {

class ShardImpl final : public c10::TensorImpl {
 public:
  ShardImpl(c10::Storage&& storage, c10::DispatchKeySet keys, const caffe2::TypeMeta& dtype,
            std::vector<std::int64_t> of, bool is_flat)
      : TensorImpl(std::move(storage), keys, dtype), whole(std::move(of)), flat(is_flat) {}

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion&, bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(), allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&&, bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(), allow_tensor_metadata_change);
  }

  const std::vector<std::int64_t> whole;
  const bool flat;
  std::weak_ptr<EngineLife> owner;
};

ShardImpl* impl_of(const at::Tensor& tensor) noexcept {
  return tensor.defined() ? dynamic_cast<ShardImpl*>(tensor.unsafeGetTensorImpl()) : nullptr;
}

}  // namespace

void set_owner(const at::Tensor& shard, const std::shared_ptr<EngineLife>& life) {
  impl_of(shard)->owner = life;
}

std::shared_ptr<EngineLife> owner_of(const at::Tensor& tensor) noexcept {
  const ShardImpl* const impl = impl_of(tensor);
  return impl == nullptr ? nullptr : impl->owner.lock();
}

ShardKind shard_kind(const at::Tensor& tensor) noexcept {
  const ShardImpl* const impl = impl_of(tensor);
  if (impl == nullptr) return ShardKind::kNone;
  return impl->flat ? ShardKind::kFlat : ShardKind::kOne;
}

const std::vector<std::int64_t>& whole_shape(const at::Tensor& shard) {
  return impl_of(shard)->whole;
}

at::Tensor shard_tensor(const at::Tensor& view, std::vector<std::int64_t> whole, bool is_flat) {
  const c10::InferenceMode no_inference(false);
  auto impl = c10::make_intrusive<ShardImpl>(c10::Storage(view.storage()), view.key_set(),
                                             view.dtype(), std::move(whole), is_flat);
  impl->set_storage_offset(view.storage_offset());
  impl->set_sizes_and_strides(view.sizes(), view.strides());
  return at::Tensor(std::move(impl));
}

}  // namespace fsdp::internal
