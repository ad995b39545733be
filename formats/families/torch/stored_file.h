// SPDX-License-Identifier: Apache-2.0
// A torch.save file that may lie in a store, where each read that nothing foretold is a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/containers/zip/local_headers.h"
#include "formats/families/torch/stream.h"

namespace fsdp::formats {

// Like read_torch_file.  Of an archive in a store it reads the two ends alone, where pickle and
// directory are: its local headers are left for check_headers.
TorchFile read_torch_save(const File& file, std::uint64_t archive = 0);

// Reads and checks the local headers of `torch`, which was read from `file`, if nobody has so far.
// Precedes every use of data.  Thread-safe.
// Throws: what ZipReader throws, beginning with the path; kZipPadding if a payload is not where the
// directory made it seem.
void check_headers(const TorchFile& torch, const File& file);

// Local headers that are read together with the data behind them, and checked when all were: none
// is a request of its own then.  For who only looks at data, and acts on nothing before the end.
class HeadersWithData {
 public:
  // Of an archive whose headers were checked, or are too many, nothing is kept.
  // Lifetime: `torch` outlives it.  Throws: what reading throws.
  HeadersWithData(const TorchFile& torch, std::shared_ptr<const File> file);

  // Hint: an entry is read, and its header.  Returns what File::read_ahead does.
  bool expect(std::size_t entry) const;
  // Reads the header of an entry, whose data the caller reads next.  Thread-safe for different
  // entries.  Throws: what reading throws.
  void read(std::size_t entry);
  // As check_headers; those that were not read are now.
  void check() const;

 private:
  class Source;
  struct Piece {
    ZipRange range;
    std::size_t at = 0;  // of its first byte in bytes_
    bool read = false;
  };

  const TorchFile& torch_;
  const std::shared_ptr<const File> file_;
  // By entry, and the directory with the descriptor before it; empty: nothing is kept.
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;
};

}  // namespace fsdp::formats
