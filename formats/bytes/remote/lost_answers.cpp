// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/lost_answers.h"

#include <algorithm>
#include <array>
#include <exception>
#include <random>
#include <vector>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/remote/digests.h"
#include "formats/bytes/remote/s3_answers.h"

namespace fsdp::formats {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr unsigned kLookTries = 5;
constexpr std::chrono::seconds kLookDeadline{10};
// Servers report times in whole seconds.
constexpr nanoseconds kCoarse = std::chrono::seconds(2);

// Sends a request within seconds; nullopt: no answer.
std::optional<HttpAnswer> look(S3Client& client, const S3Request& request) {
  NetworkLimits limits = network_limits();
  limits.tries = std::min(limits.tries, kLookTries);
  limits.deadline = std::min(limits.deadline, kLookDeadline);
  if (!interrupted()) {
    try {
      Patience patience("", limits);
      return client.send(patience, request);
    } catch (const Error&) {
      if (!interrupted()) return std::nullopt;
    }
  }
  return client.try_to_send(request);
}

S3Request list_request(const S3Place& place) {
  // Lists one key: a key sorts before all longer keys that begin with it.
  return {"GET",
          {place.bucket, {}},
          {{"list-type", "2"}, {"encoding-type", "url"}, {"max-keys", "1"}, {"prefix", place.key}}};
}

bool has_key(const HttpAnswer& answer, const S3Place& place) {
  const std::size_t name = place.key.rfind('/') + 1;  // npos + 1 is 0
  const S3Page page = parse_s3_page(answer.text, place.key.substr(0, name));
  return std::ranges::any_of(page.entries, [&](const StoredEntry& entry) {
    return entry.file && entry.name == place.key.substr(name);
  });
}

}  // namespace

std::string new_mark() {
  std::random_device source;
  std::array<char, 16> bytes{};
  for (char& byte : bytes) byte = static_cast<char>(source());
  return hex_text({bytes.data(), bytes.size()});
}

std::optional<bool> is_in_place(S3Client& client, const S3Place& place, const OwnFile& own) {
  const auto answer = look(client, {"HEAD", place});
  if (!answer) return std::nullopt;
  if (is_missing(answer->head.status)) {
    const auto list = look(client, list_request(place));
    if (!list || !list->succeeded()) return std::nullopt;
    try {
      if (!has_key(*list, place)) return false;
    } catch (const Error&) {
      // The server contradicts itself, or its answer is empty.
    }
    return std::nullopt;
  }
  if (!answer->succeeded()) return std::nullopt;
  if (const std::string* mark = answer->head.find(kMarkField)) return *mark == own.mark;
  const auto file = file_of_head(answer->head);
  if (own.size_tells && file) return file->bytes == own.bytes;
  return std::nullopt;
}

bool is_listed(S3Client& client, Patience& patience, const S3Place& place) {
  const HttpAnswer answer = client.send(patience, list_request(place));
  if (!answer.succeeded()) throw refusal(patience.place(), answer, client.dialect());
  try {
    return has_key(answer, place);
  } catch (const Error& error) {
    throw error.in(patience.place());
  }
}

void LostBeginnings::note_try() {
  last_ = steady_clock::now();
  if (tries_++ == 0) first_ = last_;
}

void LostBeginnings::abort(S3Client& client, const S3Place& place,
                           const std::string& own) noexcept {
  const std::size_t most = tries_ - known_;
  if (most == 0) return;
  try {
    const auto answer =
        client.try_to_send({"GET",
                            {place.bucket, {}},
                            {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", place.key}}});
    if (!answer || !answer->succeeded()) return;
    std::vector<S3Begun> begun = parse_s3_begun(answer->text);
    std::erase_if(begun, [&](const S3Begun& upload) { return upload.key != place.key; });
    // The window compares times of the server's clock, and durations of the local one.
    std::optional<std::int64_t> end;
    auto passed = last_ - first_;
    if (own.empty()) {
      passed = steady_clock::now() - first_;
      if (const std::string* date = answer->head.find("date")) end = parse_http_date(*date);
    } else {
      for (const S3Begun& upload : begun) {
        if (upload.id == own && upload.time_ns != 0) end = upload.time_ns;
      }
    }
    if (!end) return;
    const std::int64_t begin = *end - nanoseconds(passed + kCoarse).count();
    std::erase_if(begun, [&](const S3Begun& upload) {
      return upload.id == own || upload.time_ns < begin || upload.time_ns > *end + kCoarse.count();
    });
    std::erase_if(begun, [&](const S3Begun& upload) {
      const auto parts = client.try_to_send({"GET", place, {{"uploadId", upload.id}}});
      return !parts || !parts->succeeded() || parse_s3_part_count(parts->text) != 0;
    });
    if (begun.size() > most) return;
    for (const S3Begun& upload : begun)
      client.try_to_send({"DELETE", place, {{"uploadId", upload.id}}});
  } catch (const std::exception&) {
    // The uploads stay, as those of a killed process do.
  }
}

}  // namespace fsdp::formats
