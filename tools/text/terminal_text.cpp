// SPDX-License-Identifier: Apache-2.0
#include "tools/text/terminal_text.h"

#include <algorithm>

namespace fsdp::cli {
namespace {

// Every byte of UTF-8 except continuation bytes begins a code point.
bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

// Returns where character `number` of `text` begins.
std::size_t position_of(std::string_view text, std::size_t number) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if (begins_character(text[at]) && number-- == 0) break;
  }
  return at;
}

// Returns whether a byte of a name may be left out.  Numbers, ranges {0..11} and tree lines stay.
bool may_be_left_out(char c) {
  constexpr std::string_view kKept = " 0123456789{}";
  return static_cast<unsigned char>(c) < 0x80U && kKept.find(c) == std::string_view::npos;
}

// Returns where to leave out `left_out` characters of `text`: near its beginning, because names
// differ at their ends; in the middle if no part without numbers is long enough.
std::size_t gap_of(std::string_view text, std::size_t left_out) {
  constexpr std::size_t kKept = 3;  // characters that stay at the start of a run, if possible
  std::vector<std::size_t> runs;    // per character: the omissible ones up to it, in a row
  for (const char c : text) {
    if (!begins_character(c)) continue;
    runs.push_back(!may_be_left_out(c) ? 0 : runs.empty() ? 1 : runs.back() + 1);
  }
  const auto first = std::find(runs.begin(), runs.end(), 1);
  const auto begin = static_cast<std::size_t>(first - runs.begin());
  for (const std::size_t kept : {kKept, std::size_t{0}}) {
    const std::size_t end = begin + kept + left_out;
    if (end <= runs.size() && runs[end - 1] >= kept + left_out) return end - left_out;
  }
  const auto longer =
      std::find_if(runs.begin(), runs.end(), [&](std::size_t run) { return run >= left_out; });
  if (longer == runs.end()) return (runs.size() - left_out + 1) / 2;
  return static_cast<std::size_t>(longer - runs.begin()) + 1 - left_out;
}

}  // namespace

std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = text.find("\x1b["); at != std::string_view::npos; at = text.find("\x1b[")) {
    width += characters(text.substr(0, at));
    text.remove_prefix(std::min(text.find('m', at), text.size() - 1) + 1);
  }
  return width + characters(text);
}

std::string cut_end(const std::string& text, std::size_t width) {
  if (characters(text) <= width) return text;
  return width == 0 ? "" : text.substr(0, position_of(text, width - 1)) + "…";
}

std::string cut_within(const std::string& text, std::size_t width) {
  const std::size_t length = characters(text);
  if (length <= width) return text;
  if (width == 0) return {};
  const std::size_t left_out = length - width + 1;
  const std::size_t begin = gap_of(text, left_out);
  return text.substr(0, position_of(text, begin)) + "…" +
         text.substr(position_of(text, begin + left_out));
}

std::string packed(const std::vector<std::string>& pieces, std::string_view gap,
                   std::size_t columns, std::size_t indent) {
  std::string text;
  std::size_t used = 0;
  for (const std::string& piece : pieces) {
    const bool first = &piece == &pieces.front();
    if (!first && columns != 0 && used + gap.size() + width_of(piece) > columns) {
      text += "\n" + std::string(indent, ' ') + piece;
    } else {
      text.append(first ? "" : gap).append(piece);
    }
    used = width_of(std::string_view(text).substr(text.rfind('\n') + 1));
  }
  return text;
}

std::string hanging(std::string_view lead, std::string_view text, std::size_t columns,
                    std::size_t indent) {
  if (columns == 0) return std::string(lead).append(text);
  std::vector<std::string> words = {std::string(lead)};
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find(' ', begin), text.size());
    if (begin == 0) {
      words.front().append(text.substr(0, end));
    } else if (end != begin) {
      words.emplace_back(text.substr(begin, end - begin));
    }
  }
  return packed(words, " ", columns, indent);
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  if (width_of(text) <= columns) return std::string(text);
  const std::size_t blanks = std::min(text.find_first_not_of(' '), text.size());
  return hanging(text.substr(0, blanks), text.substr(blanks), columns, indent);
}

}  // namespace fsdp::cli
