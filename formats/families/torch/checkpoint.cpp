// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/containers/zip/cut_archive.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/torch/torch.h"
#include "formats/state/checkpoint/parallel_check.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {
namespace {

class TorchSaveCheckpoint : public StoredCheckpoint {
 public:
  explicit TorchSaveCheckpoint(std::shared_ptr<const File> file, bool cut = false)
      : file_(std::move(file)) {
    std::vector<Leaf> leaves;
    in_context(file_->name(), [&] {
      expect_directory();
      torch_ = cut ? read_cut_torch_file(*with_new_directory(*file_)) : read_torch_save(*file_);
      leaves = leaves_of(torch_.root);
    });
    description_ = {file_->name(), "torch", torch_.legacy ? "legacy" : "zip"};
    index_.files.push_back(
        {.name = std::filesystem::path(file_->name()).filename().native(), .bytes = file_->size()});
    for (Leaf& leaf : leaves) add(std::move(leaf));
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t) const override {
    check_headers(torch_, *file_);
    // Aliased values share nodes, whose reference counts allow one thread at a time.
    const std::lock_guard lock(values_mutex_);
    return tensor_data(torch_, *dense_tensor(leaves_.at(tensor.path)), place(), spill_);
  }
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    if (!file_->read_by_requests() || part.count == 0) return false;
    try {
      check_headers(torch_, *file_);  // they are read before the data
    } catch (const Error&) {
      return false;  // chunk() meets the same error and reports it
    }
    const Location& record = tensor.chunks.location(chunk);
    return file_->read_ahead(record.offset, record.length);
  }
  Value value(const ValueEntry& value) const override { return leaves_.at(value.path); }
  ChunkData storage(const StorageRef& storage) const override {
    check_headers(torch_, *file_);
    return storage_data(torch_, storage, place(), spill_);
  }
  std::optional<Value> tree() const override { return torch_.root; }
  std::optional<Value> tensor_value(std::size_t tensor) const override {
    return leaves_.at(index_.tensors.at(tensor).path);
  }
  void check_unchanged() const override { file_->check_unchanged(); }

  VerifyReport verify(const VerifyOptions& options) const override {
    const bool without = torch_.legacy || torch_.without_crcs;
    HeadersWithData headers(torch_, file_);
    // The members of a team each read only some of the data.
    if (options.fast || without || !options.team->alone()) headers.check();
    VerifyReport report;
    report.findings = findings_;
    const std::string& name = index_.files[0].name;
    for (const std::string& global : torch_.unknown_globals) {
      if (!options.allowed_globals.contains(global))
        report.findings.push_back(global_finding(global, name, {}));
    }
    if (torch_.cyclic) {
      for (const ValueEntry& value : index_.values) {
        if (auto finding = cycle_finding(leaves_.at(value.path), name, value.key))
          report.findings.push_back(std::move(*finding));
      }
    }
    if (options.fast) {
      report.items = torch_.entries.size();
      return report;
    }
    if (without) {
      report.items = torch_.storages.size();
      for (const auto& [key, record] : torch_.records) report.bytes_unchecked += record.bytes;
      return report;
    }
    const auto keys = keys_by_record();
    run_checks(
        torch_.entries.size(), options, report,
        [&](std::size_t i, std::span<std::byte> buffer) {
          headers.read(i);
          const auto key = keys.find(torch_.entries[i].data_offset);
          return check_entry(*file_, torch_.entries[i], buffer, name,
                             key == keys.end() ? std::string() : key->second, options.crcs);
        },
        [&](std::size_t i, const Error& error) {
          Finding finding = finding_from(error, file_->name());
          finding.file = name;
          finding.bytes =
              ByteRange{torch_.entries[i].data_offset,
                        torch_.entries[i].data_offset + torch_.entries[i].compressed_bytes};
          return finding;
        },
        {}, [&](std::size_t i) { return headers.expect(i); });
    headers.check();
    return report;
  }

 private:
  // Hint: the end of an archive in a store is read by one request.
  void expect_directory() const {
    if (!file_->read_by_requests() || sniff_torch_stream(*file_) != TorchStream::kZip) return;
    const std::uint64_t bytes = std::min(kTorchDirectoryBytes, file_->size());
    (void)file_->read_ahead(file_->size() - bytes, bytes);
  }

  StreamPlace place() const { return {file_, file_->name(), 0, 0}; }

  void add(Leaf leaf) {
    // Keys of different types may have the same text, such as 3 and '3'.
    const KeyPath path = leaf.path;
    while (!leaves_.emplace(leaf.path, leaf.value).second) {
      leaf.path = path;
      for (std::size_t i = path.size(); i-- > 0;) {
        if (auto* name = std::get_if<std::string>(&leaf.path[i])) {
          *name += "#" + std::to_string(++copies_.try_emplace(path, 1).first->second);
          break;
        }
      }
      leaf.key = joined(leaf.path);
    }
    if (const auto tensor = dense_tensor(leaf.value)) {
      const auto found = torch_.records.find(tensor->storage->key);
      // A record that is gone lies behind what is left of the file.
      const StorageRecord record = found == torch_.records.end()
                                       ? StorageRecord{file_->size(), 1, 1, {}, false}
                                       : found->second;
      TensorEntry entry{leaf.key, leaf.path, tensor->dtype, tensor->shape,
                        ChunkList(tensor->shape.size())};
      const Box whole = whole_box(entry.shape);
      entry.chunks.add(whole.offset, whole.size, {0, 0, record.offset, record.compressed_bytes});
      index_.add(std::move(entry));
    } else {
      index_.add(ValueEntry{leaf.key, leaf.path, {}});
    }
  }

  // Returns the key of the first tensor in each record, for messages.
  std::unordered_map<std::uint64_t, std::string> keys_by_record() const {
    std::unordered_map<std::uint64_t, std::string> keys;
    for (const TensorEntry& tensor : index_.tensors)
      keys.try_emplace(tensor.chunks.location(0).offset, tensor.key);
    return keys;
  }

  std::shared_ptr<const File> file_;
  TorchFile torch_;
  mutable Spill spill_;
  mutable std::mutex values_mutex_;
  std::map<KeyPath, Value> leaves_;
  std::map<KeyPath, int> copies_;  // numbers of leaves with the same path
};

}  // namespace

std::unique_ptr<StoredCheckpoint> open_torch_save(const std::filesystem::path& path) {
  return std::make_unique<TorchSaveCheckpoint>(file_at(path));
}

std::unique_ptr<StoredCheckpoint> open_cut_torch_save(const std::filesystem::path& path) {
  return std::make_unique<TorchSaveCheckpoint>(file_at(path), true);
}

}  // namespace fsdp::formats
