// SPDX-License-Identifier: Apache-2.0
// Writes the `.metadata` of a torch.distributed.checkpoint folder as a stream, in the form that
// every PyTorch from 2.3 on reads: pickle protocol 2, TensorProperties of five, version "1.0.0", no
// storage_meta.
// Source: torch/distributed/checkpoint/metadata.py of PyTorch 2.3 to 2.15; docs/formats/dcp.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/state/model/box.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::dcp {

// The calls come in this order: every entry (`begin_tensor`, its chunks, `end_tensor`; or `value`),
// then `begin_paths` and a path for every entry, then `begin_items` and the items, then `finish`.
// Entries are named by their number, in the order they were written.
//
// Holds only some bytes per entry and per file, and one block of output: a checkpoint of thousands
// of ranks has millions of chunks.
class MetadataWriter {
 public:
  // Receives the stream block by block.
  using Sink = std::function<void(std::string_view)>;
  explicit MetadataWriter(Sink sink);

  void begin_tensor(std::string_view key, DType dtype, std::span<const std::int64_t> shape);
  void chunk(BoxView box);
  void end_tensor();
  void value(std::string_view key);

  void begin_paths();
  void path(std::size_t entry, const KeyPath& path);

  void begin_items();
  // The place of an item: `file` counts from 0, `name` is the file's name.
  struct ItemPlace {
    std::size_t file = 0;
    std::string_view name;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::span<const std::string> transforms = {};  // to undo, in this order
  };
  // `chunk` is the chunk's number within its tensor, `offset` the beginning of its box.
  void tensor_item(std::size_t entry, std::size_t chunk, std::span<const std::int64_t> offset,
                   const ItemPlace& place);
  void value_item(std::size_t entry, const ItemPlace& place);

  void finish();

 private:
  // A name or text that occurs repeatedly: written in full once, then fetched from the memo.
  enum Word : std::uint8_t {
    kTensorStorage,
    kTensorProperties,
    kChunkStorage,
    kBytesStorage,
    kMetadataIndex,
    kStorageInfo,
    kGetLayout,
    kMemoryFormat,
    kSize,
    kStrided,
    kPropertiesWord,
    kSizeWord,
    kChunksWord,
    kOffsetsWord,
    kSizesWord,
    kFqnWord,
    kIndexWord,
    kOffsetWord,
    kPathWord,
    kLengthWord,
    kWordCount
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void op(PickleOp code) { out_.push_back(static_cast<char>(code)); }
  void little_endian(std::uint64_t number, unsigned count);
  void global(std::string_view module, std::string_view name);
  void text(std::string_view utf8);
  void integer(std::uint64_t number);
  std::uint32_t put();
  void get(std::uint32_t slot);
  void word(Word word);
  void size(std::span<const std::int64_t> numbers);
  void new_object(Word cls);
  void dtype(DType dtype);
  void begin_entry(std::string_view key);
  void begin_item(std::size_t entry);
  void place(const ItemPlace& place);
  void step(const std::string& text);
  // Fill dicts and lists in batches, as Python's pickler does: its reader holds one batch at a
  // time.
  void begin_batch(std::uint64_t& count);
  void end_batches(std::uint64_t& count, PickleOp end);

  Sink sink_;
  std::string out_;
  std::uint32_t memo_ = 0;            // the next number
  std::uint64_t entries_ = 0;         // of the dict being filled
  std::uint64_t chunks_ = 0;          // of the list being filled
  std::vector<std::uint32_t> keys_;   // memo numbers: of each entry's key
  std::vector<std::uint32_t> files_;  // of each file's name
  std::array<std::uint32_t, kWordCount> words_;
  std::array<std::uint32_t, 256> dtypes_;
  std::unordered_map<std::string, std::uint32_t> steps_;
};

}  // namespace fsdp::formats::dcp
