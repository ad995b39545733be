// SPDX-License-Identifier: Apache-2.0
// New names for parameters and keys: prefixes stripped, names renamed and dropped, all in one pass,
// so that a -> b together with b -> a swaps.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/state/model/select.h"

namespace fsdp::formats {

// `from` stands for the name itself and for the front of names up to a dot: "encoder" renames
// "encoder" and "encoder.weight", "encoder." only the latter.  Empty: the front of every name.  A
// `from` that begins with '/' applies to whole keys only.
struct NameRule {
  std::string from;
  std::string to;
};

struct NameRules {
  bool strip_wrappers = false;     // see NameMap
  std::vector<std::string> strip;  // prefixes; a trailing dot may be left out
  std::vector<NameRule> renames;
  std::vector<std::string> drop;          // globs; with a leading '/' for whole keys only
  std::set<std::string> drop_names = {};  // exact names
  bool empty() const { return !strip_wrappers && strip.empty() && renames.empty() && drop.empty(); }
};

// Parses "FROM=TO".  Throws: kUsage.
NameRule parse_name_rule(std::string_view text);

// Parses a map file: a JSON object of names to names, or lines "from<TAB>to" or "from => to", where
// empty lines and lines that begin with '#' are ignored.
// Throws: kJson, kJsonDepth, kUsage naming the line, kUtf8.
std::vector<NameRule> parse_name_map(std::string_view text);

// Finds the rule with the longest `from` for a name, in time that does not depend on the number of
// rules.
class RuleTable {
 public:
  // Throws: kRekeyCollision if a `from` is given twice; kUsage if a `to` does not fit its `from`.
  explicit RuleTable(std::vector<NameRule> rules);
  struct Match {
    std::size_t rule;
    std::size_t bytes;  // length of the front of the name that `to` replaces
  };
  std::optional<Match> find(std::string_view name) const;
  const NameRule& rule(std::size_t number) const { return rules_[number]; }
  std::size_t size() const { return rules_.size(); }
  // Returns `name` with the matched front replaced.
  std::string apply(std::string_view name, const Match& match) const;

 private:
  std::vector<NameRule> rules_;
  std::unordered_map<std::string, std::size_t> by_from_;
};

// The rules that apply to the names of parameters and buffers.
//
// A prefix, rule or glob applies to names if it matches any of them, and to whole keys if it
// matches none.  Globs see the original names, renames the stripped ones.  Stripping wrappers
// removes the components _orig_mod (torch.compile), _fsdp_wrapped_module,
// _checkpoint_wrapped_module and _forward_module (Lightning) anywhere, and `module`
// (DistributedDataParallel) if every name of `leading` begins with it.
class NameMap {
 public:
  // `names`: all names; `leading`: those of the model, or of the optimizer if there is no model.
  // Throws: like RuleTable; kUsage for an invalid glob.
  NameMap(const NameRules& rules, std::span<const std::string> names,
          std::span<const std::string> leading);

  // Returns the new name; nothing if it is dropped.  Throws: kName if nothing would be left of it.
  std::optional<std::string> renamed(std::string_view name) const;
  // Returns the new path of a module, as the front of its parameters' names; "" for the whole
  // model.
  std::string renamed_module(std::string_view module) const;
  // Returns the name stripped of prefixes and wrappers; applies no other rules.
  std::string stripped(std::string_view name) const;
  // Returns the rules for whole keys: prefixes as renames to "", without the leading '/'.
  const std::vector<NameRule>& key_rules() const { return key_rules_; }
  const std::vector<Glob>& key_globs() const { return key_globs_; }
  // Returns the wrappers that were found, as prefixes: "_orig_mod.", "module.".
  const std::vector<std::string>& wrappers() const { return wrappers_; }

 private:
  bool strip_wrappers_ = false;
  bool strip_module_ = false;
  std::vector<std::string> strip_;
  std::vector<Glob> globs_;
  std::set<std::string> drop_names_;
  RuleTable renames_{{}};
  std::vector<NameRule> key_rules_;
  std::vector<Glob> key_globs_;
  std::vector<std::string> wrappers_;
};

}  // namespace fsdp::formats
