// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/file_set.h"

#include <algorithm>
#include <map>
#include <optional>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/families/torch/stored_file.h"
#include "formats/state/checkpoint/parallel_check.h"
#include "formats/state/model/check.h"
#include "formats/state/model/flat_range.h"

namespace fsdp::formats {
namespace {

// Files whose ends are fetched at once, since most wait for the disk or the store; and how much of
// each end: the pickle stands in front, the directory at the end.  From a store more is fetched,
// since a request costs more than a read.
constexpr std::size_t kOpenedAtOnce = 16;
constexpr std::uint64_t kRanksTailBytes = 64U << 10U;
constexpr std::uint64_t kStoredEndBytes = 256U << 10U;

// The least memory to read elements through.
constexpr std::size_t kScratchBytes = 4096;

// Entry `entry` of the archive of file `file`.
struct EntryRef {
  std::uint32_t file;
  std::size_t entry;
};

}  // namespace

std::string TorchFileSet::path_of(std::uint32_t file) const {
  return escape((folder_->path() / index_.files[file].name).native());
}

StreamPlace TorchFileSet::place(std::uint32_t file) const {
  return {pool_.get(file), path_of(file), 0, 0};
}

void TorchFileSet::expect_files(std::span<const std::string> names) const {
  if (names.size() < 2) return;
  run_each(names.size(), kOpenedAtOnce, [&](std::size_t i) {
    try {
      const auto file = folder_->open_member_if_present(names[i]);
      if (!file) return;
      const std::uint64_t bytes =
          std::min(file->size(), folder_->read_by_requests() ? kStoredEndBytes : kRanksTailBytes);
      file->will_read(0, bytes);
      file->will_read(file->size() - bytes, bytes);
    } catch (const Error&) {
      // add_file meets the same error and reports it.
    }
  });
}

std::uint32_t TorchFileSet::add_file(const std::string& name, std::optional<std::int64_t> rank) {
  const auto number = static_cast<std::uint32_t>(index_.files.size());
  index_.files.push_back({.name = name, .rank = rank});
  pool_.examine(index_.files);
  const auto file = pool_.get(number);
  in_context([&] { return path_of(number); },
             [&] { torch_.push_back(read_torch_save(*file, number + 1)); });
  return number;
}

TorchFileSet::Part TorchFileSet::part_of(Box box, std::uint32_t file, const TensorValue& view) {
  Part part{std::move(box), file, view, *view.storage};
  part.view.storage = nullptr;
  return part;
}

void TorchFileSet::add_flat_parts(std::vector<Part>& parts, std::span<const std::int64_t> shape,
                                  std::int64_t begin, std::int64_t end, std::uint32_t file,
                                  const TensorValue& view, std::int64_t from) {
  for (Box& box : flat_range_boxes(shape, begin, end)) {
    const auto count = static_cast<std::int64_t>(volume(box.view()));
    TensorValue inner = view;
    inner.storage_offset += static_cast<std::uint64_t>(from * view.strides[0]);
    inner.shape = box.size;
    inner.strides = row_major_strides(box.size);
    for (std::int64_t& stride : inner.strides) stride *= view.strides[0];
    parts.push_back(part_of(std::move(box), file, inner));
    from += count;
  }
}

std::string TorchFileSet::fresh_key(const KeyPath& path) const {
  std::string key = joined(path);
  if (parts_.contains(key) || values_.contains(key)) {
    throw Error(ErrorCode::kKey, cat(escape(folder_->path().native()), ": ", quote(key, 200),
                                     ": two entries have this name"));
  }
  return key;
}

void TorchFileSet::add_tensor(KeyPath path, DType dtype, std::vector<std::int64_t> shape,
                              std::vector<Part> parts) {
  std::string key = fresh_key(path);
  TensorEntry entry{key, std::move(path), dtype, std::move(shape), ChunkList()};
  entry.chunks = ChunkList(entry.shape.size());
  entry.chunks.reserve(parts.size());
  for (const Part& part : parts) {
    const StorageRecord& record = torch_[part.file].records.at(part.storage.key);
    Location location{part.file, 0, record.offset, record.compressed_bytes};
    if (!record.deflated && part.view.strides == row_major_strides(part.box.size)) {
      location.offset += part.view.storage_offset * item_bytes(dtype);
      location.length = volume(part.box.view()) * item_bytes(dtype);
    }
    entry.chunks.add(part.box.offset, part.box.size, location);
  }
  parts_.emplace(std::move(key), std::move(parts));
  index_.add(std::move(entry));
}

void TorchFileSet::add_value(KeyPath path, Value value, std::uint32_t file) {
  std::string key = fresh_key(path);
  values_.emplace(key, std::move(value));
  index_.add(ValueEntry{std::move(key), std::move(path), {file, 0, 0, 0}});
}

bool TorchFileSet::are_equal(const Part& a, const Part& b) const {
  const auto crc = [&](const Part& part) -> std::optional<std::uint32_t> {
    const TorchFile& torch = torch_[part.file];
    const StorageRecord& record = torch.records.at(part.storage.key);
    const bool alone = part.view.strides == row_major_strides(part.box.size) &&
                       volume(part.box.view()) * item_bytes(part.view.dtype) == record.bytes;
    return alone && !torch.big_endian && !torch.without_crcs ? record.crc : std::nullopt;
  };
  const bool alike = a.view.conjugate == b.view.conjugate && a.view.negate == b.view.negate;
  if (const auto one = crc(a), other = crc(b); alike && one && other) return *one == *other;
  return same_elements(data_of(a), data_of(b), a.box.size);
}

std::vector<std::byte> TorchFileSet::elements_of(const Part& part) const {
  const ChunkData data = data_of(part);
  const auto bytes = static_cast<std::size_t>(volume(part.box.view()) * item_bytes(data.dtype));
  std::vector<std::byte> out(bytes);
  std::vector<std::byte> scratch(std::max<std::size_t>(bytes, kScratchBytes));
  const std::vector<std::int64_t> begin(part.box.size.size(), 0);
  gather(data, part.box.size, begin, part.box.size, out, row_major_strides(part.box.size), scratch);
  transform_elements(data, out);
  return out;
}

ChunkData TorchFileSet::chunk(const TensorEntry& tensor, std::size_t chunk) const {
  return data_of(parts_.at(tensor.key).at(chunk));
}

ChunkData TorchFileSet::data_of(const Part& part) const {
  TensorValue view = part.view;
  view.storage = &part.storage;
  check_headers(torch_[part.file], *pool_.get(part.file));
  return tensor_data(torch_[part.file], view, place(part.file), spill_);
}

bool TorchFileSet::expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                                ElementRange part) const {
  if (!folder_->read_by_requests() || part.count == 0) return false;
  try {
    const Location& location = tensor.chunks.location(chunk);
    const auto file = pool_.get(location.file);
    check_headers(torch_[location.file], *file);  // they are read before the data
    return file->read_ahead(location.offset, location.length);
  } catch (const Error&) {
    return false;  // chunk() meets the same error and reports it
  }
}

