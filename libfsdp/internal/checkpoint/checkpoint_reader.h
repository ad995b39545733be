// SPDX-License-Identifier: Apache-2.0
// Reads the parts of a checkpoint that this rank needs.  All requests are noted and compared with
// the checkpoint first; then everything is read in file order.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/model/box.h"
#include "formats/state/model/memory_reader.h"
#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/process_group.h"
#include "libfsdp/state_value.h"

namespace fsdp::internal {

class CheckpointReader {
 public:
  // Throws: what formats::open_checkpoint and content_of throw.
  // `allowed_globals`: see LoadOptions.
  CheckpointReader(const std::filesystem::path& path, const std::set<std::string>& allowed_globals);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const formats::Checkpoint& checkpoint() const noexcept { return *checkpoint_; }
  // Returns the nested state dict, see content_of in formats/state/content/content.h.
  const formats::Value& content() const noexcept { return content_; }

  // Returns the dtype and shape of tensor `number` of the index.
  const formats::TensorEntry& tensor(std::size_t number) const {
    return checkpoint_->index().tensors[number];
  }
  // Notes that this box of the tensor (default: the whole tensor) is read into `target`, cast if
  // the dtypes differ.
  // Requires: `target` has as many elements, in the same order; dtypes are equal or can be cast.
  struct Part {
    formats::Box box;
    bool alone;  // no other rank reads it
  };
  void want(std::size_t number, const at::Tensor& target, std::optional<Part> part = std::nullopt);

  // Returns a value of content(); its tensors are filled later, by read().  Values without a
  // counterpart are left out and noted, see state_value().
  StateValue value(const formats::Value& value, const std::string& key,
                   std::vector<std::string>& left_out);

  // Collective over `group`.  Fills the noted tensors, and compares checksums of all storages that
  // the ranks together read in full.
  // Throws: on every rank, the errors of reading on any rank, damage included.
  void read(const std::shared_ptr<ProcessGroup>& group, const std::string& what, bool verify);

 private:
  struct Wanted {
    formats::TargetPiece piece;
    at::Tensor target;
    at::Tensor copy;                              // on the CPU, if the target is elsewhere
    std::pair<std::string, std::uint64_t> place;  // its start: file and byte
    bool alone = false;
  };
  at::Tensor tensor_of(const formats::TensorValue& tensor);
  std::vector<formats::PartialRead> read_own(bool verify);

  std::unique_ptr<formats::Checkpoint> checkpoint_;
  formats::Value content_;
  std::shared_ptr<formats::ChunkCache> chunks_ = std::make_shared<formats::ChunkCache>();
  std::vector<Wanted> wanted_;
  // Storages of values, by archive and key: views of one storage share it.
  std::unordered_map<std::string, at::Tensor> storages_;
};

}  // namespace fsdp::internal
