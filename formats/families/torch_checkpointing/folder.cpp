// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch_checkpointing/folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/store/place.h"
#include "formats/families/torch_checkpointing/metadata.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

namespace fs = std::filesystem;

// Configurations have kilobytes.
constexpr std::uint64_t kMaxBytes = 64U << 20U;

struct ToValue {
  Value operator()(std::nullptr_t) const { return {}; }
  Value operator()(bool value) const { return Value::boolean(value); }
  Value operator()(std::int64_t value) const { return Value::integer(value); }
  Value operator()(std::uint64_t value) const {
    std::string bytes(9, '\0');  // two's complement; the ninth byte is the sign
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFFU);
    return Value::big_int(std::move(bytes));
  }
  Value operator()(double value) const { return Value::floating(value); }
  Value operator()(const std::string& value) const { return Value::string(value); }
  Value operator()(const Json::Array& array) const {
    std::vector<Value> items;
    items.reserve(array.size());
    for (const Json& item : array) items.push_back(std::visit(*this, item.storage()));
    return Value::list(std::move(items));
  }
  Value operator()(const Json::Object& object) const {
    std::vector<Value::Entry> entries;
    entries.reserve(object.size());
    for (const auto& [key, member] : object)
      entries.emplace_back(Value::string(key), std::visit(*this, member.storage()));
    return Value::dict(std::move(entries));
  }
  Value operator()(const Unheld&) const { return {}; }
};

class JsonValues : public StoredCheckpoint {
 public:
  JsonValues(std::shared_ptr<const Folder> folder, const std::string& name)
      : folder_(std::move(folder)), pool_(*folder_) {
    index_.files.push_back({.name = name});
    pool_.examine(index_.files);
    const auto file = pool_.get(0);
    description_ = {file->name(), "json", "values"};
    in_context(file->name(), [&] {
      root_ = std::visit(ToValue(), parse_json(read_text(*file, kMaxBytes)).storage());
    });
    for (Leaf& leaf : leaves_of(root_)) {
      if (!values_.emplace(leaf.key, leaf.value).second) {
        throw Error(ErrorCode::kKey,
                    cat(file->name(), ": ", quote(leaf.key, 200), ": two entries have this name"));
      }
      index_.add(ValueEntry{std::move(leaf.key), std::move(leaf.path), {0, 0, 0, file->size()}});
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t /*chunk*/) const override {
    throw Error(ErrorCode::kNotFound, quote(tensor.key) + ": JSON files hold no tensors");
  }
  Value value(const ValueEntry& value) const override { return values_.at(value.key); }
  ChunkData storage(const StorageRef& storage) const override {
    throw Error(ErrorCode::kStorage, quote(storage.key) + ": JSON files hold no storages");
  }
  std::optional<Value> tree() const override { return root_; }
  // Opening has read the whole file, and the format has no checksum.
  VerifyReport verify(const VerifyOptions& /*options*/) const override {
    VerifyReport report;
    report.items = 1;
    report.bytes_unchecked = *index_.files[0].bytes;
    return report;
  }
  void check_unchanged() const override { pool_.check_unchanged(); }

 private:
  std::shared_ptr<const Folder> folder_;
  mutable FilePool pool_;
  Value root_;
  std::unordered_map<std::string, Value> values_;
};

// Opens a JSON file; objects become dicts, arrays lists.
// Throws: kLimitSize, kJson, kJsonDepth, kIo, beginning with the path.
std::unique_ptr<StoredCheckpoint> open_json_values(const std::filesystem::path& folder,
                                                   const std::string& name) {
  return std::make_unique<JsonValues>(folder_at(folder), name);
}

// A pickle larger than this is not the metadata of any existing checkpoint.
constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30U;
// The beginning of the folder's name until every rank has written (CheckpointWriterConfig's
// default).
constexpr std::string_view kUnfinished = "tmp_";
// Checksums of the folder's files, which checks/integrity_file.h compares.
constexpr std::string_view kIntegrityName = "_integrity_manifest.json";
// The most missing files of an item that get a finding each.
constexpr std::size_t kMaxMissing = 64;

using RanksOfItem = std::map<std::int64_t, std::string>;  // file names

// Returns whether the folder's listing shows if this file exists: metadata may name too many files
// to ask the kernel about each.
bool is_name(std::string_view path) {
  constexpr std::size_t kMaxNameBytes = 255;
  return !path.empty() && path.size() <= kMaxNameBytes && path.front() != '.' &&
         path.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// Returns item and rank of `<item>_<rank><suffix>`.
std::optional<std::pair<std::string, std::int64_t>> item_in(std::string_view name,
                                                            std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  name.remove_suffix(suffix.size());
  const std::size_t line = name.rfind('_');
  if (line == std::string_view::npos || line == 0) return std::nullopt;
  const std::string_view digits = name.substr(line + 1);
  std::int64_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      digits != std::to_string(rank))
    return std::nullopt;
  return std::pair(std::string(name.substr(0, line)), rank);
}

std::map<std::string, RanksOfItem> items_in(const std::set<std::string>& names,
                                            std::string_view suffix) {
  std::map<std::string, RanksOfItem> items;
  for (const std::string& name : names) {
    if (name.find('/') != std::string::npos) continue;
    if (auto found = item_in(name, suffix)) items[found->first].emplace(found->second, name);
  }
  return items;
}

Metadata read_metadata_file(const Folder& folder) {
  const auto file = folder.open_member(kMetadataName);
  return in_context(file->name(), [&] {
    check_size(*file, kMaxMetadataBytes);
    Metadata metadata = read_metadata(*file);
    file->check_unchanged();
    return metadata;
  });
}

class FolderReader {
 public:
  explicit FolderReader(const fs::path& path) : path_(path), folder_(folder_at(path)) {
    for (std::string& name : folder_->list_files()) listed_.insert(std::move(name));
    names_ = listed_;
  }