ChunkData TorchFileSet::storage(const StorageRef& storage) const {
  const auto file = static_cast<std::uint32_t>(storage.archive - 1);
  check_headers(torch_.at(file), *pool_.get(file));
  return storage_data(torch_.at(file), storage, place(file), spill_);
}

VerifyReport TorchFileSet::verify(const VerifyOptions& options) const {
  std::vector<std::optional<HeadersWithData>> headers(torch_.size());
  if (folder_->read_by_requests()) {
    run_each(torch_.size(), kOpenedAtOnce, [&](std::size_t i) {
      headers[i].emplace(torch_[i], pool_.get(static_cast<std::uint32_t>(i)));
      const bool read = !options.fast && !torch_[i].legacy && !torch_[i].without_crcs;
      // The members of a team each read only some of the data.
      if (!read || !options.team->alone()) headers[i]->check();
    });
  }
  VerifyReport report;
  report.findings = findings_;
  check_extents(index_, report.findings);
  for (const TensorEntry& tensor : index_.tensors) check_coverage(tensor, report.findings);
  for (const ValueEntry& value : index_.values) {
    if (!torch_[value.location.file].cyclic) continue;
    const std::string& name = index_.files[value.location.file].name;
    if (auto finding = cycle_finding(values_.at(value.key), name, value.key))
      report.findings.push_back(std::move(*finding));
  }
  std::vector<EntryRef> entries;
  for (std::uint32_t file = 0; file < torch_.size(); ++file) {
    const TorchFile& torch = torch_[file];
    for (const std::string& global : torch.unknown_globals) {
      if (!options.allowed_globals.contains(global))
        report.findings.push_back(global_finding(global, index_.files[file].name, {}));
    }
    if (torch.legacy || torch.without_crcs) {
      report.items += torch.storages.size();
      for (const auto& [key, record] : torch.records) report.bytes_unchecked += record.bytes;
      continue;
    }
    for (std::size_t entry = 0; entry < torch.entries.size(); ++entry)
      entries.push_back({file, entry});
  }
  if (options.fast) {
    report.items += entries.size();
    return report;
  }
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> keys;
  for (const TensorEntry& tensor : index_.tensors) {
    for (const Part& part : parts_.at(tensor.key)) {
      keys.try_emplace({part.file, torch_[part.file].records.at(part.storage.key).offset},
                       tensor.key);
    }
  }
  const auto key_of = [&](const EntryRef& ref) {
    const auto key = keys.find({ref.file, torch_[ref.file].entries[ref.entry].data_offset});
    return key == keys.end() ? std::string() : key->second;
  };
  run_checks(
      entries.size(), options, report,
      [&](std::size_t i, std::span<std::byte> buffer) {
        const EntryRef& ref = entries[i];
        if (headers[ref.file]) headers[ref.file]->read(ref.entry);
        return check_entry(*pool_.get(ref.file), torch_[ref.file].entries[ref.entry], buffer,
                           index_.files[ref.file].name, key_of(ref), options.crcs);
      },
      [&](std::size_t i, const Error& error) {
        Finding finding = finding_from(error, path_of(entries[i].file));
        finding.file = index_.files[entries[i].file].name;
        finding.key = key_of(entries[i]);
        return finding;
      },
      {},
      [&](std::size_t i) {
        const EntryRef& ref = entries[i];
        return headers[ref.file] && headers[ref.file]->expect(ref.entry);
      });
  if (folder_->read_by_requests()) {
    run_each(torch_.size(), kOpenedAtOnce, [&](std::size_t i) { headers[i]->check(); });
  }
  return report;
}

}  // namespace fsdp::formats
