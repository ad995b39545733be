// SPDX-License-Identifier: Apache-2.0
// Outputs in a store.  See Note [outputs in a store].
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"

namespace fsdp::formats {

class PartUpload;

// A file of the spool, which an upload sends.  It takes no disk space before bytes are written: see
// Note [parts of an upload].
class StoredOutputFile : public OutputFile {
 public:
  StoredOutputFile(FileDescriptor fd, std::string name, std::shared_ptr<PartUpload> upload,
                   bool summed)
      : OutputFile(std::move(fd), std::move(name), /*synced=*/false, summed),
        upload_(std::move(upload)) {}
  void reserve(std::uint64_t bytes) override;
  bool sent_by_parts() const override { return true; }

 private:
  int take_space(off_t bytes) override;
  void wrote(std::uint64_t offset, std::uint64_t bytes, bool kept) override;
  void close(FileDescriptor fd, bool sync) override;

  std::shared_ptr<PartUpload> upload_;
};

// `destination`: a URL.
// Throws: kUnsupported (no store has it, a team writes it, or it is to be resumed); what
// StoredOutput throws.
std::unique_ptr<AtomicFile> new_stored_file(const std::filesystem::path& destination,
                                            const OutputOptions& options);
std::unique_ptr<AtomicFolder> new_stored_folder(const std::filesystem::path& destination,
                                                const OutputOptions& options);

}  // namespace fsdp::formats
