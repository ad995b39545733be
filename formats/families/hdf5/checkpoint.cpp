// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>

#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/names/unsafe_names.h"
#include "formats/families/hdf5/data.h"
#include "formats/families/hdf5/file.h"
#include "formats/families/hdf5/hdf5.h"
#include "formats/state/checkpoint/parallel_check.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/torch_globals.h"
#include "formats/state/model/check.h"

namespace fsdp::formats::hdf5 {
namespace {

// The pickle of a state dict takes some 200 bytes per tensor: this is room for millions.
constexpr std::uint64_t kMaxPickleBytes = 1U << 30U;

bool is_hidden(const Path& path) {
  return path[0] == kHiddenGroup;
}

Value value_of(const Scalar& scalar) {
  if (const auto* flag = std::get_if<bool>(&scalar)) return Value::boolean(*flag);
  if (const auto* number = std::get_if<std::int64_t>(&scalar)) return Value::integer(*number);
  if (const auto* number = std::get_if<std::uint64_t>(&scalar)) {
    // Little-endian two's complement, one byte longer than the number.
    std::string bytes(9, '\0');
    for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>(*number >> (8 * i) & 0xFFU);
    return Value::big_int(std::move(bytes));
  }
  if (const auto* number = std::get_if<double>(&scalar)) return Value::floating(*number);
  return Value::string(std::get<std::string>(scalar));
}

Value value_of(const Attribute& attribute) {
  if (!attribute.is_list) return attribute.items.empty() ? Value() : value_of(attribute.items[0]);
  std::vector<Value> items;
  items.reserve(attribute.items.size());
  for (const Scalar& item : attribute.items) items.push_back(value_of(item));
  return Value::list(std::move(items));
}

KeyPath key_path(const Path& path) {
  return {path.begin(), path.end()};
}

class Hdf5Checkpoint : public StoredCheckpoint {
 public:
  explicit Hdf5Checkpoint(std::shared_ptr<const File> file) : file_(std::move(file)) {
    check_signature(*file_);
    description_ = {file_->name(), "hdf5", "file"};
    index_.files.push_back(
        {.name = std::filesystem::path(file_->name()).filename().native(), .bytes = file_->size()});
    in_context(file_->name(), [&] {
      content_ = read_description(*file_);
      if (is_ours()) {
        open_ours();
      } else {
        open_other();
      }
    });
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t number) const override {
    const Source& source = sources_.at(tensor.path);
    const Dataset& dataset = content_.datasets[source.dataset];
    if (!source.view) {
      ChunkData data = dataset.storage == Dataset::Storage::kChunked
                           ? chunk_data(file_, dataset, number, spill_)
                           : whole_data(file_, dataset);
      // Data without a place in the file get an offset that no other dataset has.
      if (data.file_offset == file_->size()) data.file_offset += source.dataset;
      return data;
    }
    ChunkData data = run_of(dataset);
    data.dtype = source.view->dtype;
    data.first = source.view->storage_offset;
    if (source.view->strides != row_major_strides(source.view->shape))
      data.strides = source.view->strides;
    data.conjugate = source.view->conjugate && is_complex(data.dtype);
    data.negate = source.view->negate;
    return data;
  }

  Value value(const ValueEntry& value) const override { return values_.at(value.path); }

  ChunkData storage(const StorageRef& storage) const override {
    ChunkData data = run_of(content_.datasets[dataset_of(storage)]);
    data.dtype = storage.dtype;
    return data;
  }

  std::optional<Value> tree() const override { return root_; }
  std::optional<Value> tensor_value(std::size_t tensor) const override {
    if (!root_) return std::nullopt;
    return values_.at(index_.tensors[tensor].path);
  }
  void check_unchanged() const override { file_->check_unchanged(); }
  std::vector<std::byte> content_pickle() const {
    return is_ours() ? small_data(*find_hidden(kContentName)) : std::vector<std::byte>();
  }

