// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rule_scope.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {
namespace {

bool is_for_keys(std::string_view text) {
  return text.starts_with('/');
}

bool is_optimizer(PartKind kind) {
  return kind == PartKind::kOptimizer || kind == PartKind::kFlattenedOptimizer;
}

// Returns "model." for a part "model"; nothing for the whole.
std::string front_of(const std::string& part) {
  return part.empty() ? part : part + '.';
}

std::string place_text(const std::string& part) {
  return part.empty() ? std::string("the state dict") : quote(part, 200);
}

std::string text_of(const NameRule& rule) {
  return rule.from + "=" + rule.to;
}

Error partial(const std::string& what, Hint hint = {}) {
  return Error(ErrorCode::kUsage, what, std::move(hint));
}

// Counts the parameters of a part, and those that satisfy a condition.
struct Count {
  std::size_t total = 0;
  std::size_t hit = 0;
  const RuleTarget* without = nullptr;  // the first that does not
  bool some() const { return hit != 0 && hit != total; }
};

class Scoping {
 public:
  Scoping(const NameRules& rules, std::span<const RuleTarget> targets,
          std::span<const std::string> names, std::span<const std::string> leading)
      : rules_(rules), targets_(targets), names_(names), leading_(leading) {}

  ScopedRules run() {
    out_.rules.strip_wrappers = rules_.strip_wrappers;
    out_.rules.drop_names = rules_.drop_names;
    look();
    for (const std::string& prefix : rules_.strip) strip(prefix);
    look();
    rename();
    drop();
    return std::move(out_);
  }

 private:
  // A key, and the place of the parameter's name in it after the rules so far.
  struct Seen {
    std::string key;
    std::size_t begin = 0;
    std::size_t length = 0;
    std::string_view name() const { return std::string_view(key).substr(begin, length); }
  };

  void look() {
    NameRules so_far;
    so_far.strip_wrappers = rules_.strip_wrappers;
    for (const std::string& prefix : out_.rules.strip) {
      if (!is_for_keys(prefix)) so_far.strip.push_back(prefix);
    }
    const NameMap map(so_far, names_, leading_);
    seen_.clear();
    seen_.reserve(targets_.size());
    for (const RuleTarget& target : targets_) {
      Seen seen{target.key, target.name_begin, target.name_length};
      if (seen.length != 0) {
        const std::string bare = map.stripped(seen.name());
        seen.key.replace(seen.begin, seen.length, bare);
        seen.length = bare.size();
      }
      seen_.push_back(std::move(seen));
    }
    bare_names_.clear();
    for (const std::string& name : names_) bare_names_.push_back(map.stripped(name));
  }

  // ---- prefixes

  void say(std::string rule, bool names) { out_.scopes.push_back({std::move(rule), names}); }

  void strip(const std::string& text) {
    if (is_for_keys(text) || text.empty()) {
      say(text, false);
      out_.rules.strip.push_back(text);
      return;
    }
    const std::string prefix = text.ends_with('.') ? text : text + '.';
    const auto has = [&](std::string_view key) {
      return key.size() > prefix.size() && key.starts_with(prefix);
    };
    const bool whole = std::ranges::any_of(seen_, [&](const Seen& seen) { return has(seen.key); });
    if (!whole) {
      for (const auto& [part, count] :
           counted([&](std::size_t i) { return has(seen_[i].name()); })) {
        if (count.some()) throw some_have(prefix, part, count);
      }
      say(text, true);
      out_.rules.strip.push_back(text);
      return;
    }
    bool names = false;
    bool others = false;
    std::unordered_set<std::string_view> moved;  // names that lose the prefix in their level
    for (const auto& [part, count] : counted([&](std::size_t i) { return has(seen_[i].key); })) {
      if (targets_[part].kind != PartKind::kModel) continue;
      const std::string front = front_of(targets_[part].part);
      if (prefix.size() <= front.size()) continue;
      if (count.some()) throw some_have(prefix, part, count);
      names = names || (count.hit != 0 && front.empty());
    }
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      if (!has(seen_[i].key)) continue;
      if (is_optimizer(targets_[i].kind) && seen_[i].length != 0 && prefix.size() > seen_[i].begin)
        throw optimizer_alone({prefix, ""}, targets_[i]);
      const bool parameter = targets_[i].kind == PartKind::kModel && seen_[i].length != 0;
      others = others || !parameter || !names;
      if (parameter && !names && prefix.size() > seen_[i].begin) moved.insert(seen_[i].name());
    }
    say(text, names);
    if (names) out_.rules.strip.push_back(text);
    if (others && names) out_.beside.push_back({prefix, ""});
    if (others && !names) out_.rules.strip.push_back('/' + text);
    refuse_left_names(moved, prefix);
  }

