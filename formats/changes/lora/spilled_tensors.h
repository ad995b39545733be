// SPDX-License-Identifier: Apache-2.0
// A checkpoint of new tensors, which wait in a temporary file without a name to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/files/local_file.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

class SpilledTensors : public Checkpoint {
 public:
  // `path`: the source of the tensors, for messages.  `unchanged`: called before an output of these
  // tensors is committed; throws if the source changed.
  // Throws: kIo.
  SpilledTensors(std::string path, std::function<void()> unchanged);

  // Appends elements of the tensor that is added next.  Throws: kIo, kNoSpace.
  void append(std::span<const std::byte> elements) { file_->append(elements); }
  // Adds a dense row-major tensor of all elements since the one before.  `checked`: all that it was
  // made from carried checksums.
  void add(std::string key, DType dtype, std::vector<std::int64_t> shape, bool checked);

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  // Requires: not called, there are no values.
  Value value(const ValueEntry& value) const override;
  ChunkData storage(const StorageRef& storage) const override;
  // Requires: not called; the output is checked once it is written.
  VerifyReport verify(const VerifyOptions& options) const override;
  void check_unchanged() const override { unchanged_(); }

 private:
  std::function<void()> unchanged_;
  std::shared_ptr<SpillFile> file_;
  std::uint64_t added_bytes_ = 0;
  std::vector<bool> checked_;  // by the file of a location
};

}  // namespace fsdp::formats
