// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/dtype.h"

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

struct Row {
  DType dtype;
  std::uint64_t bytes;
  std::string_view torch;
  std::string_view storage;
  std::string_view safetensors;
  std::uint64_t swap_unit;
};

// Names and sizes of PyTorch 2.11 and safetensors 0.6.
const std::vector<Row> kRows = {
    {DType::kFloat64, 8, "float64", "DoubleStorage", "F64", 8},
    {DType::kFloat32, 4, "float32", "FloatStorage", "F32", 4},
    {DType::kFloat16, 2, "float16", "HalfStorage", "F16", 2},
    {DType::kBFloat16, 2, "bfloat16", "BFloat16Storage", "BF16", 2},
    {DType::kComplex128, 16, "complex128", "ComplexDoubleStorage", "", 8},
    {DType::kComplex64, 8, "complex64", "ComplexFloatStorage", "C64", 4},
    {DType::kComplex32, 4, "complex32", "", "", 2},
    {DType::kInt64, 8, "int64", "LongStorage", "I64", 8},
    {DType::kInt32, 4, "int32", "IntStorage", "I32", 4},
    {DType::kInt16, 2, "int16", "ShortStorage", "I16", 2},
    {DType::kInt8, 1, "int8", "CharStorage", "I8", 1},
    {DType::kUInt8, 1, "uint8", "ByteStorage", "U8", 1},
    {DType::kUInt16, 2, "uint16", "", "U16", 2},
    {DType::kUInt32, 4, "uint32", "", "U32", 4},
    {DType::kUInt64, 8, "uint64", "", "U64", 8},
    {DType::kBool, 1, "bool", "BoolStorage", "BOOL", 1},
    {DType::kFloat8E4M3FN, 1, "float8_e4m3fn", "", "F8_E4M3", 1},
    {DType::kFloat8E5M2, 1, "float8_e5m2", "", "F8_E5M2", 1},
    {DType::kFloat8E4M3FNUZ, 1, "float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1},
    {DType::kFloat8E5M2FNUZ, 1, "float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1},
    {DType::kFloat8E8M0FNU, 1, "float8_e8m0fnu", "", "F8_E8M0", 1},
    {DType::kFloat4E2M1FNx2, 1, "float4_e2m1fn_x2", "", "F4", 1},
    {DType::kFloat6E2M3FNx4, 3, "float6_e2m3fn_x4", "", "F6_E2M3", 3},
    {DType::kFloat6E3M2FNx4, 3, "float6_e3m2fn_x4", "", "F6_E3M2", 3},
    {DType::kBits8, 1, "bits8", "", "", 1},
    {DType::kBits16, 2, "bits16", "", "", 2},
    {DType::kBits1x8, 1, "bits1x8", "", "", 1},
    {DType::kBits2x4, 1, "bits2x4", "", "", 1},
    {DType::kBits4x2, 1, "bits4x2", "", "", 1},
    {DType::kQInt8, 1, "qint8", "QInt8Storage", "", 1},
    {DType::kQUInt8, 1, "quint8", "QUInt8Storage", "", 1},
    {DType::kQInt32, 4, "qint32", "QInt32Storage", "", 4},
    {DType::kQUInt4x2, 1, "quint4x2", "QUInt4x2Storage", "", 1},
    {DType::kQUInt2x4, 1, "quint2x4", "QUInt2x4Storage", "", 1},
};

TEST(DType, every_type_has_its_size_and_its_names) {
  EXPECT_EQ(kRows.size(), static_cast<std::size_t>(DType::kQUInt2x4) + 1);
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.torch);
    EXPECT_EQ(item_bytes(row.dtype), row.bytes);
    EXPECT_EQ(torch_name(row.dtype), row.torch);
    EXPECT_EQ(storage_class(row.dtype), row.storage);
    EXPECT_EQ(safetensors_name(row.dtype), row.safetensors);
    EXPECT_EQ(swap_unit_bytes(row.dtype), row.swap_unit);
    EXPECT_EQ(is_complex(row.dtype), row.torch.starts_with("complex"));
    EXPECT_EQ(is_quantized(row.dtype), row.torch.starts_with("q"));
  }
}

TEST(DType, every_name_leads_back_to_its_type) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.torch);
    EXPECT_EQ(dtype_from_torch_name(row.torch), row.dtype);
    EXPECT_EQ(is_torch_dtype(row.dtype), !row.torch.starts_with("float6_"));
    if (!row.storage.empty()) {
      EXPECT_EQ(dtype_from_storage_class(row.storage), row.dtype);
    }
    if (!row.safetensors.empty()) {
      EXPECT_EQ(dtype_from_safetensors_name(row.safetensors), row.dtype);
    }
  }
}

TEST(DType, other_names_lead_nowhere) {
  for (const std::string_view name :
       {"", "float", "Float32", "float32 ", "F128", "UntypedStorage"}) {
    EXPECT_EQ(dtype_from_torch_name(name), std::nullopt) << name;
    EXPECT_EQ(dtype_from_storage_class(name), std::nullopt) << name;
    EXPECT_EQ(dtype_from_safetensors_name(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace fsdp::formats
