// SPDX-License-Identifier: Apache-2.0
// Reads ranges of one piece's elements from the chunks that cover it, and tracks the checksums of
// the storages read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/state/model/chunk_data.h"
#include "formats/state/model/copy.h"
#include "formats/state/model/partial_reads.h"

namespace fsdp::formats {

// The state of the checksums of one checkpoint's storages.  Thread-safe.
class StorageChecks {
 public:
  // If `enabled` is false, nothing is computed or compared.
  explicit StorageChecks(bool enabled) : enabled_(enabled) {}

  bool wants(const ChunkData& data) const { return enabled_ && data.crc.has_value(); }
  // Registers the storage of a chunk that will be read.  `counts`: the bytes of a storage without a
  // checksum count as unchecked; false in other processes that read parts of the same piece.
  void note(const std::string& key, const ChunkData& data, bool counts = true);
  // Records that a run of a storage was read.
  void read(const ChunkData& data, const DenseRun& run);
  // Compares those storages of these chunks that were read whole, and forgets them: errors come
  // early and memory stays flat.  Throws: kZipCrc.
  void settle(std::span<const SourceChunk> sources);
  // Reads storages that were read only in part once more in full, through `buffer`, and compares
  // them.
  // Throws: kZipCrc, kInterrupted, what reading throws.
  void finish(std::span<std::byte> buffer, const std::function<bool()>& cancelled);
  // Compares the storages that the members of a team read whole together.  Leaves every other
  // storage to a single member, whose `finish` reads it.  Sums up the unchecked bytes.  All members
  // must call this.
  // Throws: kZipCrc, on all; what Team::exchange throws.
  void join(Team& team);
  // Like `finish` above, through a buffer of its own.  A storage that only an earlier run read in
  // part is found by the pieces that lie in it.
  void finish(std::span<const TargetPiece> pieces, const std::function<bool()>& cancelled);
  // Adds what an earlier run read.  Throws: kZipCrc.
  void restore(std::span<const PartialRead> reads, std::uint64_t unchecked_bytes);
  // Takes over what another object has recorded.  Throws: kZipCrc.
  void absorb(StorageChecks& other);
  // Returns the storages that were read only in part, except settled ones.
  std::vector<PartialRead> partial() const;
  // Like `partial`, and forgets them.
  std::vector<PartialRead> take_partial();
  std::uint64_t unchecked_bytes() const { return unchecked_bytes_; }

 private:
  using Name = std::pair<std::string, std::uint64_t>;
  struct Storage {
    PartialRead read;
    ChunkData data;  // the first chunk seen in it; no source: none was seen
  };
  void add(Storage storage);
  static Name name_of(const ChunkData& data) { return {data.file, data.file_offset}; }

  bool enabled_;
  std::mutex mutex_;
  std::map<Name, Storage> storages_;
  std::uint64_t unchecked_bytes_ = 0;
};

// A piece whose chunks were located.  Thread-safe.  Lifetime: piece and checks outlive it.
class PieceReader {
 public:
  // `counts`: see StorageChecks::note.
  // Throws: kHole if the chunks of a straight piece do not tile it; what `sources` throws.
  PieceReader(const TargetPiece& piece, StorageChecks& checks, bool counts = true);

  // Returns whether every chunk's part is one run in storage and in the piece: then blocks of all
  // sizes cost the same; otherwise large blocks cost less.
  bool straight() const { return straight_; }

  // Reads elements [first, first + out.size() / item) of the dense row-major piece, before any
  // cast.  Returns the CRC-32 of `out` if reading computed it.
  // `window`: the calling thread's own, if no other process reads the piece's bytes.
  // Throws: kHole, what reading throws.
  std::optional<std::uint32_t> read(std::uint64_t first, std::span<std::byte> out,
                                    std::span<std::byte> scratch,
                                    RunWindow* window = nullptr) const;
  // Called when every block was read: compares all checksums that it can.  Throws: kZipCrc.
  void settle() const { checks_.settle(sources_); }

 private:
  // `count` elements, from element `from` of the storage to element `to` of the piece.
  struct Run {
    std::uint64_t to;
    std::uint64_t from;
    std::uint64_t count;
    const SourceChunk* source;
  };
  void find_runs();
  std::optional<std::uint32_t> read_runs(std::uint64_t first, std::span<std::byte> out,
                                         RunWindow* window) const;
  // Reads bytes of a storage from `from` on.  Returns their CRC-32 if it is needed.
  std::uint32_t read_run(const ChunkData& data, std::uint64_t from, std::span<std::byte> out,
                         RunWindow* window) const;
  void assemble(const Box& slab, std::span<std::byte> out, std::span<std::byte> scratch) const;

  const TargetPiece& piece_;
  StorageChecks& checks_;
  std::uint64_t item_;
  std::vector<SourceChunk> sources_;
  bool straight_ = true;
  std::vector<Run> runs_;  // straight: in the order of `to`, contiguous
};

}  // namespace fsdp::formats
