// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/fairscale_sets.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/no_answer.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/trainers/fairscale_metadata.h"

namespace fsdp::formats::fairscale {
namespace {

namespace fs = std::filesystem;

// Reads the first file of a set without raising errors: its own reader reports them.
std::optional<TorchFile> first_file(const fs::path& folder, const RankFiles& set) {
  try {
    const auto file = file_at(folder / set.files[0].second);
    const TorchStream stream = sniff_torch_stream(*file);
    if (stream != TorchStream::kZip && stream != TorchStream::kLegacy) return std::nullopt;
    return read_torch_save(*file);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return std::nullopt;
  }
}

}  // namespace

std::vector<ShardSet> shard_sets(const fs::path& folder, std::vector<std::string>* others) {
  std::vector<ShardSet> sets;
  std::vector<std::pair<RankFiles, Metadata>> bare;  // only metadata
  std::vector<std::pair<RankFiles, TorchFile>> rest;
  for (RankFiles& set : rank_files(folder_at(folder)->list())) {
    auto file = first_file(folder, set);
    if (!file) {
      if (others != nullptr) others->push_back(set.files[0].second);
      continue;
    }
    try {
      const auto shard = find_shard(file->root);
      if (!shard) {
        rest.emplace_back(std::move(set), std::move(*file));
      } else if (shard->weights != nullptr) {
        sets.push_back({std::move(set), std::nullopt});
      } else {
        Metadata metadata = read_metadata(*shard->metadata);
        bare.emplace_back(std::move(set), std::move(metadata));
      }
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      sets.push_back({std::move(set), std::nullopt});  // opening it reports the error
    }
  }
  for (auto& [set, file] : rest) {
    const auto metadata = std::find_if(bare.begin(), bare.end(), [&](const auto& said) {
      return has_weights(file.root, said.second);
    });
    if (metadata != bare.end()) {
      sets.push_back({std::move(set), metadata->first});
    } else if (others != nullptr) {
      others->push_back(set.files[0].second);
    }
  }
  return sets;
}

}  // namespace fsdp::formats::fairscale
