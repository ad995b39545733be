// SPDX-License-Identifier: Apache-2.0
// A file of a store, read by position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "formats/bytes/store/file.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

struct AheadFile;

// Reads one version of the file, whatever happens to it meanwhile.  Thread-safe.
class StoredSource : public File {
 public:
  // `file`: the store's description of `url`.
  StoredSource(const Store& store, std::string url, StoredFile file);
  ~StoredSource() override;

  std::uint64_t size() const override;
  // Throws: kTruncated (a range beyond the end); what Store::read throws.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  bool will_read(std::uint64_t offset, std::uint64_t count) const noexcept override;
  bool read_ahead(std::uint64_t offset, std::uint64_t count) const noexcept override;
  // Asks the store only if it has no versions; otherwise every read has compared the version.
  void check_unchanged() const override;
  std::pair<std::uint64_t, std::uint64_t> identity() const override;
  std::int64_t mtime_ns() const override;
  int fd() const override { return -1; }

 private:
  std::shared_ptr<AheadFile> ahead_;
  std::uint64_t identity_;
};

}  // namespace fsdp::formats
