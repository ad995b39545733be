// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/name_rules.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

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

}  // namespace fsdp::formats
