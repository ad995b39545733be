// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/types.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

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
  constexpr DType kUnsigned[] = {DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
  constexpr DType kSigned[] = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
  if (!std::has_single_bit(bytes) || bytes > 8) return std::nullopt;
  const int power = std::countr_zero(bytes);
  return H5Tget_sign(type) == H5T_SGN_2 ? kSigned[power] : kUnsigned[power];
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
  const std::array<std::pair<DType, hid_t>, 10> same = {{{DType::kFloat64, H5T_IEEE_F64LE},
                                                         {DType::kFloat32, H5T_IEEE_F32LE},
                                                         {DType::kInt64, H5T_STD_I64LE},
                                                         {DType::kInt32, H5T_STD_I32LE},
                                                         {DType::kInt16, H5T_STD_I16LE},
                                                         {DType::kInt8, H5T_STD_I8LE},
                                                         {DType::kUInt8, H5T_STD_U8LE},
                                                         {DType::kUInt16, H5T_STD_U16LE},
                                                         {DType::kUInt32, H5T_STD_U32LE},
                                                         {DType::kUInt64, H5T_STD_U64LE}}};
  for (const auto& [known, type] : same) {
    if (known == dtype) return {copy_of(type), {}};
  }
  const std::array<hid_t, 4> raw = {H5T_STD_U8LE, H5T_STD_U16LE, H5T_STD_U32LE, H5T_STD_U64LE};
  switch (dtype) {
    case DType::kFloat16:
      return {half(), {}};
    case DType::kComplex128:
      return {complex_of(H5T_IEEE_F64LE, 8), {}};
    case DType::kComplex64:
      return {complex_of(H5T_IEEE_F32LE, 4), {}};
    case DType::kBool:
      return {truth(), {}};
    default:
      return {
          copy_of(raw[static_cast<std::size_t>(std::min(std::countr_zero(item_bytes(dtype)), 3))]),
          std::string(torch_name(dtype))};
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
  const H5T_class_t kind = H5Tget_class(type);
  const std::string bits = std::to_string(8 * H5Tget_size(type));
  if (kind == H5T_INTEGER && little_endian(type)) return "an integer of " + bits + " bits";
  if (kind == H5T_FLOAT && little_endian(type))
    return "a float of " + bits + " bits in an unknown layout";
  constexpr std::array<std::pair<H5T_class_t, const char*>, 10> kWords = {{
      {H5T_INTEGER, "a big-endian integer"},
      {H5T_FLOAT, "a big-endian float"},
      {H5T_STRING, "text"},
      {H5T_BITFIELD, "a bit field"},
      {H5T_OPAQUE, "opaque bytes"},
      {H5T_COMPOUND, "a compound that is not a complex number (r, i)"},
      {H5T_REFERENCE, "a reference"},
      {H5T_ENUM, "an enumeration other than (FALSE, TRUE)"},
      {H5T_VLEN, "sequences of varying length"},
      {H5T_ARRAY, "arrays"},
  }};
  for (const auto& [known, words] : kWords) {
    if (known == kind) return words;
  }
  return "a type that libhdf5 does not name";
}

Handle text_type() {
  Handle type = copy_of(H5T_C_S1);
  (void)H5Tset_size(type.get(), H5T_VARIABLE);
  (void)H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

namespace {

// The most items of one plain attribute.
constexpr std::uint64_t kMaxAttributeItems = 1U << 20U;
constexpr std::uint64_t kMaxAttributeBytes = 64U << 20U;

bool read_texts(hid_t id, std::size_t count, std::vector<Scalar>& items) {
  const Handle memory = text_type();
  // The character set must be the attribute's, because libhdf5 does not convert it.
  const Handle type(H5Aget_type(id), H5Tclose);
  (void)H5Tset_cset(memory.get(), H5Tget_cset(type.get()));
  std::vector<char*> texts(count, nullptr);
  if (H5Aread(id, memory.get(), texts.data()) < 0) throw_library_error(ErrorCode::kH5Open, "value");
  bool good = true;
  for (char* const text : texts) {
    std::string copy = text == nullptr ? "" : text;
    (void)H5free_memory(text);
    good = good && is_utf8(copy);
    items.emplace_back(std::move(copy));
  }
  return good;
}

bool read_fixed_texts(hid_t id, hid_t type, std::size_t count, std::vector<Scalar>& items) {
  const std::size_t each = H5Tget_size(type);
  std::string texts(each * count, '\0');
  if (H5Aread(id, type, texts.data()) < 0) throw_library_error(ErrorCode::kH5Open, "value");
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = texts.substr(i * each, each);
    if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) {
      text.erase(text.find_last_not_of(' ') + 1);
    } else if (const auto end = text.find('\0'); end != std::string::npos) {
      text.resize(end);
    }
    if (!is_utf8(text)) return false;
    items.emplace_back(std::move(text));
  }
  return true;
}

// Returns false if the type is not a plain one.
bool read_items(hid_t id, hid_t type, std::size_t count, std::vector<Scalar>& items) {
  const auto refuse = [] { throw_library_error(ErrorCode::kH5Open, "value"); };
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: {
      std::vector<std::uint64_t> numbers(count);
      const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
      if (H5Aread(id, is_signed ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64, numbers.data()) < 0)
        refuse();
      for (const std::uint64_t number : numbers) {
        if (is_signed || number <= static_cast<std::uint64_t>(INT64_MAX)) {
          items.emplace_back(static_cast<std::int64_t>(number));
        } else {
          items.emplace_back(number);
        }
      }
      return true;
    }
    case H5T_FLOAT: {
      std::vector<double> numbers(count);
      if (H5Aread(id, H5T_NATIVE_DOUBLE, numbers.data()) < 0) refuse();
      items.assign(numbers.begin(), numbers.end());
      return true;
    }
    case H5T_ENUM: {
      if (dtype_of(type) != DType::kBool) return false;
      std::string flags(count, '\0');
      if (H5Aread(id, type, flags.data()) < 0) refuse();
      for (const char flag : flags) items.emplace_back(flag != 0);
      return true;
    }
    case H5T_STRING:
      return H5Tis_variable_str(type) > 0 ? read_texts(id, count, items)
                                          : read_fixed_texts(id, type, count, items);
    default:
      return false;
  }
}

}  // namespace

std::optional<Attribute> plain_attribute(hid_t object, const std::string& name, std::string& why) {
  const Handle id(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(id.ok() ? H5Aget_type(id.get()) : -1, H5Tclose);
  const Handle space(id.ok() ? H5Aget_space(id.get()) : -1, H5Sclose);
  if (!id.ok() || !type.ok() || !space.ok()) throw_library_error(ErrorCode::kH5Open, "header");
  Attribute out;
  if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) return out;
  const int rank = H5Sget_simple_extent_ndims(space.get());
  const hssize_t points = H5Sget_simple_extent_npoints(space.get());
  const bool too_much =
      points < 0 || static_cast<std::uint64_t>(points) > kMaxAttributeItems ||
      static_cast<std::uint64_t>(points) * H5Tget_size(type.get()) > kMaxAttributeBytes;
  if (rank > 1) {
    why = cat(" of ", rank, " dimensions");
  } else if (too_much) {
    why = cat(" of ", points, " items");
  } else if (!read_items(id.get(), type.get(), static_cast<std::size_t>(points), out.items)) {
    why = " (" + type_words(type.get()) + ")";
  }
  if (!why.empty()) return std::nullopt;
  out.is_list = rank == 1;
  return out;
}

}  // namespace fsdp::formats::hdf5
