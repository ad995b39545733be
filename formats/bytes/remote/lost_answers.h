// SPDX-License-Identifier: Apache-2.0
// Finds out what an S3 server did when its answer is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "formats/bytes/remote/s3_client.h"

namespace fsdp::formats {

// Note [answers that are lost]
// A server may carry out a request whose answer is then lost.  The next attempt finds the file in
// place, or its upload gone; without a next attempt, the result is unknown.  So each file carries a
// mark in its metadata, by which the writer tells its own file from another one's.  The writer
// looks for the mark whenever a request did not succeed.  Such requests use a connection of their
// own: libcurl repeats a request by itself if a kept-open connection turns out to be closed, which
// would hide a lost answer.  A 404 means that the file is absent only if the server does not list
// the file either.  An upload is aborted before the look, so that it cannot be completed
// afterwards; a file that is put by one request must be there by then.  If the look brings no
// result, the error is an UncertainError, and nothing is removed to which the file may refer.
inline constexpr const char* kMarkField = "x-amz-meta-fsdp-ckpt-upload";
std::string new_mark();

struct OwnFile {
  std::string mark;
  std::uint64_t bytes = 0;
  // True if a file without a mark counts as this one when its size is equal: the upload no longer
  // exists, which only its completion explains, and some servers keep no metadata.
  bool size_tells = false;
};

// Returns whether `place` has the file `own`; nullopt: the server does not say.  Takes seconds at
// most, and works after a signal.
std::optional<bool> is_in_place(S3Client& client, const S3Place& place, const OwnFile& own);

// Returns whether the server lists the file.  Throws: as S3Client::send; kNetwork for a malformed
// answer; the errors of a refusal.
bool is_listed(S3Client& client, Patience& patience, const S3Place& place);

// Tracks unanswered attempts to start an upload; each may have left an orphan without parts that is
// billed until it is aborted.
class LostBeginnings {
 public:
  // Records that an attempt begins.
  void note_try();
  // Records that the result of the last attempt is known: its upload, or a refusal.
  void note_answer() { known_ = 1; }
  // Aborts the orphans: uploads of exactly this key that have no parts and were begun between the
  // first attempt and now, or, if `own` is not empty, the beginning of the upload `own`.  Aborts
  // none if there are more of them than unanswered attempts, since others may be writing there, or
  // if the server does not report times.  Takes seconds at most, and works after a signal.
  void abort(S3Client& client, const S3Place& place, const std::string& own) noexcept;

 private:
  std::size_t tries_ = 0;
  std::size_t known_ = 0;
  std::chrono::steady_clock::time_point first_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace fsdp::formats
