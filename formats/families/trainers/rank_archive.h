// SPDX-License-Identifier: Apache-2.0
// A torch.save file of one rank: an object with parts of a checkpoint's tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "formats/bytes/outputs/file.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/model/box.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// Elements begin to end of a flattened tensor of a checkpoint, that go to `at` of another.
struct TensorRun {
  std::size_t tensor = 0;  // in the index
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t at = 0;
};

// Makes the tensors of the object, and writes it.  Lifetime: the checkpoints outlive the archive.
class RankArchive {
 public:
  // `object`: the checkpoint whose storages the object may have; without it, those of `source`.
  explicit RankArchive(const Checkpoint& source, const Checkpoint* object = nullptr)
      : source_(source), object_(object == nullptr ? source : *object) {}

  // Returns a dense tensor that stands for a box of a tensor of the checkpoint.  Equal parts are
  // one value, so tied tensors stay tied.
  Value part(const TensorRef& reference, Box box);
  // Returns a tensor of one dimension that consists of runs, with zeros between and behind them.
  // Requires: the runs are in order and apart; each chunk of their tensors is a run itself.
  Value flat(DType dtype, std::int64_t numel, std::vector<TensorRun> runs);
  // Returns a tensor of one dimension with the numbers 0 to count - 1.  `dtype`: kInt32 or kInt64.
  Value counted_up(DType dtype, std::int64_t count);

  // Returns the bytes of the file.  Throws: what write_pickle throws.
  static std::uint64_t file_bytes(const Value& root);
  // Reserves the file's bytes and writes `root`, whose tensors this archive made or are the
  // object's own.  `chunks`: for successive archives of one checkpoint.  Does not finish the
  // file.  Throws: what copy_archive throws.
  CopyResult write(const Value& root, OutputFile& file, const CopyOptions& options,
                   const std::shared_ptr<ChunkCache>& chunks) const;

 private:
  struct Part {
    TensorRef reference;
    Box box;
    DType dtype = DType::kFloat32;
    std::shared_ptr<const std::vector<std::byte>> own = {};  // elements that no tensor holds
    std::optional<std::vector<TensorRun>> runs = {};
    Value tensor = {};
  };
  Value made(Part part);

  const Checkpoint& source_;
  const Checkpoint& object_;
  std::vector<Part> parts_;  // by the key of their storage
  using Place = std::tuple<TensorRef, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::map<Place, std::size_t> places_;  // among the parts, by tensor, offset and size
};

}  // namespace fsdp::formats
