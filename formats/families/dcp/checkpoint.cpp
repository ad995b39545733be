// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/files/file.h"
#include "formats/families/dcp/item.h"
#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/metadata.h"
#include "formats/families/dcp/names.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::dcp {
namespace {

// A pickle larger than this is not the metadata of any existing checkpoint.
constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{8} << 30U;
// Files of ranks that are parsed before they are joined, and the threads that parse them: some wait
// for the disk or the store.
constexpr std::size_t kMetadataAtOnce = 128;
constexpr std::size_t kMetadataThreads = 16;

Metadata read_metadata_file(const Folder& folder, const std::string& name,
                            const std::set<std::string>& allowed) {
  const auto file = folder.open_member(name);
  return in_context(file->name(), [&] {
    check_size(*file, kMaxMetadataBytes);
    file->read_ahead(0, file->size());
    Metadata metadata = read_metadata(*file, name, allowed);
    file->check_unchanged();
    return metadata;
  });
}

// Throws an error that says what the folder holds instead of `.metadata`.
[[noreturn]] void throw_no_metadata(const Folder& folder, const std::vector<std::string>& names) {
  std::string hint;
  const bool temp = std::ranges::find(names, kMetadataTempName) != names.end();
  const bool data =
      std::ranges::any_of(names, [](const auto& n) { return rank_of_data_file(n).has_value(); });
  if (temp) {
    hint = ", but .metadata.tmp: the save was interrupted";
  } else if (data) {
    hint = ", but data files: the save was interrupted, or is still running";
  }
  throw Error(ErrorCode::kNoMetadata, escape(folder.path().native()) + ": has no .metadata" + hint,
              {Remedy::kEarlier});
}

// Reads the files of the ranks, many at once on all cores, and joins them in their order.
Metadata read_local_metadata(const Folder& folder, const std::vector<std::string>& names,
                             const std::set<std::string>& allowed) {
  std::vector<std::string> local;
  std::ranges::copy_if(names, std::back_inserter(local), [](const std::string& name) {
    return rank_of_local_metadata(name).has_value();
  });
  if (local.empty()) throw_no_metadata(folder, names);
  Metadata joined;
  for (std::size_t first = 0; first < local.size(); first += kMetadataAtOnce) {
    std::vector<Metadata> parts(std::min(kMetadataAtOnce, local.size() - first));
    run_each(parts.size(), kMetadataThreads, [&](std::size_t i) {
      parts[i] = read_metadata_file(folder, local[first + i], allowed);
    });
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (first + i == 0) {
        joined = std::move(parts[i]);
      } else {
        merge_metadata(joined, std::move(parts[i]));
      }
    }
  }
  return joined;
}

// Returns the layout, as the keys and the files beside the metadata tell.
std::string layout_of(const Index& index, const std::vector<std::string>& names, bool rank_local) {
  if (std::ranges::find(names, kLightningMetaName) != names.end()) return "lightning";
  if (rank_local) return "rank-local";
  const auto top = [](const KeyPath& path) {
    const auto* step = path.empty() ? nullptr : std::get_if<std::string>(&path[0]);
    return step == nullptr ? std::string() : *step;
  };
  std::set<std::string> tops;
  bool flattened_optimizer = false;
  const auto note = [&](const KeyPath& path) {
    tops.insert(top(path));
    flattened_optimizer = flattened_optimizer || (path.size() == 2 && top(path) == "optimizer");
  };
  // Megatron-LM puts its version beside a model that Megatron-FSDP wrapped.
  bool megatron_fsdp = false;
  bool version = false;
  for (const TensorEntry& tensor : index.tensors) {
    note(tensor.path);
    megatron_fsdp = megatron_fsdp || tensor.key.starts_with("model.module.");
  }
  for (const ValueEntry& value : index.values) {
    note(value.path);
    version = version || value.key == "checkpoint_version";
  }
  if (megatron_fsdp && version) return "fsdp_dtensor";
  if (tops.contains("train_state") || flattened_optimizer) return "torchtitan";
  return "generic";
}

