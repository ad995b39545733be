// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/map_choice.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/changes/map/builtin.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// Operations that cannot be undone from their results.
constexpr std::array<std::string_view, 7> kOneWay = {"add",      "cast",  "dequantize", "low_rank",
                                                     "quantize", "scale", "trim"};

bool only_moves(const std::vector<formats::map::MapStep>& steps) {
  return std::none_of(steps.begin(), steps.end(), [](const formats::map::MapStep& step) {
    return std::any_of(step.operations.begin(), step.operations.end(), [](const std::string& name) {
      return std::find(kOneWay.begin(), kOneWay.end(), name) != kOneWay.end();
    });
  });
}

// The most maps that are named because their names hold a word.
constexpr std::size_t kMostMaps = 6;

std::string rules_text(const std::string& word) {
  if (formats::is_folder(word)) {
    throw Error(ErrorCode::kUsage, formats::escape(word) +
                                       ": is a folder, expected rules: a built-in map or a file; "
                                       "fsdp-ckpt maps lists the built-in ones");
  }
  if (formats::exists_at(word)) return read_text_file(word);
  for (const auto& map : formats::map::builtin_maps()) {
    if (map.name == word) return std::string(map.text);
  }
  throw Error(ErrorCode::kNotFound, cat(formats::escape(word),
                                        ": is neither a file nor a built-in map", meant_map(word)));
}

}  // namespace

std::string meant_map(const std::string& word) {
  std::vector<std::string> names;
  std::vector<std::string> with_word;
  for (const auto& map : formats::map::builtin_maps()) {
    names.emplace_back(map.name);
    if (map.name.find(word) != map.name.npos && word.size() > 2) with_word.emplace_back(map.name);
  }
  const std::string near = formats::nearest(word, names);
  if (!near.empty()) return "; did you mean " + near + "?";
  if (with_word.empty() || with_word.size() > kMostMaps) return "; fsdp-ckpt maps lists those";
  return "; there are " + formats::joined(with_word, ", ");
}

formats::map::MapOptions MapChoice::options(const std::string& word,
                                            formats::map::Direction direction) const {
  formats::map::MapOptions options;
  options.rules = formats::map::parse_rules(rules_text(word), formats::escape(word), direction);
  for (const std::string& parameter : parameters) {
    const auto [name, value] = formats::map::parse_parameter(parameter);
    if (!options.given.values.emplace(name, value).second)
      throw Error(ErrorCode::kUsage, cat("--set gives ", formats::quote(name), " twice"));
  }
  if (config.empty()) return options;
  options.given.config_name = formats::escape(config);
  try {
    options.given.config = formats::parse_json(read_text_file(config));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kJson && error.code() != ErrorCode::kJsonDepth) throw;
    throw error.in(options.given.config_name);
  }
  return options;
}

std::optional<formats::map::Mapped> MapChoice::undone(
    const formats::Checkpoint& made, const formats::Value& content, const std::string& word,
    const std::vector<formats::map::MapStep>& steps) const {
  if (!only_moves(steps)) return std::nullopt;
  try {
    return formats::map::map_content(made, content,
                                     options(word, formats::map::Direction::kReverse));
  } catch (const Error& error) {
    const ErrorCode code = error.code();
    if (code != ErrorCode::kUnsupported && code != ErrorCode::kUsage && code != ErrorCode::kKey)
      throw;
    return std::nullopt;
  }
}

}  // namespace fsdp::cli
