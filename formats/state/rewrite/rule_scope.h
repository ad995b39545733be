// SPDX-License-Identifier: Apache-2.0
// Decides whether a rule applies to whole keys or to parameters wherever they occur, and finds
// rules that would affect only part of their evident targets.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/state/content/state_parts.h"
#include "formats/state/model/name_map.h"

namespace fsdp::formats {

// A leaf of a state dict as seen by rules.
struct RuleTarget {
  std::string key;                   // the whole key
  PartKind kind = PartKind::kOther;  // kind of the part that holds the leaf
  std::string part;                  // the key of that part; empty: the whole state dict
  std::size_t name_begin = 0;        // place of the parameter's name in `key`
  std::size_t name_length = 0;       // 0: it has no name
};

// What a rule, as the user wrote it, applies to.
struct RuleScope {
  std::string rule;    // "FROM=TO", a prefix or a glob
  bool names = false;  // names of parameters, wherever they occur; otherwise whole keys
};

// The rules after their scope is decided.
struct ScopedRules {
  // For NameMap: a leading '/' marks rules for whole keys, the others apply to names.
  NameRules rules;
  // Rules for whole keys of leaves that are not parameters: these leaves share a front with
  // parameters, whose new names follow from `rules`.
  std::vector<NameRule> beside;
  std::vector<RuleScope> scopes;  // of all rules but those of wrappers
};

// Note [whole keys first]
// A rule applies to whole keys, as users see them, if it matches any: "model" is the level of that
// name, even if modules have that name too.  If it matches none, it applies to names of parameters.
// If it matches whole keys, changes the names of a model's parameters and leaves them in their
// level ("model.enc" to "model.dec"), it becomes a rule for names, so that the optimizers' names
// change as well.  The same holds for parts dropped from a model, unless the whole model is
// dropped.
//
// Refused (kUsage, with a suggestion of the intended rule): a prefix that only some parameters of a
// model or an optimizer have; a rule that would rename or drop parameters in a model, and leave
// another model or an optimizer with the old names; a rule that matches both a key and the front of
// parameters' names elsewhere.  Rules that begin with '/' apply to whole keys and are never
// refused.
//
// `names`: the names of all parameters; `leading`: see NameMap.
// Throws: kUsage; like NameMap.
ScopedRules scoped_rules(const NameRules& rules, std::span<const RuleTarget> targets,
                         std::span<const std::string> names, std::span<const std::string> leading);

}  // namespace fsdp::formats
