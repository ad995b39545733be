// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/dtype.h"

#include <algorithm>
#include <array>

namespace fsdp::formats {
namespace {

struct Row {
  DType dtype;
  std::uint8_t bytes;
  std::string_view torch;
  std::string_view storage;
  std::string_view safetensors;
};

// In the order of DType, so that a type indexes its row.
constexpr std::array<Row, 34> kRows = {{
    {DType::kFloat64, 8, "float64", "DoubleStorage", "F64"},
    {DType::kFloat32, 4, "float32", "FloatStorage", "F32"},
    {DType::kFloat16, 2, "float16", "HalfStorage", "F16"},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16"},
    {DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", ""},
    {DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64"},
    {DType::kComplex32, 4, "complex32", "", ""},
    {DType::kInt64, 8, "int64", "LongStorage", "I64"},
    {DType::kInt32, 4, "int32", "IntStorage", "I32"},
    {DType::kInt16, 2, "int16", "ShortStorage", "I16"},
    {DType::kInt8, 1, "int8", "CharStorage", "I8"},
    {DType::kUInt8, 1, "uint8", "ByteStorage", "U8"},
    {DType::kUInt16, 2, "uint16", "", "U16"},
    {DType::kUInt32, 4, "uint32", "", "U32"},
    {DType::kUInt64, 8, "uint64", "", "U64"},
    {DType::kBool, 1, "bool", "BoolStorage", "BOOL"},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "", "F8_E4M3"},
    {DType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2"},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ"},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ"},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "", "F8_E8M0"},
    {DType::kFloat4E2M1FNx2, 1, "float4_e2m1fn_x2", "", "F4"},
    {DType::kFloat6E2M3FNx4, 3, "float6_e2m3fn_x4", "", "F6_E2M3"},
    {DType::kFloat6E3M2FNx4, 3, "float6_e3m2fn_x4", "", "F6_E3M2"},
    {DType::kBits8, 1, "bits8", "", ""},
    {DType::kBits16, 2, "bits16", "", ""},
    {DType::kBits1x8, 1, "bits1x8", "", ""},
    {DType::kBits2x4, 1, "bits2x4", "", ""},
    {DType::kBits4x2, 1, "bits4x2", "", ""},
    {DType::kQInt8, 1, "qint8", "QInt8Storage", ""},
    {DType::kQUInt8, 1, "quint8", "QUInt8Storage", ""},
    {DType::kQInt32, 4, "qint32", "QInt32Storage", ""},
    {DType::kQUInt4x2, 1, "quint4x2", "QUInt4x2Storage", ""},
    {DType::kQUInt2x4, 1, "quint2x4", "QUInt2x4Storage", ""},
}};

const Row& row(DType dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)];
}

std::optional<DType> find(std::string_view Row::*field, std::string_view name) noexcept {
  if (name.empty()) return std::nullopt;
  const auto* const found = std::ranges::find(kRows, name, field);
  return found == kRows.end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

std::uint64_t item_bytes(DType dtype) noexcept {
  return row(dtype).bytes;
}
bool is_torch_dtype(DType dtype) noexcept {
  return dtype != DType::kFloat6E2M3FNx4 && dtype != DType::kFloat6E3M2FNx4;
}
std::string_view torch_name(DType dtype) noexcept {
  return row(dtype).torch;
}
std::string_view storage_class(DType dtype) noexcept {
  return row(dtype).storage;
}
std::string_view safetensors_name(DType dtype) noexcept {
  return row(dtype).safetensors;
}

std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept {
  return find(&Row::torch, name);
}
std::optional<DType> dtype_from_storage_class(std::string_view name) noexcept {
  return find(&Row::storage, name);
}
std::optional<DType> dtype_from_safetensors_name(std::string_view name) noexcept {
  return find(&Row::safetensors, name);
}

bool is_quantized(DType dtype) noexcept {
  return dtype >= DType::kQInt8;
}
bool is_differentiable(DType dtype) noexcept {
  const std::string_view name = torch_name(dtype);
  return name.starts_with("float") || name.starts_with("bfloat") || is_complex(dtype);
}

bool is_complex(DType dtype) noexcept {
  return dtype == DType::kComplex128 || dtype == DType::kComplex64 || dtype == DType::kComplex32;
}
std::uint64_t swap_unit_bytes(DType dtype) noexcept {
  return item_bytes(dtype) / (is_complex(dtype) ? 2 : 1);
}

}  // namespace fsdp::formats
