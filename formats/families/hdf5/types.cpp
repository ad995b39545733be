// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/types.h"

#include <array>
#include <cstring>
#include <string_view>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

struct Float {
  DType dtype;
  std::size_t bytes, sign, exponent, exponent_bits, mantissa_bits, bias;
};
// The places of the bits of each float; the mantissa begins at bit 0.
constexpr std::array kFloats = {
    Float{DType::kFloat64, 8, 63, 52, 11, 52, 1023},
    Float{DType::kFloat32, 4, 31, 23, 8, 23, 127},
    Float{DType::kFloat16, 2, 15, 10, 5, 10, 15},
    Float{DType::kBFloat16, 2, 15, 7, 8, 7, 127},
};

Handle own(hid_t type) {
  return {type, H5Tclose};
}
Handle copy_of(hid_t type) {
  return own(H5Tcopy(type));
}

Handle half() {
  Handle type = copy_of(H5T_IEEE_F32LE);
  (void)H5Tset_fields(type.get(), 15, 10, 5, 0, 10);
  (void)H5Tset_size(type.get(), 2);
  (void)H5Tset_ebias(type.get(), 15);
  return type;
}

Handle truth() {
  Handle type = own(H5Tenum_create(H5T_STD_I8LE));
  const std::int8_t no = 0;
  const std::int8_t yes = 1;
  (void)H5Tenum_insert(type.get(), "FALSE", &no);
  (void)H5Tenum_insert(type.get(), "TRUE", &yes);
  return type;
}

Handle complex_of(hid_t part, std::size_t bytes) {
  Handle type = own(H5Tcreate(H5T_COMPOUND, 2 * bytes));
  (void)H5Tinsert(type.get(), "r", 0, part);
  (void)H5Tinsert(type.get(), "i", bytes, part);
  return type;
}

Handle bytes_of(DType dtype) {
  switch (item_bytes(dtype)) {
    case 1:
      return copy_of(H5T_STD_U8LE);
    case 2:
      return copy_of(H5T_STD_U16LE);
    case 4:
      return copy_of(H5T_STD_U32LE);
    default:
      return copy_of(H5T_STD_U64LE);
  }
}

bool little_endian(hid_t type) {
  return H5Tget_size(type) == 1 || H5Tget_order(type) == H5T_ORDER_LE;
}

std::optional<DType> float_of(hid_t type) {
  if (!little_endian(type)) return std::nullopt;
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0)
    return std::nullopt;
  if (mantissa != 0 || H5Tget_offset(type) != 0 || H5Tget_norm(type) != H5T_NORM_IMPLIED)
    return std::nullopt;
  for (const Float& known : kFloats) {
    if (known.bytes == H5Tget_size(type) && known.sign == sign && known.exponent == exponent &&
        known.exponent_bits == exponent_bits && known.mantissa_bits == mantissa_bits &&
        known.bias == H5Tget_ebias(type) && H5Tget_precision(type) == 8 * known.bytes) {
      return known.dtype;
    }
  }
  return std::nullopt;
}

std::optional<DType> integer_of(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  if (!little_endian(type) || H5Tget_offset(type) != 0 || H5Tget_precision(type) != 8 * bytes)
    return std::nullopt;
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  switch (bytes) {
    case 1:
      return is_signed ? DType::kInt8 : DType::kUInt8;
    case 2:
      return is_signed ? DType::kInt16 : DType::kUInt16;
    case 4:
      return is_signed ? DType::kInt32 : DType::kUInt32;
    case 8:
      return is_signed ? DType::kInt64 : DType::kUInt64;
    default:
      return std::nullopt;
  }
}

// bool of h5py: an enum of 8 bits with FALSE = 0 and TRUE = 1.
std::optional<DType> truth_of(hid_t type) {
  if (H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2) return std::nullopt;
  bool no = false;
  bool yes = false;
  for (unsigned i = 0; i < 2; ++i) {
    std::int8_t value = -1;
    char* const name = H5Tget_member_name(type, i);
    if (name == nullptr || H5Tget_member_value(type, i, &value) < 0) {
      (void)H5free_memory(name);
      return std::nullopt;
    }
    no = no || (std::strcmp(name, "FALSE") == 0 && value == 0);
    yes = yes || (std::strcmp(name, "TRUE") == 0 && value == 1);
    (void)H5free_memory(name);
  }
  return no && yes ? std::optional(DType::kBool) : std::nullopt;
}

