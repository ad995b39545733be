// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/extended_checkpoint.h"

#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/storage_map.h"

namespace fsdp::formats {
namespace {

// Marks archive numbers of the other checkpoint's storages; no checkpoint uses this bit.
constexpr std::uint64_t kOtherArchive = std::uint64_t{1} << 63U;

std::string file_in_other(const Checkpoint& other, const std::string& name) {
  const std::string& path = other.description().path;
  return name.empty() || path.ends_with("/" + name) || path == name ? path : path + "/" + name;
}

}  // namespace

ExtendedCheckpoint::ExtendedCheckpoint(std::shared_ptr<const Checkpoint> base,
                                       std::shared_ptr<const Checkpoint> other,
                                       const std::set<std::string>& gone,
                                       const std::set<std::string>& taken)
    : base_(std::move(base)), other_(std::move(other)) {
  description_ = base_->description();
  index_ = base_->index();
  first_tensor_ = index_.tensors.size();
  first_file_ = static_cast<std::uint32_t>(index_.files.size());
  first_transform_ = static_cast<std::uint32_t>(index_.transforms.size()) - 1;
  const Index& from = other_->index();
  for (FileEntry file : from.files) {
    file.name = file_in_other(*other_, file.name);
    index_.files.push_back(std::move(file));
  }
  index_.transforms.insert(index_.transforms.end(), from.transforms.begin() + 1,
                           from.transforms.end());
  for (const Finding& finding : base_->findings()) {
    if (finding.key.empty() || !gone.contains(finding.key)) findings_.push_back(finding);
  }
  for (Finding finding : other_->findings()) {
    if (!finding.key.empty() && !taken.contains(finding.key)) continue;
    finding.file = file_in_other(*other_, finding.file);
    findings_.push_back(std::move(finding));
  }
}

std::size_t ExtendedCheckpoint::add(std::size_t number, const KeyPath& path) {
  const TensorEntry& from = other_->index().tensors.at(number);
  if (!positions_.emplace(from.key, number).second) {
    throw Error(ErrorCode::kKey, cat(other_->description().path, ": ", quote(from.key, 200),
                                     ": two entries have this name"));
  }
  TensorEntry entry{from.key, path, from.dtype, from.shape, ChunkList(from.shape.size())};
  entry.chunks.reserve(from.chunks.size());
  for (std::size_t c = 0; c < from.chunks.size(); ++c) {
    const BoxView box = from.chunks.box(c);
    Location location = from.chunks.location(c);
    location.file += first_file_;
    if (location.transform != 0) location.transform += first_transform_;
    entry.chunks.add(box.offset, box.size, location);
  }
  index_.add(std::move(entry));
  return index_.tensors.size() - 1;
}

Value ExtendedCheckpoint::value_of_other(const Value& value) const {
  return with_storages(value, [](StorageRef& storage) { storage.archive |= kOtherArchive; });
}

// Looks at the file, not at the key: both may have an entry of this key, while that of `base` is
// being replaced.
const TensorEntry* ExtendedCheckpoint::in_other(const TensorEntry& tensor) const {
  const bool own = tensor.chunks.size() == 0 || tensor.chunks.location(0).file < first_file_;
  return own ? nullptr : &other_->index().tensors[positions_.at(tensor.key)];
}

ChunkData ExtendedCheckpoint::from_other(ChunkData data) const {
  data.file = file_in_other(*other_, data.file);
  return data;
}

ChunkData ExtendedCheckpoint::chunk(const TensorEntry& tensor, std::size_t chunk) const {
  const TensorEntry* const theirs = in_other(tensor);
  return theirs == nullptr ? base_->chunk(tensor, chunk)
                           : from_other(other_->chunk(*theirs, chunk));
}

bool ExtendedCheckpoint::expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                                      ElementRange part) const {
  const TensorEntry* const theirs = in_other(tensor);
  return theirs == nullptr ? base_->expect_chunk(tensor, chunk, part)
                           : other_->expect_chunk(*theirs, chunk, part);
}

ChunkData ExtendedCheckpoint::storage(const StorageRef& storage) const {
  if ((storage.archive & kOtherArchive) == 0) return base_->storage(storage);
  StorageRef own = storage;
  own.archive &= ~kOtherArchive;
  return from_other(other_->storage(own));
}

std::optional<Value> ExtendedCheckpoint::tensor_value(std::size_t tensor) const {
  return tensor < first_tensor_ ? base_->tensor_value(tensor) : std::nullopt;
}

void ExtendedCheckpoint::check_unchanged() const {
  base_->check_unchanged();
  other_->check_unchanged();
}

}  // namespace fsdp::formats
