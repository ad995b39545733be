// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/meant_name.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMeantText = 200;

std::vector<std::string> dotted_parts(std::string_view name) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t dot = name.find('.');
    parts.emplace_back(name.substr(0, dot));
    if (dot == name.npos) return parts;
    name.remove_prefix(dot + 1);
  }
}

// Returns the text with `**` for each `*`; stars in a set stay as they are.
std::string crossing_dots(std::string_view glob) {
  std::string wide;
  bool in_set = false;
  for (std::size_t i = 0; i < glob.size(); ++i) {
    const char c = glob[i];
    if (c == '[') in_set = true;
    if (c == ']') in_set = false;
    wide += c;
    if (c != '*' || in_set) continue;
    wide += '*';
    if (i + 1 < glob.size() && glob[i + 1] == '*') ++i;
  }
  return wide;
}

bool matches_one(const Glob& glob, std::span<const std::string> names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return glob.matches(name); });
}

// Returns the glob after the leading parts of a name whose rest the glob matches.
std::optional<std::string> with_front(const std::string& text, std::span<const std::string> names) {
  const Glob glob(text);
  const Glob behind("**." + text);
  for (const std::string& name : names) {
    if (!behind.matches(name)) continue;
    for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1)) {
      if (glob.matches(std::string_view(name).substr(dot + 1)))
        return name.substr(0, dot + 1) + text;
    }
  }
  return std::nullopt;
}

// Returns the glob without leading parts; what is left begins with a part that is spelt out.
std::optional<std::string> without_front(std::string_view text,
                                         std::span<const std::string> names) {
  while (true) {
    const std::size_t dot = text.find_first_of(".[");
    if (dot == text.npos || text[dot] == '[') return std::nullopt;
    text.remove_prefix(dot + 1);
    const std::string_view first = text.substr(0, text.find('.'));
    if (first.empty() || first.find_first_of("*?[") != first.npos) continue;
    if (matches_one(Glob(text), names)) return std::string(text);
  }
}

// Returns the glob with each part that no name has in the place of the nearest part that some have.
std::optional<std::string> spelt_again(std::string_view text, std::span<const std::string> names) {
  std::set<std::string> known;
  for (const std::string& name : names) {
    for (const std::string& part : dotted_parts(name)) known.insert(part);
  }
  const std::vector<std::string> candidates(known.begin(), known.end());
  std::vector<std::string> parts = dotted_parts(text);
  for (std::string& part : parts) {
    if (part.find_first_of("*?[") != part.npos || known.contains(part)) continue;
    part = nearest(part, candidates);
    if (part.empty()) return std::nullopt;
  }
  std::string spelt = joined(parts, ".");
  if (!matches_one(Glob(spelt), names)) return std::nullopt;
  return spelt;
}

// Returns the glob of a regular expression, a path with slashes, or a word in quotes.
std::string without_marks(std::string_view text) {
  while (!text.empty() && std::string_view("'\"^=/").find(text.front()) != text.npos)
    text.remove_prefix(1);
  while (!text.empty() && std::string_view("'\"$./").find(text.back()) != text.npos)
    text.remove_suffix(1);
  std::string glob;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(".*") && !text.substr(i).starts_with(".**")) {
      glob += "**";
      ++i;
    } else if (text[i] != '\\') {
      glob += text[i] == '/' ? '.' : text[i];
    }
  }
  return glob;
}

std::string meant_text(const std::string& name) {
  return "; did you mean " + quote(name, kMeantText) + "?";
}

std::string near_text(const std::string& text, std::span<const std::string> names) {
  const std::string near = nearest(text, names);
  return near.empty() ? std::string() : meant_text(near);
}

}  // namespace

std::string meant_key(std::string_view key, std::span<const std::string> names) {
  names = names.first(std::min(names.size(), kMostNamesCompared));
  const auto is_end_of = [](std::string_view end, std::string_view whole) {
    return !end.empty() && whole.size() > end.size() && whole.ends_with(end) &&
           whole[whole.size() - end.size() - 1] == '.';
  };
  const auto found = std::ranges::find_if(
      names, [&](const std::string& name) { return is_end_of(key, name) || is_end_of(name, key); });
  return found == names.end() ? nearest(key, names) : *found;
}

std::string meant_glob(const Glob& glob, std::span<const std::string> names) {
  names = names.first(std::min(names.size(), kMostNamesCompared));
  const std::string& text = glob.text();
  const std::string wide = crossing_dots(text);
  if (wide != text && matches_one(Glob(wide), names))
    return "; * does not cross dots" + meant_text(wide);
  if (auto front = with_front(text, names)) return meant_text(*front);
  if (auto front = with_front(wide, names)) return meant_text(*front);
  if (auto rest = without_front(text, names)) return meant_text(*rest);
  const bool plain = text.find('[') == text.npos;
  const std::string bare = plain ? without_marks(text) : std::string();
  if (bare.find_first_not_of("*.") == bare.npos) return near_text(text, names);
  if (bare != text && matches_one(Glob(bare), names)) return meant_text(bare);
  // A module has no tensor of its own name.
  const std::string below = bare + ".**";
  if (matches_one(Glob(below), names)) return meant_text(below);
  if (auto front = with_front(below, names)) return meant_text(*front);
  if (auto spelt = spelt_again(text, names)) return meant_text(*spelt);
  return near_text(text, names);
}

}  // namespace fsdp::formats
