// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/meant_name.h"

#include <algorithm>
#include <optional>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMeantText = 200;

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

std::string meant_text(const std::string& name) {
  return "; did you mean " + quote(name, kMeantText) + "?";
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
  const std::string near = nearest(text, names);
  return near.empty() ? std::string() : meant_text(near);
}

}  // namespace fsdp::formats