  std::unique_ptr<StoredCheckpoint> run() {
    std::optional<Metadata> metadata;
    if (names_.erase(kMetadataName) != 0) metadata = read_metadata_file(*folder_);
    for (const std::string_view known : {kIntegrityName, kSealName})
      names_.erase(std::string(known));
    note_unfinished();
    CheckpointDescription description{escape(path_.native()), "torch-checkpointing", "per-rank",
                                      std::nullopt, 1};
    if (metadata) {
      description.layout = "sharded";
      description.version = metadata->version;
      description.ranks = metadata->world_size;
      for (const Item& item : metadata->items) add_described(item);
    }
    const auto files = items_in(names_, ".pt");
    for (const auto& [name, ranks] : files)
      description.ranks = std::max(description.ranks, ranks.rbegin()->first + 1);
    for (const auto& [name, ranks] : files) {
      note_missing(name, ranks, description.ranks);
      RankFiles set{name, {ranks.begin(), ranks.end()}};
      add(name, open_rank_files(path_, set));
      drop_names(ranks);
    }
    for (const auto& [name, ranks] : items_in(names_, ".json")) add_json(name, ranks);
    Findings left = left_out_finding({names_.begin(), names_.end()});
    std::move(left.begin(), left.end(), std::back_inserter(findings_));
    return combine_checkpoints(std::move(parts_), std::move(description), std::move(findings_));
  }

 private:
  void add(const std::string& name, std::unique_ptr<StoredCheckpoint> checkpoint) {
    parts_.push_back({.checkpoint = std::move(checkpoint), .name = name});
  }

  void drop_names(const RanksOfItem& ranks) {
    for (const auto& [rank, name] : ranks) names_.erase(name);
  }

