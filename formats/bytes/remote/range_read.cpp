// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/range_read.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"

namespace fsdp::formats {
namespace {

// The most bytes read and dropped where a server ignores Range; beyond, the read is refused.
constexpr std::uint64_t kMaxSkip = std::uint64_t{8} << 20U;
// Progress is reported per this many bytes, so that a request that brings fewer makes none.
constexpr std::uint64_t kProgress = std::uint64_t{64} << 10U;
constexpr unsigned kTries = 5;  // of answers that contradict the request
constexpr std::int64_t kSecond = 1'000'000'000;

void refuse_coding(const std::string& place, const HttpHead& head) {
  const std::string* coding = head.find("content-encoding");
  // Writers that sign chunks leave aws-chunked behind; the bytes are plain.
  if (coding == nullptr || coding->empty() || *coding == "identity" || *coding == "aws-chunked")
    return;
  throw Error(ErrorCode::kUnsupported, place, ": the server compresses it (Content-Encoding ",
              quote(*coding), "), so ranges of it cannot be read");
}

}  // namespace

RangeSink::RangeSink(Patience& patience, const StoredFile& file, std::uint64_t offset,
                     std::span<std::byte> out)
    : patience_(patience), file_(file), offset_(offset), left_(out), out_(out) {}

std::string RangeSink::range() {
  // All bytes came, but the answer did not end: the last byte is requested again.
  if (left_.empty()) {
    left_ = out_.last(1);
    --offset_;
  }
  return cat("bytes=", offset_, "-", offset_ + left_.size() - 1);
}

void RangeSink::check_same_file(const HttpHead& head) const {
  const std::string version = version_of_head(head, version_field_);
  if (version_counts_ && !version.empty() && !file_.version.empty()) {
    if (version != file_.version)
      throw changed_version(patience_.place(), version_field_, file_.version, version);
    // The date may differ between the machines of one server.
    return;
  }
  const std::string* date = head.find("last-modified");
  // If the version comes from another host's answer, so does the date.
  if (version_counts_ && date != nullptr && file_.mtime_ns != 0) {
    const auto mtime = parse_http_date(*date);
    // The field has whole seconds.
    if (mtime && *mtime / kSecond != file_.mtime_ns / kSecond) {
      throw Error(ErrorCode::kChanged, patience_.place(),
                  ": changed while it was read: it was written again at ", quote(*date));
    }
  }
}

void RangeSink::begin(const HttpHead& head) {
  refuse_coding(patience_.place(), head);
  check_same_file(head);
  const auto changed_size = [&](std::uint64_t now) {
    return Error(ErrorCode::kChanged, patience_.place(), ": changed while it was read: it had ",
                 file_.bytes, " bytes and has ", now);
  };
  const std::string* range = head.find("content-range");
  // Some servers answer a range with 200 and a Content-Range.
  whole_ = head.status != 206 && range == nullptr;
  if (head.status == 206 || (head.status == 200 && range != nullptr)) {
    const auto parsed = range == nullptr ? std::nullopt : parse_content_range(*range);
    if (!parsed) {
      throw TransferError(cat("the server answers a range with Content-Range ",
                              range == nullptr ? "missing" : quote(*range)),
                          kTries);
    }
    if (parsed->total && *parsed->total != file_.bytes) throw changed_size(*parsed->total);
    if (parsed->first != offset_ || parsed->last != offset_ + left_.size() - 1) {
      throw TransferError(cat("the server answers bytes ", offset_, "-", offset_ + left_.size() - 1,
                              " with ", quote(*range)),
                          kTries);
    }
    skip_ = 0;
    return;
  }
  if (head.status != 200)
    throw TransferError(cat("the server answers a range with ", head.status), kTries);
  const std::string* length = head.find("content-length");
  const auto bytes = length == nullptr ? std::nullopt : parse_length(*length);
  if (bytes && *bytes != file_.bytes) throw changed_size(*bytes);
  if (offset_ > kMaxSkip) {
    throw Error(
        ErrorCode::kUnsupported,
        cat(patience_.place(), ": the server ignores Range: it answers a request for bytes ",
            offset_, "-", offset_ + left_.size() - 1, " with the whole file"));
  }
  skip_ = offset_;
}

bool RangeSink::take(std::span<const std::byte> bytes) {
  unnoticed_ += bytes.size();
  const std::size_t skipped = std::min<std::uint64_t>(skip_, bytes.size());
  skip_ -= skipped;
  bytes = bytes.subspan(skipped);
  if (!whole_ && bytes.size() > left_.size())
    throw TransferError("the server sends more bytes than its Content-Range says", kTries);
  const std::size_t kept = std::min(bytes.size(), left_.size());
  if (kept != 0) std::memcpy(left_.data(), bytes.data(), kept);
  left_ = left_.subspan(kept);
  offset_ += kept;
  if (unnoticed_ >= kProgress) {
    patience_.progressed();
    unnoticed_ = 0;
  }
  // Stops the answer of a whole file once the range is complete.
  return !whole_ || !left_.empty();
}

void RangeSink::end() {
  if (!left_.empty())
    throw TransferError(cat("the answer ended ", left_.size(), " bytes early"), 1000);
}

Error changed_version(const std::string& place, std::string_view field, std::string_view was,
                      std::string_view is) {
  return {ErrorCode::kChanged,
          place,
          ": changed while it was read: its ",
          field == kEtagField ? "ETag" : field,
          " was ",
          quote(was),
          " and is ",
          quote(is)};
}

ContentSink::ContentSink(std::string place, std::uint64_t max_bytes)
    : place_(std::move(place)), max_bytes_(max_bytes) {}

void ContentSink::begin(const HttpHead& head) {
  refuse_coding(place_, head);
  if (head.status != 200) {
    throw TransferError(cat("the server answers a request for the whole file with ", head.status),
                        kTries);
  }
  content = {};
  const auto file = file_of_head(head, version_field_);
  length_known_ = file.has_value();
  if (file) content.file = *file;
  if (content.file.bytes > max_bytes_) {
    throw Error(ErrorCode::kLimitSize, place_, ": has ", content.file.bytes,
                " bytes, more than the ", max_bytes_, " allowed here");
  }
  content.bytes.reserve(content.file.bytes);
}

bool ContentSink::take(std::span<const std::byte> bytes) {
  if (bytes.size() > max_bytes_ - content.bytes.size()) {
    throw Error(ErrorCode::kLimitSize, place_, ": has more than the ", max_bytes_,
                " bytes allowed here");
  }
  content.bytes.insert(content.bytes.end(), bytes.begin(), bytes.end());
  return true;
}

void ContentSink::end() {
  if (length_known_ && content.bytes.size() != content.file.bytes) {
    throw TransferError(
        cat("the answer has ", content.bytes.size(), " of ", content.file.bytes, " bytes"), 1000);
  }
  content.file.bytes = content.bytes.size();
}

}  // namespace fsdp::formats
