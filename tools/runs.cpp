// SPDX-License-Identifier: Apache-2.0
#include "tools/runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <ostream>
#include <string_view>

#include "formats/base/text.h"
#include "formats/open.h"

namespace fsdp::cli {
namespace {

constexpr std::string_view kDecimalDigits = "0123456789";
// The words behind which a name tells its place in a run; the first one that a name has counts.
constexpr std::array<std::string_view, 3> kCounters = {"step", "iter", "epoch"};

// Returns the number at the start of `text`, after at most one separator.
std::optional<std::uint64_t> leading_number(std::string_view text) {
  if (!text.empty() && std::string_view("-_=.").find(text[0]) != std::string_view::npos)
    text.remove_prefix(1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

// Returns the name without folders and suffix.
std::string stem_of(const std::string& path) {
  std::string text = path;
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return std::filesystem::path(text).stem();
}

// Returns the number behind one of the words.
std::optional<std::uint64_t> counted_number(std::string_view name) {
  for (const std::string_view word : kCounters) {
    for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
      std::string_view rest = name.substr(at + word.size());
      if (word == "iter" && rest.starts_with("ation")) rest.remove_prefix(5);
      if (const auto number = leading_number(rest)) return number;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> step_of(const std::string& path) {
  const std::string name = stem_of(path);
  const std::string_view view = name;
  if (const auto number = counted_number(view)) return number;
  const std::size_t last = view.find_last_of(kDecimalDigits);
  if (last == view.npos) return std::nullopt;
  const std::size_t before = view.find_last_not_of(kDecimalDigits, last);
  return leading_number(view.substr(before == view.npos ? 0 : before + 1));
}

std::optional<std::uint64_t> certain_step_of(const std::string& path) {
  const std::string name = stem_of(path);
  if (const auto number = counted_number(name)) return number;
  // Of several numbers, none is known to count.
  const std::size_t begin = name.find_first_of(kDecimalDigits);
  if (begin == name.npos) return std::nullopt;
  const std::size_t end = name.find_first_not_of(kDecimalDigits, begin);
  if (end != name.npos && name.find_first_of(kDecimalDigits, end) != name.npos) return std::nullopt;
  return step_of(path);
}

std::vector<std::string> newest_first(std::vector<std::string> paths) {
  std::reverse(paths.begin(), paths.end());
  std::stable_sort(paths.begin(), paths.end(), [](const std::string& a, const std::string& b) {
    return step_of(a).value_or(0) > step_of(b).value_or(0);
  });
  return paths;
}

std::vector<std::string> listed_checkpoints(const std::string& path,
                                            const std::vector<std::string>& more) {
  std::vector<std::string> paths = {path};
  paths.insert(paths.end(), more.begin(), more.end());
  std::vector<std::string> listed;
  for (const std::string& one : paths) {
    const auto below = formats::checkpoints_below(one);
    for (const auto& found : below) listed.push_back(found.native());
    if (below.empty() && !more.empty()) listed.push_back(one);
  }
  return listed;
}

void note_folders_apart(const std::string& path, const CommonOptions& common,
                        const Streams& streams) {
  if (common.quiet || common.json) return;
  constexpr std::size_t kMostFolders = 5;
  const std::vector<std::string> apart = formats::folders_apart(path);
  if (apart.empty()) return;
  std::string names;
  for (std::size_t i = 0; i < apart.size() && i < kMostFolders; ++i)
    names += (i == 0 ? "" : ", ") + formats::escape(apart[i]);
  if (apart.size() > kMostFolders)
    names += formats::cat(" and ", apart.size() - kMostFolders, " more");
  streams.err << "fsdp-ckpt: note: " << formats::escape(path) << ": only its own files were read; "
              << "folders inside are checkpoints too: " << names << '\n';
}

}  // namespace fsdp::cli
