// SPDX-License-Identifier: Apache-2.0
#include "tools/text/array_text.h"

#include <charconv>
#include <cstring>
#include <ostream>

#include "formats/bytes/base/cast.h"
#include "tools/text/float_text.h"

namespace fsdp::cli {
namespace {

using formats::DType;
using formats::Json;

constexpr std::int64_t kEdge = 3;

std::string float_element_text(DType dtype, std::span<const std::byte> element) {
  if (dtype == DType::kFloat64) {
    double number = 0;
    std::memcpy(&number, element.data(), sizeof number);
    return float_text(number);
  }
  float number = 0;
  formats::cast(dtype, element, DType::kFloat32, std::as_writable_bytes(std::span(&number, 1)));
  return float_text(number);
}

DType part_type(DType dtype) {
  if (dtype == DType::kComplex128) return DType::kFloat64;
  return dtype == DType::kComplex64 ? DType::kFloat32 : DType::kFloat16;
}

Json float_json(DType dtype, std::span<const std::byte> element) {
  const std::string text = float_element_text(dtype, element);
  if (text == "nan") return "NaN";
  if (text.ends_with("inf")) return text == "inf" ? "Infinity" : "-Infinity";
  // For a narrower type this is the double whose shortest text is that of the float.
  double same = 0;
  std::from_chars(text.data(), text.data() + text.size(), same);
  return same;
}

std::string bytes_text(std::span<const std::byte> element) {
  std::string text = "0x";
  for (std::size_t i = element.size(); i-- > 0;) {
    constexpr const char* kHexDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned>(element[i]);
    text += kHexDigits[byte >> 4U];
    text += kHexDigits[byte & 15U];
  }
  return text;
}

Json integer_json(DType dtype, std::span<const std::byte> element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element.data(), element.size());
  if (dtype >= DType::kUInt8) return bits;
  const std::size_t free = 8 * (sizeof bits - element.size());
  return static_cast<std::int64_t>(bits << free) >> free;  // repeats the sign
}

}  // namespace

std::string element_text(DType dtype, std::span<const std::byte> element) {
  if (formats::is_floating(dtype)) return float_element_text(dtype, element);
  if (dtype >= DType::kInt64 && dtype <= DType::kUInt64)
    return formats::to_text(integer_json(dtype, element));
  if (dtype == DType::kBool) return element[0] == std::byte{0} ? "False" : "True";
  if (formats::is_complex(dtype)) {
    const std::size_t half = element.size() / 2;
    const std::string imaginary = float_element_text(part_type(dtype), element.subspan(half));
    return "(" + float_element_text(part_type(dtype), element.first(half)) +
           (imaginary.starts_with('-') ? "" : "+") + imaginary + "j)";
  }
  return bytes_text(element);
}

Json element_json(DType dtype, std::span<const std::byte> element) {
  if (formats::is_floating(dtype)) return float_json(dtype, element);
  if (dtype >= DType::kInt64 && dtype <= DType::kUInt64) return integer_json(dtype, element);
  if (dtype == DType::kBool) return element[0] != std::byte{0};
  if (formats::is_complex(dtype)) {
    const std::size_t half = element.size() / 2;
    return Json::Array{float_json(part_type(dtype), element.first(half)),
                       float_json(part_type(dtype), element.subspan(half))};
  }
  return bytes_text(element);
}

ArrayPrinter::ArrayPrinter(DType dtype, std::vector<std::int64_t> shape, bool elided,
                           std::ostream& out)
    : dtype_(dtype), shape_(std::move(shape)), elided_(elided), out_(out), at_(shape_.size(), 0) {}

bool ArrayPrinter::cut(std::size_t dimension) const {
  return elided_ && shape_[dimension] > 2 * kEdge;
}

bool ArrayPrinter::shown() const {
  for (std::size_t d = 0; d < at_.size(); ++d) {
    if (cut(d) && at_[d] >= kEdge && at_[d] < shape_[d] - kEdge) return false;
  }
  return true;
}

void ArrayPrinter::add(std::span<const std::byte> elements) {
  const auto item = static_cast<std::size_t>(formats::item_bytes(dtype_));
  for (std::size_t at = 0; at < elements.size(); at += item) {
    if (shown()) print(elements.subspan(at, item));
    advance();
  }
}

void ArrayPrinter::advance() {
  for (std::size_t d = at_.size(); d-- > 0;) {
    if (++at_[d] < shape_[d]) return;
    at_[d] = 0;
  }
}

void ArrayPrinter::print(std::span<const std::byte> element) {
  const std::size_t rank = shape_.size();
  std::size_t opens = 0;  // dimensions that start anew
  while (opens < rank && at_[rank - 1 - opens] == 0) ++opens;
  if (any_) {
    const std::size_t moved = rank - 1 - opens;  // the dimension whose next index this is
    const bool gap = cut(moved) && at_[moved] == shape_[moved] - kEdge;
    const std::string between =
        opens == 0 ? ", " : "," + std::string(opens, '\n') + std::string(moved + 1, ' ');
    out_ << between << (gap ? "..." + between : "");
  }
  out_ << std::string(opens, '[') << element_text(dtype_, element);
  for (std::size_t d = rank; d-- > 0 && at_[d] == shape_[d] - 1;) out_ << ']';
  any_ = true;
}

void ArrayPrinter::finish() {
  if (!any_) out_ << "[]";
  out_ << '\n';
}

}  // namespace fsdp::cli