  VerifyReport verify(const VerifyOptions& options) const override {
    VerifyReport report;
    report.findings = findings_;
    for (const std::string& global : unknown_globals_) {
      if (!options.allowed_globals.contains(global))
        report.findings.push_back(global_finding(global, index_.files[0].name, {}));
    }
    for (const TensorEntry& tensor : index_.tensors) check_coverage(tensor, report.findings);
    check_overlap(report.findings);
    if (options.fast) {
      report.items = content_.datasets.size();
      return report;
    }
    run_checks(
        content_.datasets.size(), options, report,
        [&](std::size_t i, std::span<std::byte> buffer) { return check_dataset(i, buffer); },
        [&](std::size_t i, const Error& error) { return finding(error, i, {}); });
    return report;
  }

 private:
  // The source of a tensor's elements.  Without `view`: the dataset, chunk by chunk.  With it: a
  // view of the dataset's elements as one run.
  struct Source {
    std::size_t dataset = 0;
    std::optional<TensorValue> view;  // its `storage` is not used
  };

  bool is_ours() const { return find_hidden(kContentName) != nullptr; }

  const Dataset* find_hidden(std::string_view name) const {
    for (const Dataset& dataset : content_.datasets) {
      if (dataset.path.size() == 2 && is_hidden(dataset.path) && dataset.path[1] == name)
        return &dataset;
    }
    return nullptr;
  }

  ChunkData run_of(const Dataset& dataset) const {
    auto data = dense_data(file_, dataset);
    if (data) return *std::move(data);
    throw Error(ErrorCode::kUnsupported, cat(file_->name(), ": ", path_text(dataset.path),
                                             ": was rewritten by another program; delete the group "
                                             ".fsdp to read the file as a plain HDF5 file"));
  }

  // ---- files of ours

  void open_ours() {
    description_.layout = "fsdp";
    check_version();
    check_structure();
    for (std::size_t i = 0; i < content_.datasets.size(); ++i) {
      if (content_.datasets[i].number) by_number_.try_emplace(*content_.datasets[i].number, i);
    }
    TorchPickleHost host;
    in_context([&] { return cat("/", kHiddenGroup, "/", kContentName); },
               [&] {
                 const std::vector<std::byte> pickle = small_data(*find_hidden(kContentName));
                 root_ = read_pickle(MemorySource(pickle), host);
                 unknown_globals_ = unknown_globals_in(MemorySource(pickle));
               });
    for (const StorageRef& storage : host.storages()) {
      const Dataset& dataset = content_.datasets[dataset_of(storage)];
      const std::uint64_t wanted =
          checked_mul(storage.numel, item_bytes(storage.dtype), "storage size");
      if (dataset.bytes() != wanted) {
        throw Error(ErrorCode::kRecordSize, cat(path_text(dataset.path), ": has ", dataset.bytes(),
                                                " bytes, expected ", wanted, " for ", storage.numel,
                                                " elements of ", torch_name(storage.dtype)));
      }
    }
    for (Leaf& leaf : leaves_of(*root_)) add(std::move(leaf));
  }

  void check_version() {
    for (const Attribute& attribute : content_.attributes) {
      if (attribute.path.size() != 2 || !is_hidden(attribute.path) ||
          attribute.path[1] != kVersionAttribute) {
        continue;
      }
      const auto* text =
          attribute.items.size() == 1 ? std::get_if<std::string>(&attribute.items[0]) : nullptr;
      if (text != nullptr && *text == std::to_string(kVersion)) {
        description_.version = *text;
        return;
      }
      throw Error(ErrorCode::kUnsupported,
                  cat("/", kHiddenGroup, ": version ", text == nullptr ? "" : quote(*text),
                      " is not known, expected ", kVersion));
    }
    throw Error(ErrorCode::kUnsupported, cat("/", kHiddenGroup, ": has no version"));
  }

  void check_structure() {
    const Dataset* const stored = find_hidden(kStructureCrcName);
    if (stored == nullptr || stored->bytes() != 4) {
      throw Error(ErrorCode::kRecordMissing,
                  cat("/", kHiddenGroup, "/", kStructureCrcName, " is missing"));
    }
    const std::vector<std::byte> bytes = small_data(*stored);
    const std::uint32_t wanted = load_u32(bytes, 0);
    const std::uint32_t computed = structure_crc(*file_, content_.datasets);
    if (computed == wanted) return;
    findings_.push_back(
        {.code = ErrorCode::kH5Checksum,
         .message = cat("structure: CRC-32 stored ", hex32(wanted), ", computed ", hex32(computed),
                        "; the file is damaged, or another program changed it: delete the group "
                        ".fsdp to read it as a plain HDF5 file"),
         .file = index_.files[0].name});
  }

