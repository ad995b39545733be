// SPDX-License-Identifier: Apache-2.0
// A checkpoint with tensors that are arrays over the tensors of others: outputs of all formats read
// it like any other checkpoint.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::arrays {

// Values and storages are those of the first source.  Trees and objects do not show new tensors:
// edit the content instead.
class ComputedTensors : public Checkpoint {
 public:
  // Holds the new tensors alone.  Lifetime: the source outlives it.
  explicit ComputedTensors(const Checkpoint& source);
  // Holds the entries of the first source, under their numbers, and new tensors behind them.
  explicit ComputedTensors(std::vector<std::shared_ptr<ArraySource>> sources);

  // Sets the path for messages, if it is not that of the first source.
  void set_path(std::string path) { description_.path = std::move(path); }
  // Takes ownership of a checkpoint that the source needs.
  void own(std::unique_ptr<const Checkpoint> checkpoint) { owned_ = std::move(checkpoint); }

  // Returns a tensor of the first source.
  Array source_array(std::size_t tensor) { return sources_[0]->array(tensor); }
  // Returns a tensor at that place, as a value for the content.  Arrays of the same elements share
  // one value: tied parameters stay tied.
  Value shared(KeyPath path, const Array& array);
  // Returns a tensor that shares its value with no other, even if the elements are the same.
  Value separate(KeyPath path, const Array& array);

  // Puts a tensor in the place of a leaf of the content.  Other leaves keep their elements, also
  // those that are tied to it.  Throws: kMismatch if a leaf of the same name got another tensor.
  void replace(const Leaf& leaf, const Value& tensor);
  // Returns the content with the tensors that leaves got.
  Value edited(const Value& content) const;
  bool replaced_any() const { return !replaced_.empty(); }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override { return base().value(value); }
  ChunkData storage(const StorageRef& storage) const override { return base().storage(storage); }
  std::optional<Value> tree() const override;
  std::optional<Value> tensor_value(std::size_t tensor) const override;
  std::optional<Value> tensor_object(std::size_t tensor) const override;
  // Also compares the checksums of storages that computed tensors read.
  void check_unchanged() const override;

 private:
  const Checkpoint& base() const { return sources_[0]->checkpoint(); }
  // Returns the part of a new tensor; null for the source's.
  const PlacedPart* part_of(const TensorEntry& tensor, std::size_t chunk) const;

  std::unique_ptr<const Checkpoint> owned_;
  std::vector<std::shared_ptr<ArraySource>> sources_;
  std::size_t kept_ = 0;           // tensors of the first source in the index
  std::uint32_t file_;             // of new tensors: chunks have positions in `parts_`
  std::vector<PlacedPart> parts_;  // of all new tensors
  std::unordered_map<std::string, Value> made_;  // by what the array is made of
  std::map<std::string, Value> replaced_;        // by key
  mutable std::mutex mutex_;
  mutable std::list<std::pair<const Operand*, ChunkData>> open_;  // most recently used first
};

}  // namespace fsdp::formats::arrays
