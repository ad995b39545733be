// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_upload.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/remote/digests.h"
#include "formats/bytes/remote/s3_answers.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kLeastPart = 16 * kMiB;
constexpr std::uint64_t kMostParts = 10'000;

// Returns the limits for a body of `bytes` bytes: one more second for each MiB.
NetworkLimits limits_for(std::uint64_t bytes) {
  NetworkLimits limits = network_limits();
  limits.deadline += std::chrono::seconds(bytes / kMiB);
  return limits;
}

// Makes a file visible by `ask`, which counts its attempts; `give_up` is called after an answer was
// lost.  Returns if the file is in place then.  See Note [answers that are lost].
void make_visible(S3Client& client, const S3Place& place, const std::string& shown, bool only_new,
                  OwnFile own, const std::function<HttpAnswer(int& tries)>& ask,
                  const std::function<void()>& give_up = nullptr) {
  int tries = 0;
  bool lost = false;
  std::optional<Error> why;
  try {
    const HttpAnswer answer = ask(tries);
    if (answer.succeeded()) return;
    lost = tries > 1;
    own.size_tells = own.size_tells && lost && is_missing(answer.head.status);
    why = only_new && answer.head.status == 412 ? Error(ErrorCode::kExists, shown + ": exists")
                                                : refusal(shown, answer, client.dialect());
  } catch (const Error& error) {
    if (tries == 0) throw;
    lost = true;
    own.size_tells = false;
    why = error;
  }
  if (lost && give_up) give_up();
  const std::optional<bool> found = is_in_place(client, place, own);
  if (found == true) return;
  if (!found && lost)
    throw UncertainError(
        cat(why->what(), "; the server does not say whether the file is in place"));
  throw *why;
}

}  // namespace

std::uint64_t s3_part_bytes(std::uint64_t bytes) {
  const std::uint64_t least = bytes / kMostParts + (bytes % kMostParts == 0 ? 0 : 1);
  return std::max(kLeastPart, (least + kMiB - 1) / kMiB * kMiB);
}

void put_s3_file(S3Client& client, const std::string& url, std::span<const std::byte> bytes,
                 bool only_new) {
  const S3Place place = s3_place(url);
  const OwnFile own{new_mark(), bytes.size()};
  S3Request request{"PUT", place};
  request.fields = {{"content-md5", base64_text(md5(bytes))}, {kMarkField, own.mark}};
  if (only_new) request.fields.emplace_back("if-none-match", "*");
  request.body = bytes;
  request.once = true;  // so that tries are counted
  Patience patience(escape(url), limits_for(bytes.size()));
  make_visible(client, place, patience.place(), only_new, own, [&](int& tries) {
    return client.send(patience, std::move(request), nullptr, kMiB,
                       [&](S3Request& /*request*/) { ++tries; });
  });
}

S3Upload::S3Upload(S3Client& client, std::string url, std::uint64_t bytes)
    : client_(client),
      url_(std::move(url)),
      shown_(escape(url_)),
      place_(s3_place(url_)),
      bytes_(bytes),
      part_bytes_(s3_part_bytes(bytes)),
      mark_(new_mark()) {
  try {
    begin();
  } catch (...) {
    beginnings_.abort(client_, place_, "");
    throw;
  }
  etags_.resize(static_cast<std::size_t>(
      std::max<std::uint64_t>(1, bytes / part_bytes_ + (bytes % part_bytes_ == 0 ? 0 : 1))));
}

void S3Upload::begin() {
  S3Request request{"POST", place_, {{"uploads", ""}}};
  request.fields = {{kMarkField, mark_}};
  request.once = true;
  Patience patience(shown_);
  const HttpAnswer answer = client_.send(patience, std::move(request), nullptr, kMiB,
                                         [&](S3Request& /*request*/) { beginnings_.note_try(); });
  if (!answer.succeeded()) {
    beginnings_.note_answer();
    throw refusal(shown_, answer, client_.dialect());
  }
  try {
    id_ = parse_s3_upload_id(answer.text);
  } catch (const Error& error) {
    throw error.in(shown_);
  }
  beginnings_.note_answer();
}

S3Upload::~S3Upload() {
  if (completed_) return;
  beginnings_.abort(client_, place_, id_);
  client_.try_to_send({"DELETE", place_, {{"uploadId", id_}}});
}

void S3Upload::put(std::uint32_t number, std::span<const std::byte> bytes) {
  S3Request request{"PUT", place_, {{"partNumber", std::to_string(number + 1)}, {"uploadId", id_}}};
  request.fields = {{"content-md5", base64_text(md5(bytes))}};
  request.body = bytes;
  Patience patience(shown_, limits_for(bytes.size()));
  const HttpAnswer answer = client_.send(patience, std::move(request));
  if (!answer.succeeded()) throw refusal(shown_, answer, client_.dialect());
  const std::string* field = answer.head.find("etag");
  std::string etag = field == nullptr ? std::string() : strong_etag(*field);
  if (etag.empty()) {
    throw Error(ErrorCode::kNetwork, shown_, ": the server accepted part ", number + 1,
                " without an ETag");
  }
  const std::scoped_lock lock(mutex_);
  etags_.at(number) = std::move(etag);
}

void S3Upload::complete(bool only_new) {
  const std::string body = [&] {
    const std::scoped_lock lock(mutex_);
    return s3_completion(etags_);
  }();
  beginnings_.abort(client_, place_, id_);
  // If the upload is gone on a later attempt, an earlier attempt completed it.
  make_visible(
      client_, place_, shown_, only_new, {mark_, bytes_, true},
      [&](int& tries) { return ask_to_complete(body, only_new, tries); },
      // After the abort, the upload cannot be completed any more.
      [&] {
        client_.try_to_send({"DELETE", place_, {{"uploadId", id_}}});
      });
  completed_ = true;
}

HttpAnswer S3Upload::ask_to_complete(const std::string& body, bool only_new, int& tries) {
  Patience patience(shown_);
  for (;;) {
    S3Request request{"POST", place_, {{"uploadId", id_}}};
    request.fields = {{"content-type", "application/xml"}};
    if (only_new) request.fields.emplace_back("if-none-match", "*");
    request.body = std::as_bytes(std::span(body));
    request.once = true;  // so that tries are counted
    // The server joins thousands of parts, and sends blanks meanwhile.
    request.stall = std::max(patience.limits().stall, patience.limits().deadline / 4);
    HttpAnswer answer = client_.send(patience, std::move(request), nullptr, kMiB,
                                     [&](S3Request& /*request*/) { ++tries; });
    // The server sends its status before the result is known, so a 200 may hold an error.
    if (!answer.succeeded() || parse_s3_refusal(answer.text).code.empty()) return answer;
    patience.wait(cat("the server answers ", client_.dialect().words(answer)));
  }
}

}  // namespace fsdp::formats
