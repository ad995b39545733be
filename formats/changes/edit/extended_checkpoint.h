// SPDX-License-Identifier: Apache-2.0
// A checkpoint with some tensors of another one behind its own.
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

// `base` has its own numbers, trees and objects, so content of it stays content of the whole.
// Tensors of `other` follow in the index under the keys that they have there.  Files of `other`
// have its path before their names.
class ExtendedCheckpoint : public Checkpoint {
 public:
  // Findings of `base` about the keys `gone` are left out; those of `other` count if they concern
  // the `taken` keys, or no key.
  ExtendedCheckpoint(std::shared_ptr<const Checkpoint> base,
                     std::shared_ptr<const Checkpoint> other, const std::set<std::string>& gone,
                     const std::set<std::string>& taken);

  // Adds tensor `number` of `other`, which is to lie at `path`; returns its number here.
  // Throws: kKey if one of its key was added.
  std::size_t add(std::size_t number, const KeyPath& path);
  // Returns a value of `other`, not a placeholder, with storages that `storage` finds here.
  Value value_of_other(const Value& value) const;

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override { return base_->value(value); }
  ChunkData storage(const StorageRef& storage) const override;
  std::optional<Value> tensor_value(std::size_t tensor) const override;
  // Requires: not called; the parts are verified by themselves.
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