class DcpCheckpoint : public StoredCheckpoint {
 public:
  DcpCheckpoint(std::shared_ptr<const Folder> folder, const std::set<std::string>& allowed,
                Team& team, const MetadataPlace* place)
      : folder_(std::move(folder)), pool_(*folder_) {
    const std::vector<std::string> names = folder_->list();
    const bool central = place != nullptr || std::ranges::find(names, kMetadataName) != names.end();
    Metadata metadata;
    if (team.leads() && place != nullptr) {
      metadata = read_metadata_file(*folder_at(place->folder), place->name, allowed);
    } else if (team.leads()) {
      metadata = central ? read_metadata_file(*folder_, std::string(kMetadataName), allowed)
                         : read_local_metadata(*folder_, names, allowed);
    }
    metadata = share_metadata(team, std::move(metadata));
    index_ = std::move(metadata.index);
    replicas_ = std::move(metadata.replicas);
    findings_ = std::move(metadata.findings);
    examine_files(names, central);
    description_ = {escape(folder_->path().native()), "dcp", layout_of(index_, names, !central),
                    metadata.version, count_ranks()};
    using Common = MegatronFolder::Common;
    const ValueEntry* const common = common_item();
    auto megatron = megatron_folder(*folder_, names, common != nullptr);
    if (megatron) {
      description_.layout = megatron->layout;
      if (megatron->version) description_.version = std::move(megatron->version);
      std::move(megatron->findings.begin(), megatron->findings.end(),
                std::back_inserter(findings_));
    }
    const std::string_view state_file = state_file_of(description_.layout);
    if (megatron && megatron->common == Common::kItem) {
      take_common_apart(*common);
    } else if (!state_file.empty() && (!megatron || megatron->common == Common::kFile)) {
      add_state_file(std::string(state_file));
    }
    all_values_ = index_.values;
    all_entries_ = index_.order.size();
    for (std::size_t i = 0; i < all_values_.size(); ++i)
      value_numbers_.emplace(all_values_[i].key, i);
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const BoxView box = tensor.chunks.box(chunk);
    if (volume(box) != tensor.numel()) {
      if (const std::string torn = compare_replicas(tensor, chunk); !torn.empty()) {
        throw Error(ErrorCode::kMismatch, cat(escape(folder_->path().native()), ": ",
                                              quote(tensor.key, 200), ": ", torn));
      }
    }
    return chunk_at(tensor, chunk, tensor.chunks.location(chunk));
  }

  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    const std::uint64_t bytes = item_bytes(tensor.dtype);
    const Location& location = tensor.chunks.location(chunk);
    if (!index_.transforms[location.transform].empty()) return expect(location, 0, UINT64_MAX);
    return expect(location, part.first * bytes, (part.first + part.count) * bytes);
  }

  bool expect_value(const ValueEntry& value) const override {
    return folder_->read_by_requests() && expect(value.location, 0, UINT64_MAX);
  }

  Value value(const ValueEntry& value) const override {
    const Item item = open_value(value);
    if (!value.member) return item.torch.root;
    const Value* const common = common_state_of(item.torch.root);
    const Value* entry = member(common == nullptr ? item.torch.root : *common, value.key);
    return entry == nullptr ? Value() : *entry;
  }

  ChunkData storage(const StorageRef& storage) const override {
    const std::uint64_t number = storage.archive - 1;
    if (number < all_values_.size()) {
      const Item item = open_value(all_values_[number]);
      return storage_data(item.torch, storage, item.place, spill_);
    }
    const Item item = open_object(number - all_values_.size());
    return storage_data(item.torch, storage, item.place, spill_);
  }

  std::optional<Value> tensor_object(std::size_t tensor) const override {
    const TensorEntry& entry = index_.tensors.at(tensor);
    if (entry.chunks.size() != 1 || volume(entry.chunks.box(0)) != entry.numel())
      return std::nullopt;
    const Item item = open_object(tensor);
    return special_tensor(item.torch.root) == "subclass" ? std::optional(item.torch.root)
                                                         : std::nullopt;
  }

  VerifyReport verify(const VerifyOptions& options) const override {
    return verify_folder(
        {index_, findings_, *folder_, pool_, spill_, description_.layout == "rank-local",
         index_.order.size() != all_entries_, replicas_,
         [this](const TensorEntry& tensor, std::size_t chunk) {
           return compare_replicas(tensor, chunk);
         }},
        options);
  }

  void check_unchanged() const override { pool_.check_unchanged(); }

 private:
  ChunkData chunk_at(const TensorEntry& tensor, std::size_t chunk, const Location& location) const {
    const Item item = open(location, tensor.key, 0);
    return item_tensor(item, tensor.key, tensor.dtype, tensor.chunks.box(chunk).size, spill_);
  }

  // Returns how a chunk differs from its replicas; empty if it does not.  Skips replicas in missing
  // files.  Throws: the errors of reading.
  std::string compare_replicas(const TensorEntry& tensor, std::size_t chunk) const {
    const auto found = replicas_.find(tensor.key);
    if (found == replicas_.end()) return {};
    const auto is_there = [&](const Location& location) {
      return index_.files[location.file].bytes.has_value();
    };
    const Location& own = tensor.chunks.location(chunk);
    for (const Replica& replica : found->second) {
      if (replica.chunk != chunk || !is_there(own) || !is_there(replica.location)) continue;
      const BoxView box = tensor.chunks.box(chunk);
      const ChunkData first = chunk_at(tensor, chunk, own);
      if (same_elements(first, chunk_at(tensor, chunk, replica.location), box.size)) continue;
      return cat(index_.files[own.file].name, " and ", index_.files[replica.location.file].name,
                 " hold ", box_text(box),
                 " with other bytes: replicas that differ, or tensors of several groups of ranks "
                 "(experts) under one name");
    }
    return {};
  }

  // Hint: the item is opened, and then bytes [begin, end) of its elements are read.
  bool expect(const Location& location, std::uint64_t begin, std::uint64_t end) const {
    try {
      const auto file = pool_.get_at_hand(location.file);
      return file && expect_item(*file, location, begin, end);
    } catch (const Error&) {
      return false;  // opening the item meets the same error and reports it
    }
  }

  Item open(const Location& location, const std::string& key, std::uint64_t archive) const {
    return open_item(pool_.get(location.file), location, index_.transforms[location.transform], key,
                     archive, spill_);
  }

  // Opens the item of a value.  Archives inside values are numbered by the value's place in the
  // folder, from 1 on.
  Item open_value(const ValueEntry& value) const {
    return open(value.location, value.key, value_numbers_.at(value.key) + 1);
  }

  // Opens the item of a tensor that is an object of a library's class.  Archives of such tensors
  // are numbered after those of values.
  Item open_object(std::size_t tensor) const {
    const TensorEntry& entry = index_.tensors.at(tensor);
    return open(entry.chunks.location(0), entry.key, all_values_.size() + tensor + 1);
  }

  // Learns the sizes of the files that the metadata names, and warns of other files beside them.
  void examine_files(const std::vector<std::string>& names, bool central) {
    pool_.examine(index_.files);
    std::set<std::string> named;
    for (const FileEntry& file : index_.files) named.insert(file.name);
    const auto warn = [&](const std::string& file, std::string message) {
      findings_.push_back(warning(ErrorCode::kExtraFile, std::move(message), file));
    };
    for (const std::string& name : names) {
      if (rank_of_data_file(name) && !named.contains(name)) {
        const auto file = folder_->open_member_if_present(name);
        // A rank with nothing to write leaves an empty file.
        if (file && file->size() != 0)
          warn(name, "no item lies in this file: it is left over from another save");
      }
      if (central && rank_of_local_metadata(name))
        warn(name, "is ignored, because the folder has a .metadata");
      if (central && name == kMetadataTempName) {
        warn(name,
             "lies beside .metadata: a later save into this folder was interrupted, and may have "
             "overwritten data");
      }
    }
  }

  std::int64_t count_ranks() const {
    std::set<std::int64_t> ranks;
    for (const FileEntry& file : index_.files) {
      if (file.rank) ranks.insert(*file.rank);
    }
    return ranks.empty() ? 1 : static_cast<std::int64_t>(ranks.size());
  }

  // meta.pt or common.pt holds the remaining state of the trainer: each of its entries is a value
  // of the checkpoint.
  void add_state_file(const std::string& name) {
    const auto number = static_cast<std::uint32_t>(index_.files.size());
    index_.files.push_back({.name = name});
    pool_.examine(index_.files);
    const Location location{number, 0, 0, index_.files.back().bytes.value_or(0)};
    const Item item = open(location, name, 0);
    const auto entries = mapping_entries(item.torch.root);
    if (!entries) {
      throw Error(ErrorCode::kMetaType,
                  item.place.file + ": does not hold a dict, as it does in folders of the layout " +
                      description_.layout);
    }
    in_context(item.place.file, [&] {
      for (ValueEntry& entry : members(*entries, location)) index_.add(std::move(entry));
    });
  }

  // Returns the item of Megatron-Core's common state; nullptr without one.  Lifetime: that of the
  // index.
  const ValueEntry* common_item() const {
    const auto found = std::ranges::find_if(
        index_.values, [](const ValueEntry& value) { return value.key == kMegatronCommonKey; });
    return found == index_.values.end() ? nullptr : &*found;
  }

  // Makes each entry of the common state a value of the checkpoint, in place of the item.  An item
  // that cannot be opened stays what it is: reading or verifying it reports the error.
  void take_common_apart(const ValueEntry& common) {
    const Location location = common.location;
    std::optional<Item> item;
    try {
      item = open(location, common.key, 0);
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      return;
    }
    try {
      const Value* const state = common_state_of(item->torch.root);
      if (!item->stream || state == nullptr) {
        throw Error(ErrorCode::kMetaType,
                    "is not a list of one dict, as Megatron-Core 0.19 writes the common state");
      }
      std::vector<ValueEntry> entries = members(*mapping_entries(*state), location);
      keep_entries(index_, [](const std::string& key) { return key != kMegatronCommonKey; });
      for (ValueEntry& entry : entries) index_.add(std::move(entry));
    } catch (const Error& error) {
      findings_.push_back({.code = error.code(),
                           .message = error.what(),
                           .file = index_.files[location.file].name,
                           .key = std::string(kMegatronCommonKey),
                           .bytes = ByteRange{location.offset, location.offset + location.length}});
    }
  }

  // Returns the entries of a mapping, which lies at `location`, as values.
  // Throws: kKey if a key is not text, or is another entry's.
  std::vector<ValueEntry> members(std::span<const Value::Entry> entries,
                                  const Location& location) const {
    std::vector<ValueEntry> out;
    std::unordered_set<std::string_view> keys;
    for (const auto& [key, value] : entries) {
      const std::string* const name = key.as_string();
      if (name == nullptr) throw Error(ErrorCode::kKey, "a key is not text");
      if (!keys.insert(*name).second)
        throw Error(ErrorCode::kKey, cat("the key ", quote(*name, 200), " occurs twice"));
      out.push_back({*name, {*name}, location, true});
    }
    const auto check = [&](const std::string& key) {
      if (keys.contains(key)) {
        throw Error(ErrorCode::kKey,
                    cat("the key ", quote(key, 200), " is also the key of an item of the folder"));
      }
    };
    for (const TensorEntry& tensor : index_.tensors) check(tensor.key);
    for (const ValueEntry& value : index_.values) check(value.key);
    return out;
  }

  std::shared_ptr<const Folder> folder_;
  Replicas replicas_;
  mutable FilePool pool_;
  mutable Spill spill_;
  std::vector<ValueEntry> all_values_;  // of the folder, not narrowed with the index
  std::unordered_map<std::string, std::uint64_t> value_numbers_;
  std::size_t all_entries_ = 0;  // tensors and values
};

}  // namespace

bool is_dcp_folder(const Listing& folder) {
  return folder.any([](const std::string& name) {
    return name == kMetadataName || rank_of_local_metadata(name).has_value();
  });
}

std::unique_ptr<StoredCheckpoint> open_dcp(const std::filesystem::path& folder,
                                           const std::set<std::string>& allowed_globals, Team& team,
                                           const MetadataPlace* metadata) {
  return std::make_unique<DcpCheckpoint>(folder_at(folder), allowed_globals, team, metadata);
}

}  // namespace fsdp::formats::dcp
