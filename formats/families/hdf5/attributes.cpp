// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/attributes.h"

#include <vector>

#include "formats/bytes/base/text.h"
#include "formats/families/hdf5/types.h"

namespace fsdp::formats::hdf5 {
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
