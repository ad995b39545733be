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

#include "formats/model/select.h"

namespace fsdp::formats {

// `from` stands for the name itself and for the front of names up to a dot: "encoder" renames
// "encoder" and "encoder.weight", "encoder." the latter alone.  Empty: the front of every name.
// A `from` that begins with '/' is meant for whole keys alone.
struct NameRule {
  std::string from;
  std::string to;
};

struct NameRules {
  bool strip_wrappers = false;     // see NameMap
  std::vector<std::string> strip;  // prefixes; a dot behind them may be left out
  std::vector<NameRule> renames;
  std::vector<std::string> drop;          // globs; beginning with '/' for whole keys alone
  std::set<std::string> drop_names = {};  // names, as they are
  bool empty() const { return !strip_wrappers && strip.empty() && renames.empty() && drop.empty(); }
};

// "FROM=TO".  Throws: kUsage.
NameRule parse_name_rule(std::string_view text);

// The rules of a map file: a JSON object of names to names, or lines "from<TAB>to" or "from => to",
// where empty lines and those that begin with '#' do not count.
// Throws: kJson, kJsonDepth, kUsage naming the line, kUtf8.
std::vector<NameRule> parse_name_map(std::string_view text);

// Finds the rule with the longest `from` for a name, in time that does not depend on the number of
// rules.
class RuleTable {
 public:
  // Throws: kRekeyCollision where one `from` is given twice; kUsage where a `to` does not fit it.
  explicit RuleTable(std::vector<NameRule> rules);
  struct Match {
    std::size_t rule;
    std::size_t bytes;  // at the front of the name, which `to` replaces
  };
  std::optional<Match> find(std::string_view name) const;
  const NameRule& rule(std::size_t number) const { return rules_[number]; }
  std::size_t size() const { return rules_.size(); }
  // `name` with the front that matched replaced.
  std::string apply(std::string_view name, const Match& match) const;

 private:
  std::vector<NameRule> rules_;
  std::unordered_map<std::string, std::size_t> by_from_;
};

// The rules that are about the names of parameters and buffers.
//
// A prefix, rule or glob counts for names where it matches any of them, and is left to whole keys
// where it matches none.  Globs see the names as they are, renames what stripping leaves.
// Stripping wrappers takes out the components _orig_mod (torch.compile), _fsdp_wrapped_module and
// _checkpoint_wrapped_module wherever they stand, and `module` (DistributedDataParallel) where
// every name of `leading` begins with it.
class NameMap {
 public:
  // `names`: all that occur; `leading`: those of the model, or of the optimizer where there is
  // none. Throws: as RuleTable; kUsage for a glob that is none.
  NameMap(const NameRules& rules, std::span<const std::string> names,
          std::span<const std::string> leading);

  // The new name; nothing where it is dropped.  Throws: kName where nothing would be left of it.
  std::optional<std::string> renamed(std::string_view name) const;
  // The new path of a module, as the front of its parameters' names; "" for the whole.
  std::string renamed_module(std::string_view module) const;
  // The name without what is to be stripped, and nothing else of the rules.
  std::string stripped(std::string_view name) const;
  // What is left to whole keys: prefixes as renames to "", no '/' in front.
  const std::vector<NameRule>& key_rules() const { return key_rules_; }
  const std::vector<Glob>& key_globs() const { return key_globs_; }
  // The wrappers that were found, as prefixes: "_orig_mod.", "module.".
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
