// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/fitting.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/changes/map/matching.h"
#include "formats/changes/map/parameters.h"

namespace fsdp::formats::map {
namespace {

// The most kinds of names that each map is compared with.  A large model has some hundred.
constexpr std::size_t kMostCompared = 500;
// No module has so long a name, and patterns take their time with it.
constexpr std::size_t kLongestName = 2000;

// Names that differ in numbers alone are of one kind.
struct Kind {
  std::string first;  // of the names
  std::size_t names = 0;
};

// Returns nothing if a name is too long for any model.
std::vector<Kind> kinds_of(std::span<const std::string> names) {
  std::vector<Kind> out;
  const auto too_long = [](const std::string& name) { return name.size() > kLongestName; };
  if (std::ranges::any_of(names, too_long)) return out;
  std::unordered_map<std::string, std::size_t> places;
  for (const std::string& name : names) {
    std::string kind;
    for (const char c : name) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit || !kind.ends_with('0')) kind += digit ? '0' : c;
    }
    const auto [at, fresh] = places.try_emplace(std::move(kind), out.size());
    if (fresh && out.size() == kMostCompared) break;
    if (fresh) out.push_back({name, 0});
    ++out[at->second].names;
  }
  return out;
}

// Returns the rules of a map as they are for a model with these names; nothing if what they count
// contradicts them.
std::optional<Rules> rules_of(const BuiltinMap& map, std::span<const std::string> names,
                              Direction direction) {
  Rules rules = parse_rules(map.text, std::string(map.name), direction);
  const auto counts = [](const Parameter& parameter) { return !parameter.count.empty(); };
  if (std::ranges::none_of(rules.parameters, counts)) return rules;
  ParameterValues::Shapes shapes;
  for (const std::string& name : names) shapes.emplace_back(name, std::vector<std::int64_t>());
  const GivenParameters nothing;
  ParameterValues parameters(rules, nothing, shapes);
  try {
    rules.set_offsets(std::ref(parameters));
  } catch (const Error&) {
    return std::nullopt;
  }
  return rules;
}

bool changes(const Rules& rules, const RuleUse& use) {
  return !rules.rules[use.rule].operations.empty() || use.targets != use.sources;
}

// Returns whether a map is for the model type.  A map without model types is for any model, and
// fits none.
bool is_for(const Rules& rules, std::string_view model_type) {
  const auto& types = rules.model_types;
  return model_type.empty() ? !types.empty() : std::ranges::find(types, model_type) != types.end();
}

bool matches_any(const std::vector<Pattern>& patterns, const std::string& name) {
  return std::ranges::any_of(
      patterns, [&](const Pattern& pattern) { return pattern.match(name).has_value(); });
}

bool takes(const Rules& rules, const std::string& name) {
  return std::ranges::any_of(rules.rules,
                             [&](const Rule& rule) { return matches_any(rule.from, name); });
}

// A map that takes the names.
struct Taker {
  BuiltinMap map;
  bool needs_config;
};

// Returns the maps for a model type that take all names and change any.
std::vector<Taker> takers(std::span<const std::string> names, std::string_view model_type,
                          Direction direction) {
  std::vector<Taker> out;
  const std::vector<Kind> kinds = kinds_of(names);
  if (kinds.empty()) return out;
  for (const BuiltinMap& map : builtin_maps()) {
    // Most maps are for other models, and need not be parsed.
    if (map.text.find(model_type) == std::string_view::npos) continue;
    try {
      const std::optional<Rules> rules = rules_of(map, names, direction);
      if (rules && is_for(*rules, model_type) &&
          std::ranges::all_of(kinds, [&](const Kind& kind) { return takes(*rules, kind.first); }) &&
          std::ranges::any_of(rule_uses(*rules, names),
                              [&](const RuleUse& use) { return changes(*rules, use); }))
        out.push_back({map, rules->needs_config});
    } catch (const Error&) {
      // It does not take the names.
    }
  }
  return out;
}

// Returns whether a rule takes the name and no rule makes it.
bool is_changed(const Rules& rules, const std::string& name) {
  const auto gives_it = [&](const Rule& rule) { return matches_any(rule.to, name); };
  return takes(rules, name) && std::ranges::none_of(rules.rules, gives_it);
}

// Returns whether at least half of the rules that must match take a name.  If fewer do, the names
// are of another model, which calls some tensors the same.
bool most_match(const Rules& rules, std::span<const std::string> names) {
  std::size_t needed = 0;
  std::size_t matched = 0;
  for (const Rule& rule : rules.rules) {
    if (rule.optional) continue;
    ++needed;
    if (std::ranges::any_of(names,
                            [&](const std::string& name) { return matches_any(rule.from, name); }))
      ++matched;
  }
  return 2 * matched >= needed;
}

// Returns why the map does not take the names, without the name of the map in front.
std::string why_not(const Rules& rules, std::span<const std::string> names) {
  try {
    rule_uses(rules, names);
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string front = rules.file + ": ";
    return text.starts_with(front) ? text.substr(front.size()) : text;
  }
  return {};
}

}  // namespace

std::optional<NearMap> nearest_map(std::span<const std::string> names, Direction direction) {
  const std::vector<Kind> kinds = kinds_of(names);
  if (kinds.empty()) return std::nullopt;
  std::size_t compared = 0;
  for (const Kind& kind : kinds) compared += kind.names;
  std::optional<NearMap> nearest;
  std::size_t most = 0;
  for (const BuiltinMap& map : builtin_maps()) {
    const std::optional<Rules> parsed = rules_of(map, names, direction);
    if (!parsed || parsed->model_types.empty() || parsed->needs_config) continue;
    const Rules& rules = *parsed;
    std::size_t changed = 0;
    for (const Kind& kind : kinds) changed += is_changed(rules, kind.first) ? kind.names : 0;
    if (2 * changed < compared || changed <= most || !most_match(rules, names)) continue;
    most = changed;
    nearest = NearMap{map.name, why_not(rules, names)};
  }
  return nearest;
}

std::vector<BuiltinMap> fitting_maps(std::span<const std::string> names,
                                     std::string_view model_type, Direction direction) {
  const std::vector<Taker> all = takers(names, model_type, direction);
  std::vector<BuiltinMap> fitting;
  if (!model_type.empty() || !std::ranges::all_of(all, &Taker::needs_config))
    for (const Taker& taker : all) fitting.push_back(taker.map);
  return fitting;
}

std::vector<BuiltinMap> maps_by_config(std::span<const std::string> names, Direction direction) {
  std::vector<BuiltinMap> out;
  for (const Taker& taker : takers(names, {}, direction))
    if (taker.needs_config) out.push_back(taker.map);
  return out;
}

}  // namespace fsdp::formats::map
