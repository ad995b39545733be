// SPDX-License-Identifier: Apache-2.0
#include "formats/remote/s3_upload.h"

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/http/times.h"
#include "formats/remote/digests.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;
constexpr std::uint64_t kLeastPart = 16 * kMiB;
constexpr std::uint64_t kMostParts = 10'000;
// Of the look at what a server did whose answer did not come.
constexpr unsigned kProbeTries = 5;
constexpr std::chrono::seconds kProbeDeadline{10};
constexpr const char* kMarkField = "x-amz-meta-fsdp-ckpt-upload";

std::string new_mark() {
  std::random_device source;
  std::array<char, 16> bytes{};
  for (char& byte : bytes) byte = static_cast<char>(source());
  return hex_text({bytes.data(), bytes.size()});
}

// A long body has longer: at 1 MiB a second.
NetworkLimits limits_for(std::uint64_t bytes) {
  NetworkLimits limits = network_limits();
  limits.deadline += std::chrono::seconds(bytes / kMiB);
  return limits;
}

Error exists_error(const std::string& shown) {
  return {ErrorCode::kExists, shown + ": exists"};
}

// See Note [answers that are lost].  Returns false too if the server does not say.
bool is_ours(S3Client& client, const std::string& shown, const S3Place& place,
             const std::string& mark, std::uint64_t bytes, bool size_tells) {
  NetworkLimits limits = network_limits();
  limits.tries = std::min(limits.tries, kProbeTries);
  limits.deadline = std::min(limits.deadline, kProbeDeadline);
  try {
    Patience patience(shown, limits);
    const HttpAnswer answer = client.send(patience, {"HEAD", place});
    if (!answer.succeeded()) return false;
    const std::string* found = answer.head.find(kMarkField);
    if (found != nullptr) return *found == mark;
    const auto file = file_of_head(answer.head);
    return size_tells && file && file->bytes == bytes;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::uint64_t s3_part_bytes(std::uint64_t bytes) {
  const std::uint64_t least = bytes / kMostParts + (bytes % kMostParts == 0 ? 0 : 1);
  return std::max(kLeastPart, (least + kMiB - 1) / kMiB * kMiB);
}

void put_s3_file(S3Client& client, const std::string& url, std::span<const std::byte> bytes,
                 bool only_new) {
  const S3Place place = s3_place(url);
  const std::string mark = new_mark();
  S3Request request{"PUT", place};
  request.fields = {{"content-md5", base64_text(md5(bytes))}, {kMarkField, mark}};
  if (only_new) request.fields.emplace_back("if-none-match", "*");
  request.body = bytes;
  Patience patience(escape(url), limits_for(bytes.size()));
  const auto in_place = [&] {
    return is_ours(client, patience.place(), place, mark, bytes.size(), false);
  };
  HttpAnswer answer;
  try {
    answer = client.send(patience, std::move(request));
  } catch (const Error&) {
    if (in_place()) return;
    throw;
  }
  if (answer.succeeded() || in_place()) return;
  if (answer.head.status == 412) throw exists_error(patience.place());
  throw refusal(patience.place(), answer, client.dialect());
}

S3Upload::S3Upload(S3Client& client, std::string url, std::uint64_t bytes)
    : client_(client),
      url_(std::move(url)),
      shown_(escape(url_)),
      place_(s3_place(url_)),
      bytes_(bytes),
      part_bytes_(s3_part_bytes(bytes)),
      mark_(new_mark()) {
  S3Request request{"POST", place_, {{"uploads", ""}}};
  request.fields = {{kMarkField, mark_}};
  Patience patience(shown_);
  const HttpAnswer answer = client_.send(patience, std::move(request));
  if (!answer.succeeded()) throw refusal(shown_, answer, client_.dialect());
  try {
    id_ = parse_s3_upload_id(answer.text);
  } catch (const Error& error) {
    throw error.in(shown_);
  }
  etags_.resize(static_cast<std::size_t>(
      std::max<std::uint64_t>(1, bytes / part_bytes_ + (bytes % part_bytes_ == 0 ? 0 : 1))));
}

S3Upload::~S3Upload() {
  if (completed_) return;
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
    throw Error(ErrorCode::kNetwork,
                cat(shown_, ": the server took part ", number + 1, " and gives it no ETag"));
  }
  const std::scoped_lock lock(mutex_);
  etags_.at(number) = std::move(etag);
}

void S3Upload::complete(bool only_new) {
  const std::string body = [&] {
    const std::scoped_lock lock(mutex_);
    return s3_completion(etags_);
  }();
  const auto in_place = [&](bool size_tells) {
    return is_ours(client_, shown_, place_, mark_, bytes_, size_tells);
  };
  try {
    int tries = 0;
    const HttpAnswer answer = ask_to_complete(body, only_new, tries);
    // An upload that is gone after another try was completed by it.
    const bool gone = answer.head.status == 404 && tries > 1;
    if (!answer.succeeded() && !in_place(gone)) {
      if (only_new && answer.head.status == 412) throw exists_error(shown_);
      throw refusal(shown_, answer, client_.dialect());
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNetwork || !in_place(false)) throw;
  }
  completed_ = true;
}

HttpAnswer S3Upload::ask_to_complete(const std::string& body, bool only_new, int& tries) {
  Patience patience(shown_);
  for (;;) {
    S3Request request{"POST", place_, {{"uploadId", id_}}};
    request.fields = {{"content-type", "application/xml"}};
    if (only_new) request.fields.emplace_back("if-none-match", "*");
    request.body = std::as_bytes(std::span(body));
    // The server puts thousands of parts together, and sends blanks meanwhile.
    request.stall = std::max(patience.limits().stall, patience.limits().deadline / 4);
    HttpAnswer answer = client_.send(patience, std::move(request), nullptr, kMiB,
                                     [&](S3Request& /*request*/) { ++tries; });
    // The server answers before it knows how it ends.
    if (!answer.succeeded() || parse_s3_refusal(answer.text).code.empty()) return answer;
    patience.wait(cat("the server answers ", client_.dialect().words(answer)));
  }
}

}  // namespace fsdp::formats
