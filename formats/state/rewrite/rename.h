// SPDX-License-Identifier: Apache-2.0
// Renames the parameters and keys of a state dict wherever they occur.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/rewrite/rule_scope.h"

namespace fsdp::formats {

struct Renamed {
  Value content;
  std::vector<std::pair<std::string, std::string>> renamed;  // keys of leaves, old and new
  std::vector<std::string> dropped;                          // keys of dropped leaves
  std::vector<std::string> wrappers;                         // stripped wrappers
  std::vector<RuleScope> scopes;                             // what each rule applied to
};

// Names of parameters occur as the keys of models (see state_parts_of), in `state` and in the
// `params` and `param_names` lists of optimizers, inside the keys of flattened optimizers, and in
// the `_metadata` of a model's state dict.  Whole keys are the steps of the path joined by dots;
// Note [whole keys first] tells which of the two a rule applies to.  Rules for whole keys move, add
// and remove levels: `to` becomes as many steps as its `from` had; its further components become
// steps in front of these.
//
// Containers keep their kinds and attributes.  `read` returns the value behind a placeholder.
// Throws: kUsage; kRekeyCollision naming both keys; kRekeyUnused for a rule that matches nothing;
// kName if nothing would be left of a name; what `read` and scoped_rules throw.
Renamed rename_content(const Value& content, const NameRules& rules,
                       const std::function<Value(const Value&)>& read);

}  // namespace fsdp::formats
