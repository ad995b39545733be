// SPDX-License-Identifier: Apache-2.0
// Sinks for the answers of a server: one for a range of a file, one for a whole file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/http/http.h"
#include "formats/bytes/http/patience.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Fills memory with one range of a file.  If an answer breaks off, its bytes stay, and the next
// request asks for the rest.  Each answer must be uncompressed, of the file that was found first,
// and of exactly the requested range.  An answer with the whole file (200) is accepted if few bytes
// must be skipped.
class RangeSink final : public HttpSink {
 public:
  RangeSink(Patience& patience, const StoredFile& file, std::uint64_t offset,
            std::span<std::byte> out);

  // Returns the value of the field Range of the next request.
  std::string range();
  // Compares the version with that in this field of answers; in the ETag if it is not called.
  void versions_in(std::string_view field) { version_field_ = field; }
  // Ignores version and date: they are known from elsewhere, and those of the answer are of
  // something else.
  void ignore_version() { version_counts_ = false; }

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
  std::uint64_t skip_ = 0;       // bytes of this answer before `left_`
  std::uint64_t unnoticed_ = 0;  // bytes not yet reported to `patience_`
  bool whole_ = false;           // this answer is of the whole file
  std::string_view version_field_ = kEtagField;
  bool version_counts_ = true;
};

// Returns the error kChanged for a file whose version, told in `field`, is another one now.
Error changed_version(const std::string& place, std::string_view field, std::string_view was,
                      std::string_view is);

// Takes a small file as a whole.
class ContentSink final : public HttpSink {
 public:
  ContentSink(std::string place, std::uint64_t max_bytes);

  // Takes the version from this field of the answer; from the ETag if it is not called.
  void versions_in(std::string_view field) { version_field_ = field; }
  void begin(const HttpHead& head) override;
  bool take(std::span<const std::byte> bytes) override;
  void end() override;

  Store::Content content;

 private:
  std::string place_;
  std::uint64_t max_bytes_;
  std::string_view version_field_ = kEtagField;
  bool length_known_ = false;
};

}  // namespace fsdp::formats
