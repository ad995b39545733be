// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/rewritten_dcp.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/files/shared_files.h"
#include "formats/bytes/outputs/file.h"
#include "formats/containers/pickle/value.h"
#include "formats/families/dcp/added_items.h"
#include "formats/families/dcp/megatron.h"
#include "formats/families/dcp/metadata_writer.h"
#include "formats/families/dcp/names.h"
#include "formats/families/torch/writer.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/model/check.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kZipMagic = "PK\3\4";

bool is_empty_mapping(const Value& value) {
  const auto entries = mapping_entries(value);
  return entries && entries->empty();
}

// Returns whether this program puts the file beside data files: it describes the source's files
// only.
bool is_own_note(std::string_view name) {
  return is_seal_name(name) || name == kSharedName;
}

struct Entry {
  std::string key;
  KeyPath path;
  std::optional<std::size_t> tensor;  // in the source's index; else a value
  Location location;                  // of a value
  std::vector<Location> places = {};  // of the tensor's chunks, if they differ from the source's

  const Location& place(const ChunkList& chunks, std::size_t chunk) const {
    return places.empty() ? chunks.location(chunk) : places[chunk];
  }
};

class Rewriting : public RewrittenDcp {
 public:
  Rewriting(const StoredCheckpoint& source, const fs::path& folder, const Value& content,
            const fs::path& destination, const RewriteOptions& options)
      : RewrittenDcp(source, destination, options.output),
        stored_(source),
        index_(source.index()),
        folder_(folder_at(folder)),
        link_(options.link && !is_url(destination.native())),
        new_file_(static_cast<std::uint32_t>(index_.files.size())),
        added_(new_file_) {
    check_source();
    meta_name_ = dcp::state_file_of(source.description().layout);
    if (!meta_name_.empty()) {
      const auto meta = std::ranges::find_if(
          index_.files, [&](const auto& file) { return file.name == meta_name_; });
      meta_file_ = static_cast<std::size_t>(meta - index_.files.begin());
    }
    for (const ValueEntry& value : index_.values) {
      if (!value.member) continue;
      members_.insert(value.key);
      common_ = value.location;
    }
    for (const Leaf& leaf : leaves_of(content)) add_leaf(leaf);
    add_common_item();
    check_keys();
    check_items_are_archives();
    plan_files();
  }

 private:
  void write_files(AtomicFolder& out, const CopyOptions& options, CopyResult& result) override {
    share(out, options, result);
    if (meta_writer_) {
      const CopyResult meta = meta_writer_->write(out.add_file(meta_name_), options);
      result.unchecked_bytes += meta.unchecked_bytes;
    }
    if (!added_.empty()) added_.write(*folder_, index_, out.add_file(new_name_));
    OutputFile& metadata = out.add_file(std::string(dcp::kMetadataName));
    std::uint64_t at = 0;
    write_metadata([&](std::string_view block) {
      metadata.write_at(at, std::as_bytes(std::span(block)));
      at += block.size();
    });
  }

  bool is_megatron() const { return dcp::is_megatron_layout(source_.description().layout); }

  // Returns whether a new value belongs into the one mapping in which the source keeps several
  // values: it replaces one of them, or no rank shards it.
  bool is_meta(const Leaf& leaf) const {
    const auto* key = leaf.path.size() == 1 ? std::get_if<std::string>(&leaf.path[0]) : nullptr;
    if (key == nullptr) return false;
    return members_.contains(*key) || (is_megatron() && key->find("/shard_") == std::string::npos);
  }

  bool meta_stays() const { return !meta_changed_ && meta_.size() == members_.size(); }

