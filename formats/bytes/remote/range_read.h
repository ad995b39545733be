// SPDX-License-Identifier: Apache-2.0
// Fills memory from a range of a file of a server, whatever the server answers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "formats/bytes/http/http.h"
#include "formats/bytes/http/patience.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Where the answers to one ranged read go.  An answer that breaks off leaves what it brought, and
// the next request asks for the rest.  Each one has to be of the file that was found first, of
// exactly the range that was asked for, and not compressed.  An answer of the whole file (200) is
// read through as long as little is skipped for it.
class RangeSink final : public HttpSink {
 public:
  RangeSink(Patience& patience, const StoredFile& file, std::uint64_t offset,
            std::span<std::byte> out);

  // The value of the field Range of the next request.
  std::string range();
  // The version is known from elsewhere, and the answer's field ETag is of something else.
  void ignore_etag() { etag_counts_ = false; }

  void begin(const HttpHead& head) override;
  bool take(std::span<const std::byte> bytes) override;
  void end() override;

 private:
  void check_same_file(const HttpHead& head) const;

  Patience& patience_;
  const StoredFile& file_;
  std::uint64_t offset_;  // of the first byte of `left_`
  std::span<std::byte> left_;
  const std::span<std::byte> out_;
  std::uint64_t skip_ = 0;       // bytes of this answer that stand before it
  std::uint64_t unnoticed_ = 0;  // bytes that came since the patience was told
  bool whole_ = false;           // this answer is of the whole file
  bool etag_counts_ = true;
};

// Takes the whole of a small file.
class ContentSink final : public HttpSink {
 public:
  ContentSink(std::string place, std::uint64_t max_bytes);

  void begin(const HttpHead& head) override;
  bool take(std::span<const std::byte> bytes) override;
  void end() override;

  Store::Content content;

 private:
  std::string place_;
  std::uint64_t max_bytes_;
  bool length_known_ = false;
};

}  // namespace fsdp::formats
