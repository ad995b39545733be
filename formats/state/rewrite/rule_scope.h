// SPDX-License-Identifier: Apache-2.0
// Decides whether a rule applies to whole keys or to parameters wherever they occur, and finds
// rules that would affect only part of their evident targets.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/state/content/state_parts.h"
#include "formats/state/model/name_rules.h"
#include "formats/state/model/select.h"

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

// Rules whose scope is decided.  Globs see the original names, renames the stripped ones.
// Stripping wrappers removes the components _orig_mod (torch.compile), _fsdp_wrapped_module,
// _checkpoint_wrapped_module and _forward_module (Lightning) anywhere, and `module`
// (DistributedDataParallel) if every leading name begins with it.
class ScopedRules {
 public:
  // Returns the new name; nothing if it is dropped.  Throws: kName if nothing would be left of it.
  std::optional<std::string> renamed(std::string_view name) const;
  // Returns the new path of a module, as the front of its parameters' names; "" for the whole
  // model.
  std::string renamed_module(std::string_view module) const;
  // Returns the name stripped of prefixes and wrappers; applies no other rules.
  std::string stripped(std::string_view name) const;

  RuleTable keys;  // for whole keys
  std::vector<Glob> key_globs;
  // For whole keys of leaves that are not parameters: these leaves share a front with parameters,
  // whose new names follow from rules for names.
  RuleTable beside;
  std::vector<std::string> wrappers;  // those found, as prefixes: "_orig_mod.", "module."
  std::vector<RuleScope> scopes;      // of all rules but those of wrappers

 private:
  friend class Scoping;
  bool strip_wrappers_ = false;
  bool strip_module_ = false;
  std::vector<std::string> strip_;  // prefixes with their dots
  RuleTable names_;
  std::vector<Glob> globs_;
  std::set<std::string, std::less<>> drop_names_;
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
// `names`: the names of all parameters; `leading`: those of the model, or of the optimizer if there
// is no model.  Throws: kUsage, also for an invalid glob; like RuleTable.
ScopedRules scoped_rules(const NameRules& rules, std::span<const RuleTarget> targets,
                         std::span<const std::string> names, std::span<const std::string> leading);

}  // namespace fsdp::formats
