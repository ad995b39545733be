// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/host_alias.h"

#include <cstring>
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {

bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_privateuseone();
}

at::Tensor HostAliases::of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  c10::Storage& alias = storages_[storage.unsafeGetStorageImpl()];
  if (!alias) {
    void* const memory = on_host(storage.data_ptr().get());
    alias = c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                         c10::DataPtr(memory, c10::Device(c10::kCPU)), /*allocator=*/nullptr,
                         /*resizable=*/false);
  }
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(alias), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  impl.set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl.set_wrapped_number(true);
  return result;
}

at::Tensor moved_to_device(const at::Tensor& result, c10::Device device, const Access& work) {
  const c10::DeviceGuard guard(device);
  const at::Tensor dense = result.is_non_overlapping_and_dense() ? result : result.contiguous();
  at::Tensor moved = at::detail::empty_strided_generic(
      dense.sizes(), dense.strides(), device_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dense.scalar_type());
  if (moved.nbytes() != 0)
    std::memcpy(on_host(moved.storage().data_ptr().get()), dense.const_data_ptr(), dense.nbytes());
  if (result.is_conj()) moved._set_conj(true);
  note_access(work, moved, /*write=*/true);
  return moved;
}

Tensors run_kernel(const char* name, const Tensors& inputs,
                   const std::function<Tensors(const Tensors&)>& compute) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::optional<c10::Device> device;
  for (const at::Tensor& input : inputs) {
    if (is_on_device(input) && !device) device = input.device();
  }
  TORCH_INTERNAL_ASSERT(device, name, " without a tensor of a device");
  const Access work = begin_kernel(current_stream(device->index()), name);
  count_kernel(work);
  HostAliases aliases;
  Tensors on_cpu;
  for (const at::Tensor& input : inputs) {
    note_access(work, input, /*write=*/false);
    on_cpu.push_back(is_on_device(input) ? aliases.of(input) : input);
  }
  Tensors results = compute(on_cpu);
  Tensors moved;
  for (at::Tensor& result : results) {
    if (!result.defined()) continue;
    result = moved_to_device(result, *device, work);
    moved.push_back(aliases.of(result));
  }
  if (is_recorded(work))
    record(work, [=](const Access&) {
      auto to = moved.begin();
      for (const at::Tensor& result : compute(on_cpu)) {
        if (result.defined()) (to++)->copy_(result);
      }
    });
  return results;
}

}  // namespace fsdp::test::sim
