// SPDX-License-Identifier: Apache-2.0
// Whether a rule for names is about whole keys or about parameters wherever they occur; and rules
// that would hit half of what they look meant for.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "formats/content/state_parts.h"
#include "formats/model/name_map.h"

namespace fsdp::formats {

// A leaf of a state dict as rules see it.
struct RuleTarget {
  std::string key;                   // the whole of it
  PartKind kind = PartKind::kOther;  // of the part it lies in
  std::string part;                  // the key of that part; empty: the whole state dict
  std::size_t name_begin = 0;        // of the parameter's name in `key`
  std::size_t name_length = 0;       // 0: it has none
};

// The rules once it is known what they are about.
struct ScopedRules {
  // For NameMap: '/' stands in front of what is about whole keys, the rest is about names.
  NameRules rules;
  // Whole keys alone, and only those of leaves that are no parameters: they share a front with
  // parameters, whose new names `rules` gives.
  std::vector<NameRule> beside;
};

// Note [whole keys first]
// A rule is about whole keys, as people see them, where it matches any: "model" is the level of
// that name, whatever modules are called.  Where it matches none it is about names of parameters.
// Where it changes the names of a model's parameters and leaves them in their level ("model.enc" to
// "model.dec"), the optimizers' names for them change alike: it becomes a rule for names.  The same
// holds for what is dropped of a model, unless that is the whole of it.
//
// Refused, kUsage, with the words that say what was meant: a prefix that only some parameters of
// a model or an optimizer have; a rule that would rename or drop parameters in a model, and leave
// another model or an optimizer with the old names; one that matches both a key and the front of
// parameters' names elsewhere.  What begins with '/' is about whole keys, and never refused.
//
// `names`: of all parameters; `leading`: see NameMap.
// Throws: kUsage; as NameMap.
ScopedRules scoped_rules(const NameRules& rules, std::span<const RuleTarget> targets,
                         std::span<const std::string> names, std::span<const std::string> leading);

}  // namespace fsdp::formats