  // Reads all bytes of a small dataset and compares its checksum.
  std::vector<std::byte> small_data(const Dataset& dataset) const {
    if (dataset.bytes() > kMaxPickleBytes) {
      throw Error(ErrorCode::kLimitSize,
                  cat("has ", dataset.bytes(), " bytes, at most ", kMaxPickleBytes));
    }
    const ChunkData data = run_of(dataset);
    auto bytes = read_bytes(*data.source, data.storage_offset, data.storage_bytes);
    if (data.crc) {
      const std::uint32_t computed = crc32(0, bytes);
      if (computed != *data.crc) {
        throw Error(ErrorCode::kH5Checksum,
                    cat("CRC-32 stored ", hex32(*data.crc), ", computed ", hex32(computed)));
      }
    }
    return bytes;
  }

  std::size_t dataset_of(const StorageRef& storage) const {
    std::uint64_t number = 0;
    const char* const end = storage.key.data() + storage.key.size();
    const auto [stop, error] = std::from_chars(storage.key.data(), end, number);
    const auto found = by_number_.find(number);
    if (error != std::errc() || stop != end || found == by_number_.end()) {
      throw Error(ErrorCode::kRecordMissing,
                  cat("no dataset has the storage number ", quote(storage.key)));
    }
    return found->second;
  }

  void add(Leaf leaf) {
    // Keys of different types may have the same text, such as 3 and '3'.
    const KeyPath path = leaf.path;
    for (int copy = 2; !values_.emplace(leaf.path, leaf.value).second; ++copy) {
      leaf.path = path;
      if (auto* name = std::get_if<std::string>(&leaf.path.back()))
        *name += cat("#", copy);
      else
        leaf.path.back() = cat(std::get<std::int64_t>(leaf.path.back()), "#", copy);
      leaf.key = joined(leaf.path);
    }
    auto tensor = dense_tensor(leaf.value);
    if (!tensor) {
      index_.add(ValueEntry{leaf.key, leaf.path, {}});
      return;
    }
    const std::size_t number = dataset_of(*tensor->storage);
    const Dataset& dataset = content_.datasets[number];
    TensorEntry entry{leaf.key, leaf.path, tensor->dtype, tensor->shape,
                      ChunkList(tensor->shape.size())};
    const Box whole = whole_box(entry.shape);
    entry.chunks.add(whole.offset, whole.size, location_of(dataset));
    tensor->storage = nullptr;
    sources_.emplace(leaf.path, Source{number, std::move(tensor)});
    index_.add(std::move(entry));
  }

  static Location location_of(const Dataset& dataset) {
    if (dataset.storage == Dataset::Storage::kContiguous)
      return {0, 0, dataset.address, dataset.bytes()};
    if (!dataset.chunks.empty()) return {0, 0, dataset.chunks[0].address, dataset.chunks[0].bytes};
    return {};
  }

  // ---- other files

  void open_other() {
    for (std::size_t i = 0; i < content_.datasets.size(); ++i) {
      const Dataset& dataset = content_.datasets[i];
      TensorEntry entry{joined(key_path(dataset.path)), key_path(dataset.path), dataset.dtype,
                        dataset.shape, ChunkList(dataset.shape.size())};
      if (dataset.storage == Dataset::Storage::kChunked) {
        add_grid(dataset, entry.chunks);
      } else {
        const Box whole = whole_box(entry.shape);
        entry.chunks.add(whole.offset, whole.size, location_of(dataset));
      }
      sources_.emplace(entry.path, Source{i, std::nullopt});
      index_.add(std::move(entry));
    }
    const std::set<Path> taken = groups();
    for (const Attribute& attribute : content_.attributes) {
      const KeyPath path = key_path(attribute.path);
      if (sources_.contains(path) || taken.contains(attribute.path)) {
        warn(attribute.path, "the attribute is left out: a dataset or group has the same name");
        continue;
      }
      add_value(path, value_of(attribute));
    }
    for (const Path& path : content_.empty_groups) add_value(key_path(path), Value::dict({}));
    for (const LeftOut& left_out : content_.left_out)
      warn(left_out.path, left_out.what + " is left out");
  }

