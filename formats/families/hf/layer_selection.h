// SPDX-License-Identifier: Apache-2.0
// Selects layers of a stack by the fields of a configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "formats/bytes/base/json.h"
#include "formats/families/hf/config_values.h"

namespace fsdp::formats::hf {

// Selects from layers 0 to count - 1.  Lifetime: the values outlive the object.
class LayerSelection {
 public:
  using Numbers = std::set<std::int64_t>;

  LayerSelection(const ConfigValues& values, std::int64_t count) : values_(values), count_(count) {}

  // Returns the layers for which all predicates [word, path, ...] from position `first` on hold;
  // nothing if the configuration does not tell.
  std::optional<Numbers> all_of(const Json::Array& predicates, std::size_t first = 0) const;

 private:
  Numbers where(const std::function<bool(std::int64_t)>& test) const;
  std::optional<Numbers> one(const Json::Array& words) const;
  std::optional<Numbers> by_place(const std::string& word) const;
  std::optional<Numbers> by_list(const std::string& word, const Json::Array& list,
                                 const Json::Array& words) const;
  std::optional<Numbers> by_number(const std::string& word, std::int64_t value) const;

  const ConfigValues& values_;
  std::int64_t count_;
};

}  // namespace fsdp::formats::hf
