// SPDX-License-Identifier: Apache-2.0
// A file of a store as bytes that are read by position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "formats/base/byte_source.h"
#include "formats/store/store.h"

namespace fsdp::formats {

struct AheadFile;

// Reads one version of the file, whatever happens to it meanwhile.  Thread-safe.
class StoredSource : public ByteSource {
 public:
  // `file` is what the store said of `url`.
  StoredSource(const Store& store, std::string url, StoredFile file);
  ~StoredSource() override;

  std::uint64_t size() const override;
  // Throws: kTruncated (a range beyond the end); what Store::read throws.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;
  // Hint: these bytes will be read soon, once each.  Returns whether more hints are worth giving.
  bool expect(std::uint64_t offset, std::uint64_t count) const noexcept;
  // Hint: these few bytes will be read soon, perhaps more than once.  Returns as expect does.
  bool will_read(std::uint64_t offset, std::uint64_t count) const noexcept;
  const std::string& url() const;
  const StoredFile& file() const;
  // Throws: kChanged if the file is another one now.  Asks the store only if it names no versions:
  // otherwise every read compared the version.
  void check_unchanged() const;
  // The same number for every source of one version of a file, in this process.
  std::uint64_t identity() const { return identity_; }

 private:
  std::shared_ptr<AheadFile> ahead_;
  std::uint64_t identity_;
};

}  // namespace fsdp::formats
