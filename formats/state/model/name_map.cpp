// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/name_map.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {
namespace {

constexpr std::array<std::string_view, 4> kWrappers = {
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"};
constexpr std::string_view kModule = "module";

// Returns the part of a name after a leading component; nothing if the name begins otherwise.
std::optional<std::string_view> after(std::string_view name, std::string_view component) {
  if (!name.starts_with(component)) return std::nullopt;
  if (name.size() == component.size()) return std::string_view();
  if (name[component.size()] != '.') return std::nullopt;
  return name.substr(component.size() + 1);
}

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

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  return text;
}

void check_utf8(std::string_view name) {
  if (!is_utf8(name)) throw Error(ErrorCode::kUtf8, quote(name) + " is not UTF-8");
}

std::vector<NameRule> parse_json_map(std::string_view text) {
  const Json json = parse_json(text);
  std::vector<NameRule> rules;
  for (const auto& [from, to] : *json.as_object()) {
    if (to.as_string() == nullptr) {
      throw Error(ErrorCode::kJson, "the new name of ", quote(from), " is ", json_kind(to),
                  ", expected a string");
    }
    rules.push_back({from, *to.as_string()});
  }
  return rules;
}

}  // namespace

NameRule parse_name_rule(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos)
    throw Error(ErrorCode::kUsage, quote(text) + ": expected FROM=TO");
  check_utf8(text);
  return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

std::vector<NameRule> parse_name_map(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  if (text[first] == '{') return parse_json_map(text);
  std::vector<NameRule> rules;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (trimmed(line).empty() || trimmed(line).starts_with('#')) continue;
    std::size_t split = line.find('\t');
    std::size_t width = 1;
    if (split == std::string_view::npos) {
      split = line.find("=>");
      width = 2;
    }
    if (split == std::string_view::npos) {
      throw Error(ErrorCode::kUsage, "line ", number, ": ", quote(line),
                  ": expected from<TAB>to or from => to");
    }
    check_utf8(line);
    rules.push_back({std::string(trimmed(line.substr(0, split))),
                     std::string(trimmed(line.substr(split + width)))});
  }
  return rules;
}

// ---- RuleTable

RuleTable::RuleTable(std::vector<NameRule> rules) : rules_(std::move(rules)) {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const NameRule& rule = rules_[i];
    const auto [at, fresh] = by_from_.try_emplace(rule.from, i);
    if (!fresh) {
      throw Error(ErrorCode::kRekeyCollision, quote(rule.from), " is to become ",
                  quote(rules_[at->second].to), " and ", quote(rule.to));
    }
    const bool front = rule.from.empty() || rule.from.ends_with('.');
    if (front && !rule.to.empty() && !rule.to.ends_with('.')) {
      throw Error(ErrorCode::kUsage, quote(rule.from + "=" + rule.to),
                  ": if FROM is empty or ends with a dot, so must TO");
    }
    if (!front && rule.to.ends_with('.')) {
      throw Error(ErrorCode::kUsage, quote(rule.from + "=" + rule.to),
                  ": TO ends with a dot, but FROM does not");
    }
  }
}

std::optional<RuleTable::Match> RuleTable::find(std::string_view name) const {
  if (rules_.empty()) return std::nullopt;
  const auto look = [&](std::size_t bytes) -> std::optional<Match> {
    const auto found = by_from_.find(std::string(name.substr(0, bytes)));
    if (found == by_from_.end()) return std::nullopt;
    return Match{found->second, bytes};
  };
  if (const auto whole = look(name.size())) return whole;
  for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos && dot != 0;
       dot = name.rfind('.', dot - 1)) {
    if (const auto front = look(dot + 1)) return front;
    if (const auto module = look(dot)) return module;
  }
  return look(0);
}

std::string RuleTable::apply(std::string_view name, const Match& match) const {
  const std::string& to = rules_[match.rule].to;
  std::string_view rest = name.substr(match.bytes);
  if (to.empty() && rest.starts_with('.')) rest.remove_prefix(1);
  return to + std::string(rest);
}

// ---- NameMap

NameMap::NameMap(const NameRules& rules, std::span<const std::string> names,
                 std::span<const std::string> leading)
    : strip_wrappers_(rules.strip_wrappers), drop_names_(rules.drop_names) {
  for (const std::string& text : rules.drop) {
    Glob glob(is_for_keys(text) ? text.substr(1) : text);
    const bool for_names =
        !is_for_keys(text) &&
        std::ranges::any_of(names, [&](const std::string& name) { return glob.matches(name); });
    (for_names ? globs_ : key_globs_).push_back(std::move(glob));
  }
  if (strip_wrappers_) {
    for (const std::string& name : names) (void)without_wrappers(name, &wrappers_);
    strip_module_ = !leading.empty() && std::ranges::all_of(leading, [](const std::string& name) {
      const std::string bare = without_wrappers(name);
      const auto rest = after(bare, kModule);
      return rest && !rest->empty();
    });
    if (strip_module_) wrappers_.push_back(std::string(kModule) + ".");
  }
  for (const std::string& text : rules.strip) {
    std::string prefix = is_for_keys(text) ? text.substr(1) : text;
    if (prefix.empty()) throw Error(ErrorCode::kUsage, "the prefix to strip is empty");
    if (!prefix.ends_with('.')) prefix += '.';
    const bool for_names =
        !is_for_keys(text) && std::ranges::any_of(names, [&](const std::string& name) {
          return stripped(name).starts_with(prefix);
        });
    if (for_names) {
      strip_.push_back(std::move(prefix));
    } else {
      key_rules_.push_back({std::move(prefix), ""});
    }
  }
  // One pass over all names finds the rules that match any.
  std::vector<NameRule> candidates;
  for (const NameRule& rule : rules.renames) {
    if (is_for_keys(rule.from)) {
      key_rules_.push_back({rule.from.substr(1), rule.to});
    } else {
      candidates.push_back(rule);
    }
  }
  const RuleTable table(std::move(candidates));
  std::vector<char> used(table.size(), 0);
  for (const std::string& name : names) {
    if (const auto match = table.find(stripped(name))) used[match->rule] = 1;
  }
  std::vector<NameRule> renames;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (used[i] != 0) {
      renames.push_back(table.rule(i));
    } else {
      key_rules_.push_back(table.rule(i));
    }
  }
  renames_ = RuleTable(std::move(renames));
}

std::string NameMap::stripped(std::string_view name) const {
  std::string out(name);
  if (strip_wrappers_) out = without_wrappers(out);
  if (strip_module_) {
    if (const auto rest = after(out, kModule)) out = std::string(*rest);
  }
  for (const std::string& prefix : strip_) {
    if (out.starts_with(prefix)) out.erase(0, prefix.size());
  }
  return out;
}

std::optional<std::string> NameMap::renamed(std::string_view name) const {
  if (!drop_names_.empty() && drop_names_.contains(std::string(name))) return std::nullopt;
  if (any_matches(globs_, name)) return std::nullopt;
  std::string out = stripped(name);
  if (const auto match = renames_.find(out)) out = renames_.apply(out, *match);
  if (out.empty())
    throw Error(ErrorCode::kName, quote(name, 200) + " would be left without a name");
  return out;
}

std::string NameMap::renamed_module(std::string_view module) const {
  std::string out = stripped(std::string(module) + ".");
  if (const auto match = renames_.find(out)) out = renames_.apply(out, *match);
  while (out.ends_with('.')) out.pop_back();
  return out;
}

}  // namespace fsdp::formats
