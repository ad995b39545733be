// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/index.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/torch/file_set.h"
#include "formats/families/torch/torch.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".bin.index.json";
constexpr std::string_view kFileSuffix = ".bin";
// The most keys that one finding names.
constexpr std::size_t kMaxNamed = 5;

class TorchIndexCheckpoint : public TorchFileSet {
 public:
  TorchIndexCheckpoint(std::shared_ptr<const Folder> opened, const std::string& index_name)
      : TorchFileSet(std::move(opened)), index_name_(index_name) {
    const safetensors::FileIndex said = safetensors::read_index(folder(), index_name, kFileSuffix);
    for (const safetensors::IndexEntry& entry : said.weight_map)
      owner_.emplace(entry.tensor, entry.file);
    std::vector<std::string> names = safetensors::files_of(said);
    std::ranges::sort(names, natural_less);
    expect_files(names);
    for (const std::string& name : names) add_shard(name);
    note_missing_keys();
    check_total_size(said.total_size);
    description_ = {escape(folder().path().native()), "torch-shards", "hf"};
  }

 private:
  void add_shard(const std::string& name) {
    if (!folder().open_member_if_present(name)) {
      missing_.insert(name);
      return;
    }
    const std::uint32_t file = add_file(name, std::nullopt);
    const auto entries = mapping_entries(torch(file).root);
    if (!entries)
      throw Error(ErrorCode::kMetaType, path_of(file) + ": does not hold a dict, as such files do");
    for (const auto& [key, value] : *entries) {
      if (key.as_string() == nullptr)
        throw Error(ErrorCode::kKey, path_of(file) + ": a key is not text");
      add_entry(*key.as_string(), value, file);
    }
    drop_object(file);
  }

  void add_entry(const std::string& key, const Value& value, std::uint32_t file) {
    const std::string& name = index_.files[file].name;
    const auto owner = owner_.find(key);
    const auto [first, fresh] = found_.try_emplace(key, name);
    if (!fresh) {
      note(cat(quote(key, 200), " is in ", quote(first->second), " and in ", quote(name)), name);
      return;
    }
    if (owner == owner_.end()) {
      note(cat(quote(key, 200), " lies in ", quote(name), ", but is not in the map"), name);
    } else if (owner->second != name) {
      note(cat(quote(key, 200), " lies in ", quote(name), ", but the map says ",
               quote(owner->second)),
           name);
    }
    const auto tensor = dense_tensor(value);
    if (!tensor) {
      add_value({key}, value, file);
      return;
    }
    const std::uint64_t bytes = numel_of(tensor->shape) * item_bytes(tensor->dtype);
    all_bytes_ += bytes;
    // Tied weights are stored once, and total_size counts them once or once per name.
    const auto place = std::tuple(file, tensor->storage->key, tensor->storage_offset);
    if (places_.insert(place).second) distinct_bytes_ += bytes;
    add_tensor({key}, tensor->dtype, tensor->shape,
               {part_of(whole_box(tensor->shape), file, *tensor)});
  }

  // Finds keys of the map that no file has, grouped by the file that should have them.
  void note_missing_keys() {
    std::map<std::string, std::vector<std::string>> lacking;
    for (const auto& [key, file] : owner_) {
      if (!found_.contains(key)) lacking[file].push_back(key);
    }
    for (auto& [file, keys] : lacking) {
      std::ranges::sort(keys, natural_less);
      SomeNames names(kMaxNamed);
      for (const std::string& key : keys) names.add(quote(key, 200));
      const std::string text = names.text();
      const bool gone = missing_.contains(file);
      note(gone ? cat("the file is missing, and no other file has ", text)
                : cat("the map says that it holds ", text, ", which no file does"),
           file, gone ? ErrorCode::kShardMissing : ErrorCode::kIndex);
      missing_.erase(file);
    }
    for (const std::string& file : missing_)
      note("the file is missing", file, ErrorCode::kShardMissing);
  }

  void check_total_size(const std::optional<std::uint64_t>& said) {
    if (!said || !missing_.empty() || *said == all_bytes_ || *said == distinct_bytes_) return;
    const bool damaged = std::ranges::any_of(findings_, [](const Finding& finding) {
      return finding.severity == Finding::Severity::kDamage;
    });
    if (damaged) return;  // the finding gives the reason
    findings_.push_back(
        warning(ErrorCode::kIndex,
                cat("total_size is ", *said, ", and the tensors have ", all_bytes_, " bytes",
                    distinct_bytes_ == all_bytes_
                        ? std::string()
                        : cat(", ", distinct_bytes_, " with tied ones counted once")),
                index_name_));
  }

  void note(std::string message, const std::string& file, ErrorCode code = ErrorCode::kIndex) {
    findings_.push_back({.code = code, .message = std::move(message), .file = file});
  }

  std::string index_name_;
  std::unordered_map<std::string, std::string> owner_;  // the map: file by key
  std::unordered_map<std::string, std::string> found_;  // file by key
  std::set<std::string> missing_;
  std::set<std::tuple<std::uint32_t, std::string, std::uint64_t>> places_;
  std::uint64_t all_bytes_ = 0;
  std::uint64_t distinct_bytes_ = 0;
};

}  // namespace

bool is_torch_index_name(const std::string& name) {
  return name.ends_with(kIndexSuffix);
}

bool holds_torch_index(const Listing& folder) {
  return folder.any(is_torch_index_name);
}

std::string torch_index_of(const Listing& folder) {
  std::string index;
  for (const std::string& name : folder.names) {
    if (!is_torch_index_name(name)) continue;
    if (!index.empty()) {
      throw Error(ErrorCode::kIndex,
                  cat(escape(folder.path().native()), ": has several index files, ", quote(index),
                      " and ", quote(name), "; name one of them"));
    }
    index = name;
  }
  return index;
}

std::unique_ptr<StoredCheckpoint> open_torch_index(const fs::path& folder,
                                                   const std::string& index) {
  return std::make_unique<TorchIndexCheckpoint>(folder_at(folder), index);
}

}  // namespace fsdp::formats
