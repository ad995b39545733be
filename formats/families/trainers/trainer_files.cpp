// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/trainer_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/torch/torch.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/state/content/torch_globals.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kStems = {"scheduler", "scaler", "sampler",
                                                    "dl_state_dict", "rng_state"};
constexpr std::array<std::string_view, 3> kSuffixes = {".pt", ".pth", ".bin"};
// State of an object that was registered with Accelerate, as averages of weights are.
constexpr std::string_view kRegistered = "custom_checkpoint";
constexpr std::string_view kRegisteredSuffix = ".pkl";

std::string stem_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

// Returns whether Python loads the file without running code and without the trainer's own classes.
// Throws what reading a torch.save file throws.
bool is_plain(const fs::path& path) {
  const auto file = file_at(path);
  if (sniff_torch_stream(*file) == TorchStream::kLegacy) return false;
  return read_torch_save(*file).unknown_globals.empty();
}

}  // namespace

std::optional<std::int64_t> number_behind(std::string_view text) {
  if (text.empty()) return 0;
  std::uint64_t number = 0;  // no sign is read
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), number);
  if (text[0] != '_' || error != std::errc() || end != text.data() + text.size() ||
      number > INT64_MAX)
    return std::nullopt;
  return static_cast<std::int64_t>(number);
}

bool is_trainer_file(const std::string& name) {
  const std::string stem = stem_of(name);
  if (stem.starts_with(kRegistered) && name.substr(stem.size()) == kRegisteredSuffix)
    return number_behind(std::string_view(stem).substr(kRegistered.size())).has_value();
  return std::ranges::any_of(kStems,
                             [&](std::string_view base) {
                               return stem.starts_with(base) &&
                                      number_behind(std::string_view(stem).substr(base.size()));
                             }) &&
         std::ranges::any_of(kSuffixes, [&](std::string_view suffix) {
           return name.substr(stem.size()) == suffix;
         });
}

Findings left_out_finding(const std::vector<std::string>& names, bool kept) {
  SomeNames left;
  for (const std::string& name : names) {
    if (!name.starts_with('.') && !is_description_name(name)) left.add(escape(name));
  }
  if (left.count() == 0) return {};
  return {warning(ErrorCode::kExtraFile,
                  cat("not read, and in no output",
                      kept ? " but one of the same layout (reshard)" : "", ": ", left.text()))};
}

TrainerFiles trainer_files(const fs::path& folder, const std::vector<std::string>& names,
                           bool one_value, bool kept) {
  TrainerFiles result;
  std::vector<std::string> others;
  Findings damaged;
  for (const std::string& name : names) {
    try {
      if (!is_trainer_file(name) || is_folder(folder / name) || !is_plain(folder / name)) {
        others.push_back(name);
        continue;
      }
      result.parts.push_back({.checkpoint = open_torch_save(folder / name),
                              .name = stem_of(name),
                              .one_value = one_value});
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      if (error.code() == ErrorCode::kUnsupported) {
        others.push_back(name);
        continue;
      }
      damaged.push_back({.code = error.code(),
                         .message = cat(error.what(), "; without this file, the rest can be used"),
                         .file = name,
                         .hint = error.hint()});
    }
  }
  result.findings = left_out_finding(others, kept);
  std::move(damaged.begin(), damaged.end(), std::back_inserter(result.findings));
  return result;
}

std::unique_ptr<StoredCheckpoint> with_trainer_files(std::unique_ptr<StoredCheckpoint> checkpoint,
                                                     const fs::path& root) {
  TrainerFiles beside = trainer_files(root, deepspeed::beside_tags(*folder_at(root)), false, true);
  if (beside.parts.empty() && beside.findings.empty()) return checkpoint;
  CheckpointDescription description = checkpoint->description();
  std::vector<CheckpointPart> parts;
  const std::string tag = fs::path(description.path).filename().native() + "/";
  parts.push_back({.checkpoint = std::move(checkpoint), .folder = tag});
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), std::move(description), std::move(beside.findings));
}

}  // namespace fsdp::formats
