// SPDX-License-Identifier: Apache-2.0
// Operators that make tensors of the simulated device, or change the memory they have.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

const c10::DispatchKeySet kDeviceKey(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, device_allocator(), kDeviceKey,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kDeviceKey,
                                           c10::dtype_or_default(dtype));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(source));
  if (stride.empty()) {
    impl.set_sizes_contiguous(size);
    impl.set_storage_offset(offset);
  } else {
    impl.set_sizes_and_strides(size, stride, offset);
  }
  return self;
}

void copy_bytes(const void* from, void* to, std::size_t bytes) {
  const Access work = begin_kernel(current_stream(current_device()), "aten::resize_");
  count_kernel(work);
  note_access(work, from, bytes, /*write=*/false);
  note_access(work, to, bytes, /*write=*/true);
  const auto copy = [=] { std::memcpy(on_host(to), on_host(from), bytes); };
  copy();
  if (is_recorded(work)) record(work, [copy](const Access&) { copy(); });
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const std::int64_t numel = c10::multiply_integers(size);
  const auto bytes =
      static_cast<std::size_t>(numel + self.storage_offset()) * self.dtype().itemsize();
  c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  if (bytes > storage.nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr memory = device_allocator()->allocate(bytes);
    if (storage.nbytes() != 0) copy_bytes(storage.data(), memory.get(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(memory));
    storage.set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  record_on_stream(self.storage().data_ptr(), stream);
}

// Tensor::set_data() goes from the CPU to the device and back, as with CUDA.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return is_dense(self) && is_dense(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("resize_", &resize);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace fsdp::test::sim