  static void add_grid(const Dataset& dataset, ChunkList& chunks) {
    std::vector<std::int64_t> offset(dataset.shape.size(), 0);
    std::vector<std::int64_t> size(dataset.shape.size(), 0);
    chunks.reserve(dataset.chunks.size());
    for (const StoredChunk& chunk : dataset.chunks) {
      for (std::size_t d = 0; d < size.size(); ++d)
        size[d] = std::min(dataset.chunk_shape[d], dataset.shape[d] - offset[d]);
      chunks.add(offset, size, {0, 0, chunk.address, chunk.bytes});
      next_chunk(dataset, offset);
    }
  }

  std::set<Path> groups() const {
    std::set<Path> groups(content_.empty_groups.begin(), content_.empty_groups.end());
    const auto add_above = [&](Path path) {
      for (path.pop_back(); !path.empty() && groups.insert(path).second;) path.pop_back();
    };
    for (const Dataset& dataset : content_.datasets) add_above(dataset.path);
    for (const Attribute& attribute : content_.attributes) add_above(attribute.path);
    return groups;
  }

  void add_value(const KeyPath& path, Value value) {
    index_.add(ValueEntry{joined(path), path, {}});
    values_.emplace(path, std::move(value));
  }

  void warn(const Path& path, const std::string& what) {
    findings_.push_back(
        warning(ErrorCode::kH5Type, what, index_.files[0].name, joined(key_path(path))));
  }

  // ---- verify

  Finding finding(const Error& error, std::size_t dataset, Extent extent) const {
    Finding out = finding_from(error, file_->name());
    const std::string at = path_text(content_.datasets[dataset].path) + ": ";
    if (out.message.starts_with(at)) out.message.erase(0, at.size());
    out.file = index_.files[0].name;
    out.key = key_of(dataset);
    if (extent.bytes != 0) out.bytes = ByteRange{extent.begin, extent.begin + extent.bytes};
    return out;
  }

  // Returns the key of the tensor in a dataset, or the dataset's own name.
  std::string key_of(std::size_t dataset) const {
    for (const TensorEntry& tensor : index_.tensors) {
      if (sources_.at(tensor.path).dataset == dataset) return tensor.key;
    }
    return path_text(content_.datasets[dataset].path);
  }

  CheckResult check_dataset(std::size_t number, std::span<std::byte> buffer) const {
    CheckResult result;
    const Dataset& dataset = content_.datasets[number];
    // Each dataset is checked once, under its first name.
    if (dataset.number && by_number_.at(*dataset.number) != number) return result;
    const bool is_structure_crc = root_ && is_hidden(dataset.path) && dataset.path.size() == 2 &&
                                  dataset.path[1] == kStructureCrcName;
    if (is_structure_crc) return result;  // compared when the file was opened
    const CheckedBytes bytes =
        check_data(*file_, dataset, buffer, [&](const Error& error, Extent extent) {
          result.findings.push_back(finding(error, number, extent));
        });
    result.bytes_checked = bytes.checked;
    result.bytes_unchecked = bytes.unchecked;
    return result;
  }

  void check_overlap(Findings& findings) const {
    try {
      structure_extents(data_extents(content_.datasets), file_->size());
    } catch (const Error& error) {
      Finding found = finding_from(error, file_->name());
      found.file = index_.files[0].name;
      findings.push_back(std::move(found));
    }
  }

  std::shared_ptr<const File> file_;
  Description content_;
  std::optional<Value> root_;  // only for files of ours
  UnknownGlobals unknown_globals_;
  std::unordered_map<std::uint64_t, std::size_t> by_number_;
  std::map<KeyPath, Source> sources_;
  std::map<KeyPath, Value> values_;  // in files of ours, also tensors as they stand in the tree
  mutable Spill spill_;
};

}  // namespace

std::vector<std::byte> content_pickle(const std::shared_ptr<const File>& file) {
  return Hdf5Checkpoint(file).content_pickle();
}

std::unique_ptr<StoredCheckpoint> open_hdf5(const std::filesystem::path& path) {
  return std::make_unique<Hdf5Checkpoint>(file_at(path));
}

}  // namespace fsdp::formats::hdf5
