// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/slice.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

using formats::cat;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(trimmed(text.substr(0, at)));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

[[noreturn]] void refuse(std::string_view part, const std::string& why) {
  throw Error(ErrorCode::kUsage, cat("slice: ", formats::quote(part), " ", why));
}

// Returns nothing if `text` is empty.
std::optional<std::int64_t> number(std::string_view text, std::string_view part) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  if (text.front() == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse(part, "is not an index, range a:b:c or ellipsis");
  }
  return value;
}

DimensionSlice index_at(std::int64_t index, std::int64_t size, std::size_t dimension,
                        std::string_view part) {
  if (index < -size || index >= size) {
    refuse(part, cat("is out of range: dimension ", dimension, " has size ", size));
  }
  return {index < 0 ? index + size : index, 1, 1, true};
}

DimensionSlice range_of(const std::vector<std::string_view>& ends, std::int64_t size,
                        std::string_view part) {
  if (ends.size() > 3) refuse(part, "has more than three parts");
  const std::int64_t step = ends.size() == 3 ? number(ends[2], part).value_or(1) : 1;
  if (step <= 0) refuse(part, "has a step that is not positive");
  // As in Python: counted from the end if negative, then cut to the tensor.
  const auto place = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    if (!at) return otherwise;
    if (*at < 0) return *at < -size ? 0 : *at + size;
    return std::min(*at, size);
  };
  DimensionSlice slice;
  slice.first = place(number(ends[0], part), 0);
  const std::int64_t end = place(number(ends[1], part), size);
  slice.count = end > slice.first ? (end - slice.first - 1) / step + 1 : 0;
  slice.step = slice.count > 1 ? step : 1;
  return slice;
}

}  // namespace

std::vector<std::int64_t> Slice::shape() const {
  std::vector<std::int64_t> shape;
  for (const DimensionSlice& dimension : dimensions) {
    if (!dimension.dropped) shape.push_back(dimension.count);
  }
  return shape;
}

formats::Box Slice::box() const {
  formats::Box box;
  for (const DimensionSlice& dimension : dimensions) {
    box.offset.push_back(dimension.first);
    box.size.push_back(dimension.count == 0 ? 0 : (dimension.count - 1) * dimension.step + 1);
  }
  return box;
}

bool Slice::has_steps() const {
  return std::any_of(dimensions.begin(), dimensions.end(),
                     [](const DimensionSlice& dimension) { return dimension.step != 1; });
}

Slice whole_slice(std::span<const std::int64_t> shape) {
  Slice slice;
  for (const std::int64_t size : shape) slice.dimensions.push_back({0, size, 1, false});
  return slice;
}

Slice parse_slice(std::string_view text, std::span<const std::int64_t> shape) {
  std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() > 1 && parts.back().empty()) parts.pop_back();  // w[1,]
  const auto is_ellipsis = [](std::string_view part) { return part == "..."; };
  const auto ellipses =
      static_cast<std::size_t>(std::count_if(parts.begin(), parts.end(), is_ellipsis));
  if (ellipses > 1) refuse(text, "has more than one ellipsis");
  const std::size_t given = parts.size() - ellipses;
  if (given > shape.size()) {
    refuse(text, cat("has ", given, " indices, but the tensor has ", shape.size(), " dimensions"));
  }
  Slice slice;
  const auto take_whole = [&](std::size_t count) {
    for (; count > 0; --count)
      slice.dimensions.push_back({0, shape[slice.dimensions.size()], 1, false});
  };
  for (const std::string_view part : parts) {
    if (is_ellipsis(part)) {
      take_whole(shape.size() - given);
      continue;
    }
    const std::size_t dimension = slice.dimensions.size();
    const std::vector<std::string_view> ends = split(part, ':');
    if (ends.size() > 1) {
      slice.dimensions.push_back(range_of(ends, shape[dimension], part));
    } else {
      const auto index = number(part, part);
      if (!index) refuse(text, "has an empty index");
      slice.dimensions.push_back(index_at(*index, shape[dimension], dimension, part));
    }
  }
  take_whole(shape.size() - slice.dimensions.size());
  return slice;
}

}  // namespace fsdp::cli
