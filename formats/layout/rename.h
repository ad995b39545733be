// SPDX-License-Identifier: Apache-2.0
// Renames the parameters and keys of a state dict wherever they occur.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/container/pickle_value.h"
#include "formats/model/name_map.h"

namespace fsdp::formats {

struct Renamed {
  Value content;
  std::uint64_t renamed = 0;          // leaves that are called something else now
  std::uint64_t dropped = 0;          // leaves that are gone
  std::vector<std::string> wrappers;  // that were stripped
};

// Names of parameters occur as the keys of models (see roles_of), in `state` and in the `params`
// and `param_names` lists of optimizers, inside the keys of flattened optimizers, and in the
// `_metadata` of a model's state dict.  First those are renamed; then whole keys (the steps of the
// path joined by dots) by the rules that match no such name: these move, add and take away levels.
// A rule's `to` becomes as many steps as its `from` took up; what it has more of stands in front as
// steps of its own.
//
// Containers keep their kinds and attributes.  `read` gives the value behind a placeholder.
// Throws: kRekeyCollision naming both; kRekeyUnused for a rule that matches nothing; kName where
// nothing would be left of a name; what `read` and NameMap throw.
Renamed rename_content(const Value& content, const NameRules& rules,
                       const std::function<Value(const Value&)>& read);

}  // namespace fsdp::formats
