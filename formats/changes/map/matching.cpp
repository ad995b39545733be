// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/matching.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

// Names that a message lists, and that a suggestion is chosen from.
constexpr std::size_t kMaxListed = 3;
constexpr std::size_t kMaxNearest = 20'000;

// A source of a use: its pattern and, if the rule collects, its number.
using Place = std::pair<std::size_t, std::size_t>;

// The sources of one use, as far as they were found.
struct Gathering {
  std::size_t first = 0;    // position of the first name
  std::size_t numbers = 1;  // for each pattern
  std::map<Place, std::string> sources;
};

std::string nearest_of(const std::string& word, std::span<const std::string> names) {
  return nearest(word, names.first(std::min(names.size(), kMaxNearest)));
}

std::string nearest_text(const std::string& near) {
  return near.empty() ? "" : "; the nearest is " + quote(near, 200);
}

std::string listed(std::span<const std::string> names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMaxListed; ++i)
    text += (text.empty() ? "" : ", ") + quote(names[i], 200);
  if (names.size() > kMaxListed) text += cat(" and ", names.size() - kMaxListed, " more");
  return text;
}

class Matching {
 public:
  Matching(const Rules& rules, std::span<const std::string> names)
      : rules_(rules),
        names_(names),
        known_(names.begin(), names.end()),
        found_(rules.rules.size()) {}

  std::vector<RuleUse> run() {
    std::vector<std::string> left;
    for (std::size_t n = 0; n < names_.size(); ++n) {
      if (!take(n)) left.push_back(names_[n]);
    }
    check_architecture(left.size());
    if (!left.empty()) throw not_taken(left);
    std::vector<std::pair<std::size_t, RuleUse>> uses;
    for (std::size_t r = 0; r < found_.size(); ++r) {
      const Rule& rule = rules_.rules[r];
      if (found_[r].empty() && !rule.optional) throw unused(rule);
      for (auto& [captures, gathering] : found_[r])
        uses.emplace_back(gathering.first, use_of(r, captures, gathering));
    }
    std::ranges::stable_sort(uses, [](const auto& a, const auto& b) { return a.first < b.first; });
    TargetNames targets(rules_);
    std::vector<RuleUse> out;
    for (auto& [first, use] : uses) {
      for (const std::string& target : use.targets) targets.add(target, use);
      out.push_back(std::move(use));
    }
    return out;
  }

 private:
  bool take(std::size_t n) {
    for (std::size_t r = 0; r < rules_.rules.size(); ++r) {
      const Rule& rule = rules_.rules[r];
      for (std::size_t p = 0; p < rule.from.size(); ++p) {
        auto captures = rule.from[p].match(names_[n]);
        if (!captures || (p == 0 && rule.skip_lone && comes_alone(rule, *captures))) continue;
        if (!has_beside(rule, *captures)) continue;
        if (add(r, p, std::move(*captures), n)) return true;
      }
    }
    return false;
  }

  // Returns true if all tensors that the other patterns name for these captures are absent.
  bool comes_alone(const Rule& rule, const Captures& captures) const {
    return rule.from.size() > 1 &&
           std::none_of(rule.from.begin() + 1, rule.from.end(), [&](const Pattern& other) {
             return known_.contains(other.filled(captures));
           });
  }

  bool has_beside(const Rule& rule, const Captures& captures) const {
    return std::ranges::all_of(rule.beside, [&](const Pattern& pattern) {
      return known_.contains(pattern.filled(captures));
    });
  }

