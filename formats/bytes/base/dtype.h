// SPDX-License-Identifier: Apache-2.0
// The element types of tensors, their sizes, and how each format spells them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp::formats {

enum class DType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kComplex128,
  kComplex64,
  kComplex32,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
  kFloat8E8M0FNU,
  kFloat4E2M1FNx2,
  kFloat6E2M3FNx4,
  kFloat6E3M2FNx4,
  kBits8,
  kBits16,
  kBits1x8,
  kBits2x4,
  kBits4x2,
  kQInt8,
  kQUInt8,
  kQInt32,
  kQUInt4x2,
  kQUInt2x4,
};

// Returns the bytes of one element.  An element of kFloat4E2M1FNx2, kFloat6*x4, kBits* or kQUInt*x*
// is a whole byte, or two or three, that holds several values.
std::uint64_t item_bytes(DType dtype) noexcept;

// Returns whether PyTorch has the type.
bool is_torch_dtype(DType dtype) noexcept;

// Returns PyTorch's name without "torch.": float32, bfloat16, float8_e4m3fn.  Types that PyTorch
// lacks are named in its way.
std::string_view torch_name(DType dtype) noexcept;
std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept;

// Returns the typed storage class of torch.save, without its module: FloatStorage.  Empty for types
// that are saved only through UntypedStorage and _rebuild_tensor_v3.
std::string_view storage_class(DType dtype) noexcept;
std::optional<DType> dtype_from_storage_class(std::string_view name) noexcept;

// Returns safetensors' name of the type ("F32", "F8_E4M3"); empty for a type that safetensors
// lacks.  "F4", "F6_E2M3" and "F6_E3M2" count single values.
std::string_view safetensors_name(DType dtype) noexcept;
std::optional<DType> dtype_from_safetensors_name(std::string_view name) noexcept;

// Returns whether elements have a meaning only together with a scale and a zero point that are kept
// elsewhere.
bool is_quantized(DType dtype) noexcept;
bool is_complex(DType dtype) noexcept;
// Returns whether PyTorch lets a tensor of that type have a gradient: floating and complex types.
bool is_differentiable(DType dtype) noexcept;
// Returns the bytes that are swapped together when the byte order changes: half an element for
// complex types.
std::uint64_t swap_unit_bytes(DType dtype) noexcept;

}  // namespace fsdp::formats
