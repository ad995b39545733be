// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rule_scope.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::array<std::string_view, 4> kWrappers = {
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"};
constexpr std::string_view kModule = "module.";

// Returns the name without wrappers, and adds those found to `found` as prefixes.
std::string without_wrappers(std::string_view name, std::vector<std::string>* found = nullptr) {
  std::string out;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, dot - at);
    if (std::ranges::find(kWrappers, component) == kWrappers.end()) {
      if (at != 0 && !out.empty()) out += '.';
      out += component;
    } else if (found != nullptr) {
      const std::string prefix = std::string(component) + ".";
      if (std::ranges::find(*found, prefix) == found->end()) found->push_back(prefix);
    }
    at = dot + 1;
  }
  return out;
}

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

}  // namespace

class Scoping {
 public:
  Scoping(const NameRules& rules, std::span<const RuleTarget> targets,
          std::span<const std::string> names, std::span<const std::string> leading)
      : rules_(rules), targets_(targets), names_(names) {
    if (rules.strip_wrappers) find_wrappers(leading);
  }

  ScopedRules run() {
    look();
    for (const std::string& prefix : rules_.strip) strip(prefix);
    look();
    rename();
    drop();
    out_.keys = RuleTable(std::move(for_keys_));
    out_.beside = RuleTable(std::move(beside_));
    return std::move(out_);
  }

 private:
  // A key, and the place of the parameter's name in it after prefixes are stripped.
  struct Seen {
    std::string key;
    std::size_t begin = 0;
    std::size_t length = 0;
    std::string_view name() const { return std::string_view(key).substr(begin, length); }
  };

  void find_wrappers(std::span<const std::string> leading) {
    out_.strip_wrappers_ = true;
    for (const std::string& name : names_) (void)without_wrappers(name, &out_.wrappers);
    out_.strip_module_ =
        !leading.empty() && std::ranges::all_of(leading, [](const std::string& name) {
          const std::string bare = without_wrappers(name);
          return bare.starts_with(kModule) && bare.size() != kModule.size();
        });
    if (out_.strip_module_) out_.wrappers.emplace_back(kModule);
  }

  void look() {
    seen_.clear();
    seen_.reserve(targets_.size());
    for (const RuleTarget& target : targets_) {
      Seen seen{target.key, target.name_begin, target.name_length};
      if (seen.length != 0) {
        const std::string bare = out_.stripped(seen.name());
        seen.key.replace(seen.begin, seen.length, bare);
        seen.length = bare.size();
      }
      seen_.push_back(std::move(seen));
    }
    bare_names_.clear();
    for (const std::string& name : names_) bare_names_.push_back(out_.stripped(name));
  }

  void say(const std::string& rule, bool names) { out_.scopes.push_back({rule, names}); }

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

  // Places a rule that matches whole keys: for names if it has such a form, or for keys.
  void place(const NameRule& rule, const std::string& text, const Match& match) {
    if (match.optimizer != nullptr) throw optimizer_alone(rule, *match.optimizer);
    refuse_left_names(match.moved, text);
    say(text, match.names.has_value());
    if (!match.names) {
      for_keys_.push_back(rule);
    } else if (match.other) {
      beside_.push_back(rule);
    }
  }

  // ---- prefixes

  void strip(const std::string& text) {
    std::string prefix = is_for_keys(text) ? text.substr(1) : text;
    if (prefix.empty()) throw Error(ErrorCode::kUsage, "the prefix to strip is empty");
    if (!prefix.ends_with('.')) prefix += '.';
    const NameRule rule{prefix, ""};
    const auto has = [&](std::string_view key) {
      return key.size() > prefix.size() && key.starts_with(prefix);
    };
    if (is_for_keys(text)) {
      say(text, false);
      for_keys_.push_back(rule);
      return;
    }
    Match match;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      if (has(seen_[i].key)) note(i, rule, prefix.size(), match);
    }
    for (const auto& [first, count] : counted([&](std::size_t i) {
           return has(match.any ? std::string_view(seen_[i].key) : seen_[i].name());
         })) {
      const RuleTarget& target = targets_[first];
      const bool below = prefix.size() > front_of(target.part).size();
      if (count.some() && (!match.any || (target.kind == PartKind::kModel && below)))
        throw some_have(prefix, first, count);
    }
    if (match.any) {
      place(rule, text, match);
      if (match.names) out_.strip_.push_back(prefix);
      return;
    }
    const bool names = std::ranges::any_of(
        names_, [&](const std::string& name) { return out_.stripped(name).starts_with(prefix); });
    say(text, names);
    if (names) {
      out_.strip_.push_back(prefix);
    } else {
      for_keys_.push_back(rule);
    }
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