  Value meta_value() const {
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : meta_)
      entries.emplace_back(Value::string(key), with_values(source_, value));
    return Value::dict(std::move(entries));
  }

  // Adds Megatron-Core's common state, where it is an item.
  void add_common_item() {
    if (source_.description().layout != dcp::kMegatronItemLayout) return;
    const std::string key(dcp::kMegatronCommonKey);
    entries_.push_back({key,
                        {key},
                        std::nullopt,
                        common_ && meta_stays()
                            ? *common_
                            : added_.add(dcp::common_state_item(meta_value()), key)});
  }

  // Checks what verify --fast checks: reads no data.
  void check_source() const {
    throw_if_damaged(source_.findings(), source_.description().path);
    Findings findings;
    for (const TensorEntry& tensor : index_.tensors) check_coverage(tensor, findings);
    check_extents(index_, findings);
    throw_if_damaged(findings, source_.description().path);
  }

  void add_leaf(const Leaf& leaf) {
    if (const auto number = tensor_number(leaf.value)) {
      const TensorEntry& tensor = index_.tensors[*number];
      const bool same = leaf.path == tensor.path;
      entries_.push_back({same ? tensor.key : leaf.key, leaf.path, *number, {}});
      if (!used_tensors_.insert(*number).second) {
        for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
          entries_.back().places.push_back(added_.copy(tensor.chunks.location(i)));
      }
      ++plan_.tensors;
      return;
    }
    // Flattening drops empty mappings.
    if (is_empty_mapping(leaf.value)) return;
    ++plan_.values;
    if (const auto number = deferred_number(leaf.value)) {
      const ValueEntry& value = index_.values[*number];
      if (value.member) return add_meta(leaf, value);
      const bool same = leaf.path == value.path;
      const bool first = used_values_.insert(*number).second;
      entries_.push_back({same ? value.key : leaf.key, leaf.path, std::nullopt,
                          first ? value.location : added_.copy(value.location)});
      return;
    }
    if (is_meta(leaf)) {
      meta_changed_ = true;
      meta_.emplace_back(leaf.key, leaf.value);
      return;
    }
    entries_.push_back({leaf.key, leaf.path, std::nullopt,
                        added_.add(with_values(source_, leaf.value), leaf.key)});
  }

  void add_meta(const Leaf& leaf, const ValueEntry& value) {
    if (leaf.path.size() != 1 || !std::holds_alternative<std::string>(leaf.path[0])) {
      throw Error(ErrorCode::kUnsupported,
                  cat(quote(value.key, 200), ": lies in ",
                      meta_name_.empty() ? std::string(dcp::kMegatronCommonKey) : meta_name_,
                      " and cannot be renamed to ", quote(leaf.key, 200),
                      ": keys there have a single level"));
    }
    meta_changed_ = meta_changed_ || leaf.path != value.path;
    meta_.emplace_back(leaf.key, leaf.value);
  }

  void check_keys() const {
    std::unordered_map<std::string_view, const KeyPath*> seen;
    const auto text = [](const KeyPath& path) {
      std::string out;
      for (const PathStep& step : path)
        out += (out.empty() ? "" : " > ") + quote(joined({step}), 200);
      return out;
    };
    for (const Entry& entry : entries_) {
      const auto [at, fresh] = seen.try_emplace(entry.key, &entry.path);
      if (fresh) continue;
      throw Error(ErrorCode::kRekeyCollision,
                  cat(text(*at->second), " and ", text(entry.path), " would both have the key ",
                      quote(entry.key, 200)));
    }
  }

  // Throws if a renamed tensor lies in a safetensors blob: items are found by the names in the
  // blob.
  void check_items_are_archives() const {
    std::set<std::uint32_t> looked_into;
    for (const Entry& entry : entries_) {
      if (!entry.tensor || entry.key == index_.tensors[*entry.tensor].key) continue;
      const ChunkList& chunks = index_.tensors[*entry.tensor].chunks;
      for (std::size_t i = 0; i < chunks.size(); ++i) {
        const Location& location = chunks.location(i);
        if (location.transform != 0 || location.length < kZipMagic.size() ||
            !looked_into.insert(location.file).second)
          continue;
        const auto file = folder_->open_member(index_.files[location.file].name);
        const auto bytes = read_bytes(*file, location.offset, kZipMagic.size());
        if (std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(kZipMagic)).begin()))
          continue;
        throw Error(ErrorCode::kUnsupported,
                    cat(file->name(), ": ", quote(index_.tensors[*entry.tensor].key, 200),
                        ": its item is not a torch.save archive and contains the name; convert the "
                        "checkpoint first"));
      }
    }
  }

  // Sums the bytes of items in each file of the source; an item that several entries share counts
  // once.
  class ItemBytes {
   public:
    void add(const Location& location) {
      places_.emplace_back(location.file, location.offset, location.length);
    }
    void add(const TensorEntry& tensor) {
      for (std::size_t i = 0; i < tensor.chunks.size(); ++i) add(tensor.chunks.location(i));
    }
    std::vector<std::uint64_t> sums(std::size_t files) {
      std::ranges::sort(places_);
      places_.erase(std::unique(places_.begin(), places_.end()), places_.end());
      std::vector<std::uint64_t> out(files, 0);
      for (const auto& [file, offset, length] : places_) {
        if (file < files) out[file] += length;
      }
      return out;
    }

   private:
    std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> places_;
  };

  std::vector<std::uint64_t> source_bytes() const {
    ItemBytes bytes;
    for (const TensorEntry& tensor : index_.tensors) bytes.add(tensor);
    for (const ValueEntry& value : index_.values) bytes.add(value.location);
    return bytes.sums(index_.files.size());
  }

  std::vector<std::uint64_t> kept_bytes() const {
    ItemBytes bytes;
    for (const Entry& entry : entries_) {
      if (entry.tensor) {
        if (entry.places.empty()) bytes.add(index_.tensors[*entry.tensor]);
      } else {
        bytes.add(entry.location);
      }
    }
    return bytes.sums(index_.files.size());
  }

  void plan_files() {
    const std::vector<std::uint64_t> all = source_bytes();
    const std::vector<std::uint64_t> kept = kept_bytes();
    const fs::path above = fs::absolute(destination_ / "").lexically_normal().parent_path();
    std::set<std::string> known{std::string(dcp::kMetadataName)};
    for (std::size_t i = 0; i < index_.files.size(); ++i) {
      const FileEntry& file = index_.files[i];
      known.insert(file.name);
      if (i == meta_file_) continue;
      if (kept[i] == 0) {
        unneeded_files_ += all[i] != 0 ? 1 : 0;
        continue;
      }
      dead_bytes_ += all[i] - std::min(all[i], kept[i]);
      plan_shared(file.name, above.parent_path());
    }
    plan_meta(above.parent_path());
    plan_neighbours(known, above.parent_path());
    if (!added_.empty()) {
      new_name_ = free_name(known);
      plan_.files.push_back({new_name_, added_.bytes()});
    }
    plan_record(above.parent_path());
    std::uint64_t metadata_bytes = 0;
    write_metadata([&](std::string_view block) { metadata_bytes += block.size(); });
    plan_.files.push_back({std::string(dcp::kMetadataName), metadata_bytes});
    plan_.format = "dcp";
    plan_.folder = true;
  }

  void plan_shared(const std::string& name, const fs::path& above) {
    const auto file = folder_->open_member(name);
    const bool linked = link_ && on_one_file_system(*file, above);
    plan_.files.push_back({name, file->size(), linked});
    if (!linked) plan_.tensor_bytes += file->size();
    shared_.push_back(plan_.files.size() - 1);
  }

  // Plans the record of files that are expected to be shared by hard link.
  void plan_record(const fs::path& above) {
    if (!link_ || may_reflink(above)) return;
    std::vector<SharedFile> files;
    for (const std::size_t number : shared_) {
      const PlannedFile& planned = plan_.files[number];
      if (planned.linked)
        files.push_back(shared_file(planned.name, *folder_->open_member(planned.name)));
    }
    if (!files.empty())
      plan_.files.push_back({std::string(kSharedName), shared_text(files).size()});
  }

  // meta.pt or common.pt is shared if all its entries stay unchanged.
  void plan_meta(const fs::path& above) {
    if (!meta_file_) return;
    if (meta_stays()) return plan_shared(meta_name_, above);
    // Megatron-Core does not load a folder without it.
    if (meta_.empty() && !is_megatron()) return;
    meta_writer_.emplace(source_, meta_value());
    plan_.files.push_back({meta_name_, meta_writer_->file_bytes()});
  }

  void plan_neighbours(const std::set<std::string>& known, const fs::path& above) {
    for (const std::string& name : folder_->list()) {
      if (known.contains(name) || is_own_note(name)) continue;
      const bool inner_folder = std::ranges::any_of(
          known, [&](const auto& file) { return file.starts_with(name + "/"); });
      if (inner_folder) continue;
      try {
        if (!folder_->is_folder(name) && is_companion_name(name)) {
          plan_shared(name, above);
          continue;
        }
      } catch (const Error& error) {
        if (is_no_answer(error.code())) throw;
        // A link that leads elsewhere, a socket: not part of the checkpoint.
      }
      left_behind_.push_back(name);
    }
  }

  std::string free_name(const std::set<std::string>& known) const {
    const auto names = folder_->list();
    for (std::int64_t number = 0;; ++number) {
      std::string name = dcp::data_file_name(0, number);
      if (!known.contains(name) && std::ranges::find(names, name) == names.end()) return name;
    }
  }

  void write_metadata(const dcp::MetadataWriter::Sink& sink) const {
    dcp::MetadataWriter writer(sink);
    for (const Entry& entry : entries_) {
      if (!entry.tensor) {
        writer.value(entry.key);
        continue;
      }
      const TensorEntry& tensor = index_.tensors[*entry.tensor];
      writer.begin_tensor(entry.key, tensor.dtype, tensor.shape);
      for (std::size_t i = 0; i < tensor.chunks.size(); ++i) writer.chunk(tensor.chunks.box(i));
      writer.end_tensor();
    }
    writer.begin_paths();
    for (std::size_t i = 0; i < entries_.size(); ++i) writer.path(i, entries_[i].path);
    writer.begin_items();
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].tensor) {
        writer.value_item(i, place(entries_[i].location));
        continue;
      }
      const ChunkList& chunks = index_.tensors[*entries_[i].tensor].chunks;
      for (std::size_t c = 0; c < chunks.size(); ++c)
        writer.tensor_item(i, c, chunks.box(c).offset, place(entries_[i].place(chunks, c)));
    }
    writer.finish();
  }

  dcp::MetadataWriter::ItemPlace place(const Location& location) const {
    const std::string& name =
        location.file == new_file_ ? new_name_ : index_.files[location.file].name;
    return {location.file, name, location.offset, location.length,
            index_.transforms[location.transform]};
  }

  void share(AtomicFolder& out, const CopyOptions& options, CopyResult& result) {
    SharingOptions sharing;
    sharing.hard_link = link_;
    sharing.on_copied = [&](std::uint64_t bytes) {
      result.bytes += bytes;
      if (options.on_progress) options.on_progress(result.bytes);
    };
    bool copied = false;
    std::vector<SharedFile> linked;
    const std::map<std::string, std::uint32_t> crcs = sealed_crcs();
    for (const std::size_t number : shared_) {
      if (options.cancelled && options.cancelled())
        throw Error(ErrorCode::kInterrupted, "interrupted");
      PlannedFile& planned = plan_.files[number];
      const auto file = folder_->open_member(planned.name);
      if (file->size() != planned.bytes) {
        throw Error(ErrorCode::kChanged, cat(file->name(), ": has ", file->size(),
                                             " bytes now, had ", planned.bytes, " before"));
      }
      // Taken before the link, so that later writes show as a change.
      SharedFile record = shared_file(planned.name, *file);
      const auto crc = crcs.find(planned.name);
      const Sharing how =
          out.link_file(planned.name, *file, sharing,
                        crc == crcs.end() ? std::nullopt : std::optional(crc->second));
      if (how == Sharing::kHardLink) linked.push_back(std::move(record));
      planned.linked = how != Sharing::kCopy;
      if (planned.linked) continue;
      copied = true;
      file->check_unchanged();
    }
    write_record(out, linked);
    if (!copied) return;
    VerifyOptions verify;
    verify.threads = options.threads;
    verify.cancelled = options.cancelled;
    const VerifyReport report = stored_.verify(verify);
    throw_if_damaged(report.findings, source_.description().path);
    result.unchecked_bytes += report.bytes_unchecked;
  }

  void write_record(AtomicFolder& out, const std::vector<SharedFile>& files) {
    const auto planned = std::ranges::find_if(
        plan_.files, [](const auto& file) { return file.name == kSharedName; });
    if (files.empty()) {
      if (planned != plan_.files.end()) plan_.files.erase(planned);
      return;
    }
    const std::string text = shared_text(files);
    out.add_file(std::string(kSharedName)).write_at(0, std::as_bytes(std::span(text)));
    if (planned != plan_.files.end()) {
      planned->bytes = text.size();
    } else {
      plan_.files.push_back({std::string(kSharedName), text.size()});
    }
  }

  // Returns the checksums from the source's seal, if it has one.  The output's seal then says what
  // the files should be, whatever they are now, and nothing has to be read.
  std::map<std::string, std::uint32_t> sealed_crcs() const {
    std::map<std::string, std::uint32_t> crcs;
    if (!options_.seal) return crcs;
    const auto seal = folder_->open_member_if_present(std::string(kSealName));
    if (!seal) return crcs;
    in_context(seal->name(), [&] {
      for (const SealedFile& file : read_seal(*seal)) crcs.emplace(file.name, file.crc);
    });
    return crcs;
  }

  const StoredCheckpoint& stored_;
  const Index& index_;
  std::shared_ptr<const Folder> folder_;
  bool link_;               // share data files where that is possible
  std::uint32_t new_file_;  // its number in locations
  std::string new_name_;
  AddedItems added_;
  std::unordered_set<std::size_t> used_tensors_;
  std::unordered_set<std::size_t> used_values_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> shared_;  // positions in the plan's files
  // What keeps several values in one mapping: meta.pt, common.pt, or an item.
  std::string meta_name_;                         // of the file, in folders that have one
  std::optional<std::size_t> meta_file_;          // its number
  std::optional<Location> common_;                // of the mapping
  std::unordered_set<std::string_view> members_;  // the keys of its values in the source
  bool meta_changed_ = false;
  std::vector<std::pair<std::string, Value>> meta_;
  std::optional<TorchSaveWriter> meta_writer_;
};

}  // namespace

std::unique_ptr<RewrittenDcp> plan_rewritten_dcp(const StoredCheckpoint& source,
                                                 const fs::path& folder, const Value& content,
                                                 const fs::path& destination,
                                                 const RewriteOptions& options) {
  return std::make_unique<Rewriting>(source, folder, content, destination, options);
}

}  // namespace fsdp::formats
