// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/trainer_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "formats/base/error.h"
#include "formats/base/file.h"
#include "formats/base/text.h"
#include "formats/layout/torch_file.h"
#include "formats/layout/torch_globals.h"
#include "formats/layout/torch_save.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kStems = {"scheduler", "scaler", "sampler",
                                                    "dl_state_dict", "rng_state"};
constexpr std::array<std::string_view, 3> kSuffixes = {".pt", ".pth", ".bin"};

std::string stem_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

// "_3", or nothing.
bool is_number_behind(std::string_view text) {
  return text.empty() || (text.size() > 1 && text[0] == '_' &&
                          std::all_of(text.begin() + 1, text.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; }));
}

// Nothing of it runs when Python loads it, and nothing is of classes that only the trainer knows.
bool is_plain(const fs::path& path) {
  try {
    const auto file = File::open(path);
    return sniff_torch_stream(*file) == TorchStream::kZip &&
           read_torch_file(*file).unknown_globals.empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool is_trainer_file(const std::string& name) {
  const std::string stem = stem_of(name);
  return std::any_of(kStems.begin(), kStems.end(),
                     [&](std::string_view base) {
                       return stem.starts_with(base) &&
                              is_number_behind(std::string_view(stem).substr(base.size()));
                     }) &&
         std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.substr(stem.size()) == suffix; });
}

std::vector<CheckpointPart> trainer_parts(const fs::path& folder, std::vector<std::string>& names,
                                          bool one_value) {
  std::vector<CheckpointPart> parts;
  std::vector<std::string> others;
  for (const std::string& name : names) {
    if (!is_trainer_file(name) || fs::is_directory(folder / name) || !is_plain(folder / name)) {
      others.push_back(name);
      continue;
    }
    parts.push_back({.checkpoint = open_torch_save(folder / name),
                     .name = stem_of(name),
                     .one_value = one_value,
                     .folder = {}});
  }
  names = std::move(others);
  return parts;
}

Findings left_out_finding(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (!name.starts_with('.')) text += (text.empty() ? "" : ", ") + escape(name);
  }
  if (text.empty()) return {};
  return {{.code = ErrorCode::kExtraFile,
           .message = "not read, and in no output: " + text,
           .file = {},
           .key = {},
           .bytes = {},
           .severity = Finding::Severity::kWarning}};
}

}  // namespace fsdp::formats
