// SPDX-License-Identifier: Apache-2.0
// The fields of a model's config.json, and numbers and conditions made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/bytes/base/json.h"

namespace fsdp::formats::hf {

// Returns what a dotted path of names, and of positions in lists, leads to; nullptr: nothing.
const Json* part_at(const Json& whole, std::string_view path);

// Fields are named by dotted path, elements of lists by their position: "text_config.hidden_size",
// "depths.0"; "depths.#" is the length of the list.  A field that config.json lacks, or has as
// null, has the value that transformers would use.  Lifetime: both arguments outlive the object.
class ConfigValues {
 public:
  // `about` has "defaults" by path: a value, {"=": expression}, or {"?": 1} if it is not known; and
  // "alias": the other names of a field, to its own.
  ConfigValues(const Json& config, const Json& about) : config_(config), about_(about) {}

  // Returns the field; nothing if it is not known, null if it is known to be unset.
  std::optional<Json> field(std::string_view path) const { return field(path, 0); }

  // Returns the value of a sum of products of fields and numbers, rounded down: "2*num_heads*d_kv",
  // "hidden_size/4+1"; "//" rounds its quotient down.  "a|b" is a if the first field in a is set,
  // else b.  Returns nothing if a field is not known, or the result is not a size.
  std::optional<std::int64_t> number(std::string_view expression) const {
    return number(expression, 0);
  }

  // Returns whether a condition holds, nothing if that is not known: ["true", path] (it is neither
  // unset, 0, false nor empty), ["false", path], ["==", path, text], ["!=", ...], [">", path,
  // number], ["<", ...], ["equals", path, path] (the same number), ["differs", ...].
  std::optional<bool> holds(const Json& condition) const;

 private:
  std::optional<Json> field(std::string_view path, int depth) const;
  std::optional<std::int64_t> number(std::string_view expression, int depth) const;
  std::optional<long double> product(std::string_view term, int depth) const;

  const Json& config_;
  const Json& about_;
};

}  // namespace fsdp::formats::hf
