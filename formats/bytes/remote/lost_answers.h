// SPDX-License-Identifier: Apache-2.0
// Looks at what a server of S3 did whose answer did not come.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "formats/bytes/remote/s3_client.h"

namespace fsdp::formats {

// Note [answers that are lost]
// A server may do what it is asked and its answer be lost.  The next try then finds the file there,
// or its upload gone; and if there is no next try, nobody knows.  So each file has a mark of its
// own among its metadata, by which the writer knows its own file from another one's.  It looks
// whenever a request did not succeed.  Such a request has a connection of its own: libcurl asks
// again by itself where one that was kept open turns out to be closed, and nobody would know that
// an answer was lost.  A 404 counts as long as the server does not list the file.  An
// upload is aborted before the look, so that it cannot be completed after it; a file that is put by
// one request has to be there by then.  Where the look brings nothing, the error is an
// UncertainError, and nothing is removed that the file may lead to.
inline constexpr const char* kMarkField = "x-amz-meta-fsdp-ckpt-upload";
std::string new_mark();

struct OwnFile {
  std::string mark;
  std::uint64_t bytes = 0;
  // Whether a file without any mark is this one if its size is: the upload is gone, which only its
  // completion explains, and some servers keep no metadata.
  bool size_tells = false;
};

// Whether `place` has that file; nullopt: the server does not say.  Asks within seconds, and though
// a signal came.
std::optional<bool> is_in_place(S3Client& client, const S3Place& place, const OwnFile& own);

// Whether a list has the file.  Throws: as S3Client::send; kNetwork for an answer that makes no
// sense, and those of refusal.
bool is_listed(S3Client& client, Patience& patience, const S3Place& place);

// Counts the tries to begin an upload, of which those without an answer may have begun one more,
// that nobody knows, holds no part, and costs its owner something until it is aborted.
class LostBeginnings {
 public:
  // A try begins.
  void note_try();
  // What became of the last one is known: its upload, or that there is none.
  void note_answer() { known_ = 1; }
  // Aborts them: uploads of exactly that key which were begun between the first try and now, or, if
  // `own` is not empty, the beginning of that upload, and have no part.  None if there are more of
  // them than tries that may have begun one, or the server does not tell their times: others may be
  // writing there.  Within seconds, and though a signal came.
  void abort(S3Client& client, const S3Place& place, const std::string& own) noexcept;

 private:
  std::size_t tries_ = 0;
  std::size_t known_ = 0;
  std::chrono::steady_clock::time_point first_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace fsdp::formats
