// SPDX-License-Identifier: Apache-2.0
// A checkpoint with some tensors of another one after its own.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Numbers, trees and objects of `base` stay, so its content is also content of the whole.  Tensors
// of `other` follow in the index under their own keys.  Names of files of `other` begin with its
// path.
class ExtendedCheckpoint : public Checkpoint {
 public:
  // Leaves out findings of `base` about the keys `gone`; takes those of `other` that concern the
  // `taken` keys, or no key.
  ExtendedCheckpoint(std::shared_ptr<const Checkpoint> base,
                     std::shared_ptr<const Checkpoint> other, const std::set<std::string>& gone,
                     const std::set<std::string>& taken);

  // Adds tensor `number` of `other` at `path`; returns its number in this checkpoint.
  // Throws: kKey if a tensor of that key was added before.
  std::size_t add(std::size_t number, const KeyPath& path);
  // Returns a value of `other` with storages that `storage` of this checkpoint finds.  Requires:
  // the value is not a placeholder.
  Value value_of_other(const Value& value) const;

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override { return base_->value(value); }
  ChunkData storage(const StorageRef& storage) const override;
  std::optional<Value> tensor_value(std::size_t tensor) const override;
  // Must not be called: the parts are verified by themselves.
  VerifyReport verify(const VerifyOptions& options) const override {
    return base_->verify(options);
  }
  void check_unchanged() const override;

 private:
  // Returns the tensor of `other` that an entry stands for; nothing for those of `base`.
  const TensorEntry* in_other(const TensorEntry& tensor) const;
  ChunkData from_other(ChunkData data) const;

  std::shared_ptr<const Checkpoint> base_;
  std::shared_ptr<const Checkpoint> other_;
  std::size_t first_tensor_;                      // of `other` in the index
  std::map<std::string, std::size_t> positions_;  // key -> number in `other`
  std::uint32_t first_file_;                      // of `other` in Index::files
  std::uint32_t first_transform_;                 // less one, as transform 0 means none
};

}  // namespace fsdp::formats
