// SPDX-License-Identifier: Apache-2.0
// Moves chunks of one checkpoint into the places they have in another, in bounded memory, on
// several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/journal.h"
#include "formats/state/model/box.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats {

// A chunk that elements come from.
struct SourceChunk {
  Box box;  // in the coordinates of the whole tensor
  ChunkData data;
};

// A box of a tensor that goes, dense and row-major, to one place of the output.
struct TargetPiece {
  std::string key;                // of the tensor, for messages
  DType dtype = DType::kFloat32;  // of the chunks
  // The dtype that elements are cast to on the way, if it is another one.  Requires: can_cast.
  std::optional<DType> cast_to;
  Box box;  // in the coordinates of the whole tensor
  OutputFile* file = nullptr;
  std::uint64_t offset = 0;
  // Returns the chunks that cover the box.  Called once, by one thread at a time, when the piece's
  // turn comes.
  std::function<std::vector<SourceChunk>()> sources;
  // A hint, called before `sources` while earlier pieces are read: `part` of the box will be read.
  // What locates the chunks may then be fetched from the disk, and the elements from a store.
  // Returns whether hints for further pieces are worth giving now.  Empty: not called.
  std::function<bool(ElementRange part)> expect;

  DType written_dtype() const { return cast_to.value_or(dtype); }
};

struct CopyResult {
  std::vector<std::uint32_t> crcs;    // of each piece's bytes as written, in the pieces' order
  std::uint64_t bytes = 0;            // written
  std::uint64_t unchecked_bytes = 0;  // of storages without a checksum
  std::uint64_t kept_bytes = 0;       // of `bytes`, those that an earlier run wrote

  // Adds the numbers of bytes of another copy.
  CopyResult& operator+=(const CopyResult& part);
};

struct CopyOptions {
  unsigned threads = 1;
  std::uint64_t max_buffer_bytes = 64U << 20U;  // of all threads together
  // Called with the bytes written so far, by one thread at a time.
  std::function<void(std::uint64_t)> on_progress;
  // Called with the CRC-32 of each piece's bytes as soon as all of them were read and their stored
  // checksums match, by one thread at a time.  Requires: no team and no journal.
  std::function<void(std::size_t piece, std::uint32_t crc)> on_piece;
  // Called now and then; true ends the copy with kInterrupted.
  std::function<bool()> cancelled;
  // Divide the bytes among these processes, all of which make this call with the same pieces; never
  // null.  `on_progress` of the leader gets the bytes of all.
  Team* team = &this_process();
  // Skip what the journal holds of these pieces, and record what is written; never null.
  Journal* journal = no_journal().get();

  // Returns the same options for a copy after others, whose progress counts on from `before`.
  // Lifetime: this object outlives the result.
  CopyOptions after(const CopyResult& before) const;
};

// Copies every piece.  Every storage that carries a CRC is checked against it: on the way if the
// storage is read in one go, by a separate read if only parts of it are needed.
// Throws: kZipCrc naming file, key, byte, stored and computed; kInterrupted; what reading and
// writing throw.
// Requires: the chunks cover each piece (check_coverage) and have its dtype.
CopyResult copy_pieces(std::span<const TargetPiece> pieces, const CopyOptions& options);

}  // namespace fsdp::formats