  // Returns false if the capture that the rule gathers over is not a number.
  bool add(std::size_t r, std::size_t pattern, Captures captures, std::size_t n) {
    const Rule& rule = rules_.rules[r];
    Place place = {pattern, 0};
    if (rule.collects()) {
      const auto number = captures.extract(rule.over);
      const std::string& text = number.mapped();
      const bool whole = text.size() < 10 &&
                         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) &&
                         (text == "0" || text[0] != '0');
      if (!whole) return false;
      place.second = std::stoul(text);
    }
    const auto [at, fresh] = found_[r].try_emplace(std::move(captures));
    if (fresh) at->second.first = n;
    at->second.numbers = std::max(at->second.numbers, place.second + 1);
    at->second.sources.emplace(place, names_[n]);
    return true;
  }

  RuleUse use_of(std::size_t r, const Captures& captures, const Gathering& gathering) const {
    const Rule& rule = rules_.rules[r];
    RuleUse use;
    use.rule = r;
    use.captures = captures;
    const bool unties =
        !rule.operations.empty() && rule.operations[0].kind == OperationKind::kUntie;
    for (std::size_t pattern = 0; pattern < rule.from.size(); ++pattern) {
      for (std::size_t number = 0; number < gathering.numbers; ++number) {
        const auto found = gathering.sources.find({pattern, number});
        if (found != gathering.sources.end()) {
          use.sources.push_back(found->second);
        } else if (!unties) {
          throw lacks(rule, captures, {pattern, number}, gathering);
        }
      }
    }
    if (!rule.spreads()) {
      for (const Pattern& target : rule.to) use.targets.push_back(target.filled(captures));
    }
    return use;
  }

  Error lacks(const Rule& rule, const Captures& captures, const Place& place,
              const Gathering& gathering) const {
    Captures all = captures;
    if (rule.collects()) all[rule.over] = std::to_string(place.second);
    std::string missing = rule.from[place.first].filled(all);
    // If a lone tensor was left to the next rules, one of its companions is missing.
    for (std::size_t p = place.first + 1; p < rule.from.size() && known_.contains(missing); ++p)
      missing = rule.from[p].filled(all);
    std::vector<std::string> others;
    for (const std::string& name : names_) {
      const bool own = std::ranges::any_of(
          gathering.sources, [&](const auto& source) { return source.second == name; });
      if (!own && others.size() < kMaxNearest) others.push_back(name);
    }
    return Error(ErrorCode::kKey,
                 cat(place_of(rules_, rule), ": ", quote(missing, 200),
                     " is missing, which goes with ", quote(gathering.sources.begin()->second, 200),
                     nearest_text(nearest_of(missing, others))));
  }

  // Throws if a map takes almost nothing, as a map for other models does.
  void check_architecture(std::size_t left) const {
    std::size_t kinds = 0;
    std::size_t needed = 0;
    for (std::size_t r = 0; r < found_.size(); ++r) {
      if (rules_.rules[r].optional) continue;
      ++needed;
      if (!found_[r].empty()) ++kinds;
    }
    if (names_.empty() || 2 * kinds >= needed || 2 * left < names_.size()) return;
    throw Error(ErrorCode::kKey,
                cat(rules_.file, ": is a map for another architecture",
                    rules_.description.empty() ? "" : " (" + escape(rules_.description) + ")", ": ",
                    kinds, " of ", needed, " rules match, and ", left, " of ", names_.size(),
                    " tensors are left, such as ", quote(names_[0], 200)));
  }

  Error not_taken(const std::vector<std::string>& left) const {
    std::vector<std::string> patterns;
    for (const Rule& rule : rules_.rules) {
      for (const Pattern& pattern : rule.from) patterns.push_back(pattern.text());
    }
    const std::string near = nearest_of(left[0], patterns);
    return Error(ErrorCode::kKey,
                 cat(rules_.file, ": no rule takes ", listed(left),
                     near.empty() ? "" : "; the nearest pattern is " + quote(near, 200)));
  }

  Error unused(const Rule& rule) const {
    // Makes a key that the pattern matches, to find the nearest name.
    Captures first;
    for (const std::string& name : rule.from[0].names()) first[name] = "0";
    return Error(
        ErrorCode::kRekeyUnused,
        cat(place_of(rules_, rule), ": ", quote(rule.from[0].text(), 200), " matches nothing",
            nearest_text(nearest_of(rule.from[0].filled(first), names_)),
            "; set optional = true if the rule need not match"));
  }

  const Rules& rules_;
  std::span<const std::string> names_;
  std::unordered_set<std::string> known_;
  std::vector<std::map<Captures, Gathering>> found_;  // by rule
};

}  // namespace

std::string place_of(const Rules& rules, const Rule& rule) {
  return cat(rules.file, ": line ", rule.line);
}

void TargetNames::add(const std::string& name, const RuleUse& use) {
  const auto [at, fresh] = made_.try_emplace(name, Made{use.rule, use.sources.at(0)});
  if (fresh) return;
  const Rule& other = rules_.rules[at->second.rule];
  throw Error(ErrorCode::kRekeyCollision,
              cat(place_of(rules_, rules_.rules[use.rule]), ": ", quote(name, 200),
                  " would be made of ", quote(use.sources.at(0), 200), " and, by line ", other.line,
                  ", of ", quote(at->second.source, 200)));
}

std::vector<std::string> target_names(const Rules& rules, const RuleUse& use, std::size_t count) {
  const Rule& rule = rules.rules[use.rule];
  std::vector<std::string> names = use.targets;
  if (rule.spreads()) {
    const std::size_t each = count / rule.to.size();
    for (const Pattern& pattern : rule.to) {
      for (std::size_t i = 0; i < each; ++i) {
        Captures captures = use.captures;
        captures[rule.over] = std::to_string(i);
        names.push_back(pattern.filled(captures));
      }
    }
  }
  if (names.size() != count) {
    throw Error(ErrorCode::kShape,
                cat("the operations make ", count, count == 1 ? " tensor" : " tensors",
                    ", and the rule names ", names.size()));
  }
  return names;
}

std::vector<RuleUse> rule_uses(const Rules& rules, std::span<const std::string> names) {
  return Matching(rules, names).run();
}

}  // namespace fsdp::formats::map