std::optional<DType> complex_dtype(hid_t type) {
  if (H5Tget_nmembers(type) != 2) return std::nullopt;
  std::optional<DType> parts[2];
  for (unsigned i = 0; i < 2; ++i) {
    char* const name = H5Tget_member_name(type, i);
    const bool named = name != nullptr && std::string_view(name) == (i == 0 ? "r" : "i");
    (void)H5free_memory(name);
    const Handle part = own(H5Tget_member_type(type, i));
    if (!named || !part.ok() || H5Tget_class(part.get()) != H5T_FLOAT) return std::nullopt;
    parts[i] = float_of(part.get());
    if (!parts[i] || H5Tget_member_offset(type, i) != i * item_bytes(*parts[i]))
      return std::nullopt;
  }
  if (parts[0] != parts[1] || H5Tget_size(type) != 2 * item_bytes(*parts[0])) return std::nullopt;
  switch (*parts[0]) {
    case DType::kFloat64:
      return DType::kComplex128;
    case DType::kFloat32:
      return DType::kComplex64;
    case DType::kFloat16:
      return DType::kComplex32;
    default:
      return std::nullopt;
  }
}

}  // namespace

FileType file_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return {copy_of(H5T_IEEE_F64LE), {}};
    case DType::kFloat32:
      return {copy_of(H5T_IEEE_F32LE), {}};
    case DType::kFloat16:
      return {half(), {}};
    case DType::kComplex128:
      return {complex_of(H5T_IEEE_F64LE, 8), {}};
    case DType::kComplex64:
      return {complex_of(H5T_IEEE_F32LE, 4), {}};
    case DType::kInt64:
      return {copy_of(H5T_STD_I64LE), {}};
    case DType::kInt32:
      return {copy_of(H5T_STD_I32LE), {}};
    case DType::kInt16:
      return {copy_of(H5T_STD_I16LE), {}};
    case DType::kInt8:
      return {copy_of(H5T_STD_I8LE), {}};
    case DType::kUInt8:
      return {copy_of(H5T_STD_U8LE), {}};
    case DType::kUInt16:
      return {copy_of(H5T_STD_U16LE), {}};
    case DType::kUInt32:
      return {copy_of(H5T_STD_U32LE), {}};
    case DType::kUInt64:
      return {copy_of(H5T_STD_U64LE), {}};
    case DType::kBool:
      return {truth(), {}};
    default:
      return {bytes_of(dtype), std::string(torch_name(dtype))};
  }
}

std::optional<DType> dtype_of(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return integer_of(type);
    case H5T_FLOAT:
      return float_of(type);
    case H5T_ENUM:
      return truth_of(type);
    case H5T_COMPOUND:
      return complex_dtype(type);
    default:
      return std::nullopt;
  }
}

std::string type_words(hid_t type) {
  const std::string bits = std::to_string(8 * H5Tget_size(type));
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      if (little_endian(type)) return "an integer of " + bits + " bits";
      return "a big-endian integer";
    case H5T_FLOAT:
      if (little_endian(type)) return "a float of " + bits + " bits in an unknown layout";
      return "a big-endian float";
    case H5T_STRING:
      return "text";
    case H5T_BITFIELD:
      return "a bit field";
    case H5T_OPAQUE:
      return "opaque bytes";
    case H5T_COMPOUND:
      return "a compound that is not a complex number (r, i)";
    case H5T_REFERENCE:
      return "a reference";
    case H5T_ENUM:
      return "an enumeration other than (FALSE, TRUE)";
    case H5T_VLEN:
      return "sequences of varying length";
    case H5T_ARRAY:
      return "arrays";
    default:
      return "a type that libhdf5 does not name";
  }
}

Handle text_type() {
  Handle type = copy_of(H5T_C_S1);
  (void)H5Tset_size(type.get(), H5T_VARIABLE);
  (void)H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

}  // namespace fsdp::formats::hdf5
