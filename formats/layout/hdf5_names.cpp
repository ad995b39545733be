// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/hdf5_names.h"

#include <array>
#include <cstdio>
#include <string_view>

#include "formats/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

std::string escaped(std::string_view name) {
  if (name.empty()) return "%";
  const bool utf8 = is_utf8(name);
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '%' || byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      std::array<char, 4> hex{};
      std::snprintf(hex.data(), hex.size(), "%%%02X", byte);
      out += hex.data();
    } else {
      out += c;
    }
  }
  return out;
}

Path first(const Path& path, std::size_t steps) {
  return {path.begin(), path.begin() + static_cast<std::ptrdiff_t>(steps)};
}

// The path itself, or with a number behind it, so that `taken` does not hold it.
template <typename Taken>
Path free_place(Path path, const Taken& taken) {
  const std::string name = path.back();
  for (int copy = 2; taken(path); ++copy) path.back() = cat(name, "#", copy);
  return path;
}

}  // namespace

Path names_of(const KeyPath& path) {
  Path names;
  for (const PathStep& step : path) {
    if (const auto* number = std::get_if<std::int64_t>(&step)) {
      names.push_back(std::to_string(*number));
      continue;
    }
    std::string_view rest = std::get<std::string>(step);
    for (;;) {
      const std::size_t dot = rest.find('.');
      names.push_back(escaped(rest.substr(0, dot)));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
  }
  // A tensor or value that is all there is.
  if (names.empty()) names.emplace_back("%");
  return names;
}

Places::Places(const std::vector<KeyPath>& tensors) {
  for (const KeyPath& path : tensors) tensors_.insert(names_of(path));
  for (const KeyPath& path : tensors) {
    const Path place = split(path);
    for (std::size_t steps = 1; steps < place.size(); ++steps) groups_.insert(first(place, steps));
  }
}

Path Places::split(const KeyPath& path) const {
  Path names = names_of(path);
  for (std::size_t steps = 1; steps < names.size(); ++steps) {
    if (!tensors_.contains(first(names, steps))) continue;
    std::string joined = names[steps - 1];
    for (std::size_t i = steps; i < names.size(); ++i) joined += "." + names[i];
    names.resize(steps);
    names.back() = std::move(joined);
  }
  return names;
}

Path Places::dataset(const KeyPath& path) {
  Path place = free_place(
      split(path), [&](const Path& p) { return datasets_.contains(p) || groups_.contains(p); });
  datasets_.insert(place);
  return place;
}

Path Places::attribute(const KeyPath& path) {
  Path place = split(path);
  // A number behind the name of a dataset keeps it from being a group as well.
  for (std::size_t steps = 1; steps < place.size(); ++steps) {
    while (datasets_.contains(first(place, steps))) place[steps - 1] += "#";
  }
  place = free_place(std::move(place), [&](const Path& p) { return attributes_.contains(p); });
  attributes_.insert(place);
  return place;
}

}  // namespace fsdp::formats::hdf5