  // Counts the parameters of each part, by its first target.
  template <typename Holds>
  std::map<std::size_t, Count> counted(const Holds& holds) const {
    std::map<std::pair<PartKind, std::string_view>, std::size_t> first;
    std::map<std::size_t, Count> counts;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].name_length == 0) continue;
      const auto part = std::pair(targets_[i].kind, std::string_view(targets_[i].part));
      Count& count = counts[first.try_emplace(part, i).first->second];
      ++count.total;
      if (holds(i)) {
        ++count.hit;
      } else if (count.without == nullptr) {
        count.without = &targets_[i];
      }
    }
    return counts;
  }

  // Returns the start of a removed prefix that names keep: the level of their part.
  static std::string kept_front(const std::string& prefix, const std::string& part) {
    const std::string front = front_of(part);
    return prefix.starts_with(front) ? front : std::string();
  }

  Error some_have(const std::string& prefix, std::size_t part, const Count& count) const {
    return partial(cat(quote(prefix, 200), " stands before ", count.hit, " of ", count.total,
                       " parameters in ", place_text(targets_[part].part), ", but not before ",
                       quote(count.without->key, 200)),
                   {Remedy::kMovePrefix, prefix + "=" + kept_front(prefix, targets_[part].part)});
  }

  // Refuses a rule after which an optimizer would keep the old names of parameters.
  void refuse_left_names(const std::unordered_set<std::string_view>& moved,
                         const std::string& rule) const {
    if (moved.empty()) return;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (!is_optimizer(targets_[i].kind) || seen_[i].length == 0) continue;
      if (!moved.contains(seen_[i].name())) continue;
      throw partial(cat(quote(rule, 200), " renames ", quote(seen_[i].name(), 200),
                        " in the model, but not in ", quote(targets_[i].part, 200),
                        "; rename the parameter with a rule for its name alone, and the level "
                        "with another one, or begin the rule with '/' to keep the names in ",
                        quote(targets_[i].part, 200)));
    }
  }

  // ---- renames

  // The matches of a rule.
  struct Match {
    bool any = false;
    bool level = false;                          // a level above a model
    bool other = false;                          // neither a level of a model nor a parameter
    std::string part;                            // the part whose parameters it renames
    std::optional<NameRule> names;               // ... by their names
    std::unordered_set<std::string_view> moved;  // parameters moved out of their level
    const RuleTarget* optimizer = nullptr;       // the first parameter matched only in an optimizer
  };

  void rename() {
    std::vector<NameRule> candidates;
    for (const NameRule& rule : rules_.renames) {
      if (is_for_keys(rule.from)) {
        say(text_of(rule), false);
        out_.rules.renames.push_back(rule);
      } else {
        candidates.push_back(rule);
      }
    }
    if (candidates.empty()) return;
    const RuleTable table(std::move(candidates));
    std::vector<Match> matches(table.size());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (const auto found = table.find(seen_[i].key))
        note(i, table.rule(found->rule), found->bytes, matches[found->rule]);
    }
    std::vector<std::pair<NameRule, std::string>> derived;  // with their parts
    for (std::size_t r = 0; r < table.size(); ++r) {
      const NameRule& rule = table.rule(r);
      const Match& match = matches[r];
      const NameRule for_keys{'/' + rule.from, rule.to};
      say(text_of(rule), !match.any || match.names);
      if (!match.any) {
        out_.rules.renames.push_back(rule);
        continue;
      }
      if (match.optimizer != nullptr) throw optimizer_alone(rule, *match.optimizer);
      refuse_left_names(match.moved, text_of(rule));
      if (match.names) {
        derived.emplace_back(*match.names, match.part);
        if (match.other) out_.beside.push_back(rule);
        continue;
      }
      if (match.other && !match.level && match.moved.empty()) refuse_ambiguous(rule);
      out_.rules.renames.push_back(for_keys);
    }
    add_derived(derived);
  }

  void note(std::size_t i, const NameRule& rule, std::size_t bytes, Match& match) const {
    const RuleTarget& target = targets_[i];
    const Seen& seen = seen_[i];
    match.any = true;
    if (is_optimizer(target.kind) && seen.length != 0 && bytes > seen.begin) {
      if (bytes <= seen.begin + seen.length) match.optimizer = &target;
      return;
    }
    if (target.kind != PartKind::kModel || seen.length == 0) {
      match.other = true;
      return;
    }
    if (bytes <= seen.begin) {
      match.level = true;
      return;
    }
    const std::string front = front_of(target.part);
    const bool stays = rule.to.starts_with(front) || (!front.empty() && rule.to == target.part);
    if (!stays) {
      match.moved.insert(seen.name());
      return;
    }
    match.part = target.part;
    match.names = NameRule{rule.from.substr(front.size()),
                           rule.to == target.part ? "" : rule.to.substr(front.size())};
  }

  static Error optimizer_alone(const NameRule& rule, const RuleTarget& target) {
    return partial(cat(quote(text_of(rule), 200), " renames parameters only in ",
                       quote(target.part, 200),
                       "; a rule for the keys of the model renames them everywhere, and one that "
                       "begins with '/' only these keys"));
  }

  // Refuses a rule that matches keys outside every model and also parameters inside one.
  void refuse_ambiguous(const NameRule& rule) const {
    const RuleTable table({rule});
    for (std::size_t i = 0; i < bare_names_.size(); ++i) {
      if (rule.from.empty() || !table.find(bare_names_[i])) continue;
      throw partial(cat(quote(rule.from, 200), " is a key and also the front of the parameter ",
                        quote(names_[i], 200), "; use '/", escape(rule.from),
                        "' for the key alone, or the parameter's whole key"));
    }
  }

  // Rules for the names of one model apply to all models that have such names; therefore their
  // rules must agree.
  void add_derived(const std::vector<std::pair<NameRule, std::string>>& derived) {
    if (derived.empty()) return;
    std::vector<NameRule> rules;
    std::map<std::string, std::vector<std::string_view>> parts;  // parts of each rule's `from`
    for (const auto& [rule, part] : derived) {
      auto& known = parts[rule.from];
      const bool fresh = std::ranges::none_of(
          rules, [&, &r = rule](const auto& k) { return k.from == r.from && k.to == r.to; });
      if (fresh) rules.push_back(rule);
      known.push_back(part);
    }
    const RuleTable table(rules);
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].kind != PartKind::kModel || seen_[i].length == 0) continue;
      const auto found = table.find(seen_[i].name());
      if (!found) continue;
      const auto& known = parts.at(table.rule(found->rule).from);
      if (std::ranges::find(known, targets_[i].part) != known.end()) continue;
      throw partial(cat("the parameters ", quote(table.rule(found->rule).from, 200), " of ",
                        place_text(std::string(known.front())), " are to be renamed, and ",
                        quote(targets_[i].key, 200), " would keep its name; rename both, by ",
                        quote(table.rule(found->rule).from, 200),
                        ", or begin the rule with '/' for its keys alone"));
    }
    for (NameRule& rule : rules) out_.rules.renames.push_back(std::move(rule));
  }

  // ---- globs

  void drop() {
    std::vector<char> dropped(targets_.size(), 0);
    std::unordered_map<std::string, std::string> names;  // names dropped in a model, and their keys
    for (const std::string& glob : rules_.drop) {
      if (is_for_keys(glob)) {
        say(glob, false);
        out_.rules.drop.push_back(glob);
        continue;
      }
      const Glob compiled(glob);
      std::vector<char> hit(targets_.size(), 0);
      bool any = false;
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        hit[i] = compiled.matches(targets_[i].key) ? 1 : 0;
        any = any || hit[i] != 0;
        dropped[i] = static_cast<char>(dropped[i] | hit[i]);
      }
      out_.rules.drop.push_back(any ? '/' + glob : glob);
      say(glob, !any);
      if (!any) continue;
      std::unordered_set<std::string> cut;  // models that lose a part
      for (const auto& [part, count] : counted([&](std::size_t i) { return hit[i] != 0; })) {
        if (targets_[part].kind == PartKind::kModel && count.some())
          cut.insert(targets_[part].part);
      }
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        if (hit[i] != 0 && targets_[i].kind == PartKind::kModel && targets_[i].name_length != 0 &&
            cut.contains(targets_[i].part)) {
          names.emplace(name_of(targets_[i]), targets_[i].part);
          out_.scopes.back().names = true;
        }
      }
    }
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (dropped[i] != 0 || targets_[i].kind != PartKind::kModel || targets_[i].name_length == 0)
        continue;
      const auto found = names.find(name_of(targets_[i]));
      if (found == names.end()) continue;
      throw partial(cat(quote(found->first, 200), " is to be dropped from ",
                        place_text(found->second), ", and ", quote(targets_[i].key, 200),
                        " would stay; drop both, or begin the glob with '/' for its keys alone"));
    }
    for (auto& [name, part] : names) out_.rules.drop_names.insert(name);
  }

  static std::string name_of(const RuleTarget& target) {
    return target.key.substr(target.name_begin, target.name_length);
  }

  const NameRules& rules_;
  std::span<const RuleTarget> targets_;
  std::span<const std::string> names_;
  std::span<const std::string> leading_;
  std::vector<Seen> seen_;
  std::vector<std::string> bare_names_;
  ScopedRules out_;
};

}  // namespace

ScopedRules scoped_rules(const NameRules& rules, std::span<const RuleTarget> targets,
                         std::span<const std::string> names, std::span<const std::string> leading) {
  return Scoping(rules, targets, names, leading).run();
}

}  // namespace fsdp::formats
