// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/shard_tensor.h"

#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

namespace fsdp::internal {
namespace {

class ShardImpl final : public c10::TensorImpl {
 public:
  using TensorImpl::TensorImpl;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion&, bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(), allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&&, bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(), allow_tensor_metadata_change);
  }
};

}  // namespace

at::Tensor shard_tensor(const at::Tensor& view) {
  const c10::InferenceMode no_inference(false);
  auto impl =
      c10::make_intrusive<ShardImpl>(c10::Storage(view.storage()), view.key_set(), view.dtype());
  impl->set_storage_offset(view.storage_offset());
  impl->set_sizes_and_strides(view.sizes(), view.strides());
  return at::Tensor(std::move(impl));
}

}  // namespace fsdp::internal
