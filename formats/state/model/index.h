// SPDX-License-Identifier: Apache-2.0
// The contents of a checkpoint: tensors cut into chunks, values, and the files they lie in.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/unheld.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {

// One step into a nested state dict: a key of a mapping, or a position in a list.
using PathStep = std::variant<std::string, std::int64_t, Unheld>;
using KeyPath = std::vector<PathStep>;

// A byte range of a file of the checkpoint.  The layout determines the kind of bytes (a zip
// archive, raw elements).
struct Location {
  std::uint32_t file = 0;       // position in Index::files
  std::uint32_t transform = 0;  // position in Index::transforms; 0: as they are
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// The chunks of one tensor, all of the tensor's rank, packed: a checkpoint of many ranks has
// millions.
class ChunkList {
 public:
  explicit ChunkList(std::size_t rank = 0) : rank_(rank) {}
  std::size_t size() const { return locations_.size(); }
  std::size_t rank() const { return rank_; }
  BoxView box(std::size_t chunk) const;
  const Location& location(std::size_t chunk) const { return locations_[chunk]; }
  void reserve(std::size_t count);
  // Requires: offset and size have the list's rank.
  void add(std::span<const std::int64_t> offset, std::span<const std::int64_t> size,
           const Location& location);

 private:
  std::size_t rank_;
  std::vector<std::int64_t> numbers_;  // offset, then size, of each chunk
  std::vector<Location> locations_;
};

struct TensorEntry {
  std::string key;  // fully qualified name, as stored
  KeyPath path;     // its place in the nested state dict
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  ChunkList chunks;

  // Elements of the whole tensor.  Requires: the layout checked the shape (checked_numel).
  std::uint64_t numel() const { return volume({shape, shape}); }
  std::uint64_t bytes() const { return numel() * item_bytes(dtype); }
};

// A value that is not a tensor: a number, a text, a list of names, ...
struct ValueEntry {
  std::string key;
  KeyPath path;
  Location location;
  // The bytes there hold a mapping of several values; this value is the one under the key.
  bool member = false;
};

struct FileEntry {
  std::string name;                         // relative to the checkpoint
  std::optional<std::uint64_t> bytes = {};  // nothing if the file is missing
  std::optional<std::int64_t> rank = {};    // the rank that wrote it, if its name tells
};

struct Index {
  struct EntryRef {
    bool is_tensor;
    std::uint32_t position;  // in `tensors` or `values`
  };
  std::vector<FileEntry> files;
  std::vector<std::vector<std::string>> transforms = {{}};  // names, in the order to undo them
  std::vector<TensorEntry> tensors;
  std::vector<ValueEntry> values;
  std::vector<EntryRef> order;  // all keys, in the checkpoint's order

  void add(TensorEntry tensor);
  void add(ValueEntry value);
};

// Returns path steps joined by dots, as the key of an entry without a stored name.
std::string joined(const KeyPath& path);

// Keeps only the entries of the index for which `keep` returns true.
// (Files and transforms stay, so locations keep their meaning.)
template <typename Keep>
void keep_entries(Index& index, const Keep& keep) {
  Index kept;
  for (const Index::EntryRef& ref : index.order) {
    if (ref.is_tensor) {
      TensorEntry& tensor = index.tensors[ref.position];
      if (keep(tensor.key)) kept.add(std::move(tensor));
    } else {
      ValueEntry& value = index.values[ref.position];
      if (keep(value.key)) kept.add(std::move(value));
    }
  }
  index.tensors = std::move(kept.tensors);
  index.values = std::move(kept.values);
  index.order = std::move(kept.order);
}

}  // namespace fsdp::formats