  void rename() {
    std::vector<NameRule> candidates;
    for (const NameRule& rule : rules_.renames) {
      if (is_for_keys(rule.from)) {
        say(text_of(rule), false);
        for_keys_.push_back({rule.from.substr(1), rule.to});
      } else {
        candidates.push_back(rule);
      }
    }
    const RuleTable table(std::move(candidates));
    std::vector<Match> matches(table.size());
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (const auto found = table.find(seen_[i].key))
        note(i, table.rule(found->rule), found->bytes, matches[found->rule]);
    }
    std::vector<NameRule> for_names;
    std::vector<std::pair<NameRule, std::string>> derived;  // with their parts
    for (std::size_t r = 0; r < table.size(); ++r) {
      const NameRule& rule = table.rule(r);
      const Match& match = matches[r];
      if (!match.any) {
        say(text_of(rule), true);
        for_names.push_back(rule);
        continue;
      }
      if (match.other && !match.level && match.moved.empty() && !match.names)
        refuse_ambiguous(rule);
      place(rule, text_of(rule), match);
      if (match.names) derived.emplace_back(*match.names, match.part);
    }
    add_derived(derived, for_names);
    // A rule that matches neither a key nor a name stays a rule for keys, which reports it.
    const RuleTable names(std::move(for_names));
    std::vector<char> used(names.size(), 0);
    for (const std::string& name : bare_names_) {
      if (const auto found = names.find(name)) used[found->rule] = 1;
    }
    std::vector<NameRule> kept;
    for (std::size_t r = 0; r < names.size(); ++r)
      (used[r] != 0 ? kept : for_keys_).push_back(names.rule(r));
    out_.names_ = RuleTable(std::move(kept));
  }

  void note(std::size_t i, const NameRule& rule, std::size_t bytes, Match& match) const {
    const RuleTarget& target = targets_[i];
    const Seen& seen = seen_[i];
    match.any = true;
    if (is_optimizer(target.kind) && seen.length != 0 && bytes > seen.begin) {
      if (bytes <= seen.begin + seen.length + 1) match.optimizer = &target;
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
  void add_derived(const std::vector<std::pair<NameRule, std::string>>& derived,
                   std::vector<NameRule>& for_names) const {
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
    std::ranges::move(rules, std::back_inserter(for_names));
  }

  // ---- globs

  void drop() {
    std::vector<char> dropped(targets_.size(), 0);
    std::unordered_map<std::string, std::string> names;  // names dropped in a model, and their keys
    for (const std::string& glob : rules_.drop) {
      if (is_for_keys(glob)) {
        say(glob, false);
        out_.key_globs.emplace_back(glob.substr(1));
        continue;
      }
      Glob compiled(glob);
      std::vector<char> hit(targets_.size(), 0);
      bool any = false;
      for (std::size_t i = 0; i < targets_.size(); ++i) {
        hit[i] = compiled.matches(targets_[i].key) ? 1 : 0;
        any = any || hit[i] != 0;
        dropped[i] = static_cast<char>(dropped[i] | hit[i]);
      }
      const bool for_names = !any && std::ranges::any_of(names_, [&](const std::string& name) {
        return compiled.matches(name);
      });
      say(glob, for_names);
      (for_names ? out_.globs_ : out_.key_globs).push_back(std::move(compiled));
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
    for (auto& [name, part] : names) out_.drop_names_.insert(name);
  }

  static std::string name_of(const RuleTarget& target) {
    return target.key.substr(target.name_begin, target.name_length);
  }

  const NameRules& rules_;
  std::span<const RuleTarget> targets_;
  std::span<const std::string> names_;
  std::vector<Seen> seen_;
  std::vector<std::string> bare_names_;
  std::vector<NameRule> for_keys_;
  std::vector<NameRule> beside_;
  ScopedRules out_;
};

std::string ScopedRules::stripped(std::string_view name) const {
  std::string out = strip_wrappers_ ? without_wrappers(name) : std::string(name);
  if (strip_module_ && out.starts_with(kModule)) out.erase(0, kModule.size());
  for (const std::string& prefix : strip_) {
    if (out.starts_with(prefix)) out.erase(0, prefix.size());
  }
  return out;
}

std::optional<std::string> ScopedRules::renamed(std::string_view name) const {
  if (drop_names_.contains(name) || any_matches(globs_, name)) return std::nullopt;
  std::string out = stripped(name);
  if (const auto match = names_.find(out)) out = names_.apply(out, *match);
  if (out.empty())
    throw Error(ErrorCode::kName, quote(name, 200) + " would be left without a name");
  return out;
}

std::string ScopedRules::renamed_module(std::string_view module) const {
  std::string out = stripped(std::string(module) + ".");
  if (const auto match = names_.find(out)) out = names_.apply(out, *match);
  while (out.ends_with('.')) out.pop_back();
  return out;
}

ScopedRules scoped_rules(const NameRules& rules, std::span<const RuleTarget> targets,
                         std::span<const std::string> names, std::span<const std::string> leading) {
  return Scoping(rules, targets, names, leading).run();
}

}  // namespace fsdp::formats