  void add_described(const Item& item) {
    std::vector<std::int64_t> present;
    std::vector<std::int64_t> missing;
    for (std::size_t r = 0; r < item.needed.size(); ++r) {
      const auto rank = static_cast<std::int64_t>(r);
      const std::string name = item.file(rank).path;
      names_.erase(name);
      const bool there = listed_.contains(name) ||
                         (!is_name(name) && folder_->open_member_if_present(name) != nullptr);
      if (there) {
        present.push_back(rank);
      } else if (item.needed[r]) {
        missing.push_back(rank);
      }
    }
    const std::size_t named = std::min(missing.size(), kMaxMissing);
    for (const std::int64_t rank : std::span(missing).first(named)) {
      // A missing file leaves a hole in tensors, which is reported; with no file at all, no tensor
      // shows the damage.
      findings_.push_back(
          {.code = ErrorCode::kShardMissing,
           .message = cat("is missing: ", kMetadataName, " says that rank ", rank,
                          " holds parts of ", quote(item.name, 200)),
           .file = item.file(rank).path,
           .severity = present.empty() ? Finding::Severity::kDamage : Finding::Severity::kWarning});
    }
    if (named != missing.size()) {
      findings_.push_back(warning(ErrorCode::kShardMissing,
                                  cat("files of ", missing.size() - named, " more ranks of ",
                                      quote(item.name, 200), " are missing")));
    }
    if (present.empty()) return;
    try {
      ItemParts parts = open_item(path_, item, present);
      std::move(parts.findings.begin(), parts.findings.end(), std::back_inserter(findings_));
      add(item.name, std::move(parts.checkpoint));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      leave_out(item.name, item.file(present[0]).path, error, Finding::Severity::kUnknown);
    }
  }

  void leave_out(const std::string& item, const std::string& file, const Error& error,
                 Finding::Severity severity) {
    findings_.push_back({.code = error.code(),
                         .message = cat("not read, and in no output: ", error.what()),
                         .file = file,
                         .key = item,
                         .severity = severity});
  }

  void add_json(const std::string& name, const RanksOfItem& ranks) {
    const std::string& file = ranks.begin()->second;
    try {
      add(name, open_json_values(path_, file));
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      leave_out(name, file, error, Finding::Severity::kWarning);
    }
    // Reads the lowest rank's file; the others must only exist.
    for (const auto& [rank, other] : ranks) {
      try {
        if (other != file) folder_->open_member(other);
      } catch (const Error& error) {
        if (is_no_answer(error.code())) throw;
        leave_out({}, other, error, Finding::Severity::kWarning);
      }
    }
    drop_names(ranks);
  }

  // The metadata do not tell which ranks have an item without cut tensors; usually all do.
  void note_missing(const std::string& item, const RanksOfItem& ranks, std::int64_t world) {
    const SomeNames missing = missing_ranks(ranks, world);
    if (missing.count() == 0) return;
    findings_.push_back(
        warning(ErrorCode::kShardMissing, cat("no file of ", quote(item, 200), " by rank ",
                                              missing.text(), " of ", world, " ranks")));
  }

  void note_unfinished() {
    const std::string name = name_of_place(path_);
    if (!name.starts_with(kUnfinished)) return;
    findings_.push_back(warning(ErrorCode::kNoMetadata,
                                cat("the folder's name begins with ", quote(kUnfinished),
                                    ", as it does until all ranks have written: the save was "
                                    "interrupted, or is still running")));
  }

  fs::path path_;
  std::shared_ptr<const Folder> folder_;
  std::set<std::string> listed_;  // all files
  std::set<std::string> names_;   // files that belong to no item yet
  std::vector<CheckpointPart> parts_;
  Findings findings_;
};

}  // namespace

bool is_described_folder(const Listing& folder) {
  try {
    const auto file = folder.folder->open_member_if_present(kMetadataName);
    return file != nullptr && looks_like_metadata(*file);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return false;  // a link or a folder of that name is not from this package
  }
}

bool is_undescribed_folder(const Listing& folder) {
  const auto items = items_in({folder.names.begin(), folder.names.end()}, ".pt");
  return std::ranges::any_of(items, [&](const auto& item) {
    return holds_sharded_tensors(folder.path() / item.second.begin()->second);
  });
}

std::unique_ptr<StoredCheckpoint> open_folder(const fs::path& folder) {
  return FolderReader(folder).run();
}

}  // namespace fsdp::formats::torch_checkpointing
