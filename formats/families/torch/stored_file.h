// SPDX-License-Identifier: Apache-2.0
// A torch.save file that may lie in a store, where each read without a hint is a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/containers/zip/local_headers.h"
#include "formats/families/torch/stream.h"
#include "formats/state/checkpoint/parallel_check.h"

namespace fsdp::formats {

// Like read_torch_file.  Of an archive in a store it reads only the two ends, where pickle and
// directory are; check_headers reads the local headers later.
TorchFile read_torch_save(const File& file, std::uint64_t archive = 0);

// Reads and checks the local headers of `torch`, which was read from `file`, unless that was done.
// Must be called before any use of data.  Thread-safe.
// Throws: what ZipReader throws, beginning with the path; kZipPadding if a payload is not where the
// directory placed it.
void check_headers(const TorchFile& torch, const File& file);

// Reads an entry of an archive in `file` and compares its CRC: a finding names `name` and `key`.
// `crcs`, if given, receives the CRC of an entry that is stored uncompressed.
CheckResult check_entry(const File& file, const ZipEntry& entry, std::span<std::byte> buffer,
                        const std::string& name, const std::string& key, FileCrcs* crcs = nullptr);

// Reads local headers together with the data after them, so that none is a request of its own, and
// checks them when all are read.  For readers that act on no data before the end.
class HeadersWithData {
 public:
  // Keeps nothing of an archive whose headers were checked, or are too many.
  // Lifetime: `torch` outlives the object.  Throws: what reading throws.
  HeadersWithData(const TorchFile& torch, std::shared_ptr<const File> file);

  // Hint: an entry and its header are read.  Returns what File::read_ahead does.
  bool expect(std::size_t entry) const;
  // Reads the header of an entry, whose data the caller must read next.  Thread-safe for different
  // entries.  Throws: what reading throws.
  void read(std::size_t entry);
  // Reads the remaining headers and checks all, as check_headers does.
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
  // By entry; the last piece is the directory with the descriptor before it.  Empty: nothing is
  // kept.
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;
};

}  // namespace fsdp::formats
