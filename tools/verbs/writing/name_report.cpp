// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/name_report.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "tools/base/reading.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::escape;

}  // namespace

void list_names(std::size_t count, const std::function<std::string(std::size_t)>& line,
                std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < std::min(count, kMaxNamesListed); ++i)
    lines.push_back("  " + line(i));
  if (count > kMaxNamesListed)
    lines.push_back(
        cat("  and ", formats::group_digits(count - kMaxNamesListed), " more; --json lists all"));
}

void add_name_report(const formats::Renamed& renamed, bool auto_strip, bool dry_run,
                     ReportExtras& extras) {
  formats::Json::Array wrappers;
  for (const std::string& wrapper : renamed.wrappers) {
    wrappers.emplace_back(wrapper);
    extras.lines.push_back("stripped: " + formats::quote(wrapper));
  }
  if (auto_strip && renamed.wrappers.empty())
    extras.lines.emplace_back("stripped: nothing, no name has a wrapper's prefix");
  extras.lines.push_back("renamed: " + counted(renamed.renamed.size(), "key"));
  list_names(
      renamed.scopes.size(),
      [&](std::size_t i) {
        const auto& [rule, names] = renamed.scopes[i];
        return formats::quote(rule, 200) +
               (names ? ": names of parameters, wherever they occur" : ": whole keys");
      },
      extras.lines);
  if (dry_run) {
    list_names(
        renamed.renamed.size(),
        [&](std::size_t i) {
          return escape(renamed.renamed[i].first) + " -> " + escape(renamed.renamed[i].second);
        },
        extras.lines);
  }
  if (!renamed.dropped.empty()) {
    extras.lines.push_back("dropped: " + counted(renamed.dropped.size(), "key"));
    list_names(
        renamed.dropped.size(), [&](std::size_t i) { return escape(renamed.dropped[i]); },
        extras.lines);
  }
  formats::Json::Array rules;
  for (const auto& [rule, names] : renamed.scopes)
    rules.push_back(
        formats::Json::Object{{"rule", rule}, {"applies_to", names ? "names" : "keys"}});
  formats::Json::Array renames;
  for (const auto& [from, to] : renamed.renamed)
    renames.push_back(formats::Json::Object{{"from", from}, {"to", to}});
  extras.members.emplace_back("renamed", renamed.renamed.size());
  extras.members.emplace_back("dropped", renamed.dropped.size());
  extras.members.emplace_back("wrappers", std::move(wrappers));
  extras.members.emplace_back("rules", std::move(rules));
  extras.members.emplace_back("renames", std::move(renames));
  extras.members.emplace_back("dropped_keys",
                              formats::Json::Array(renamed.dropped.begin(), renamed.dropped.end()));
}

}  // namespace fsdp::cli
