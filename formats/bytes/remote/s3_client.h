// SPDX-License-Identifier: Apache-2.0
// Requests to one S3 interface: signed, sent to the right region, by credentials that are valid.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "formats/bytes/http/exchange.h"
#include "formats/bytes/remote/credentials.h"
#include "formats/bytes/remote/s3_answers.h"
#include "formats/bytes/remote/s3_place.h"

namespace fsdp::formats {

struct S3Request {
  std::string method = "GET";
  S3Place place;
  Query query = {};
  std::vector<std::pair<std::string, std::string>> fields = {};  // names in lower case
  std::span<const std::byte> body = {};
  std::chrono::seconds stall{0};  // as HttpRequest has it; 0: the usual one
  bool though_interrupted = false;
  bool once = false;  // as HttpRequest has it
};

// Thread-safe.
class S3Client {
 public:
  // `find`: of credentials.  Throws: kUnsupported where libcurl cannot be loaded.
  S3Client(S3Settings settings, std::function<Credentials(HttpClient&)> find);

  // Returns the answer, repeated as long as `patience` lasts where it may become another one.  A
  // refusal of HEAD, which has no words, is that of a GET of its first byte.  `describe` is called
  // before each try, and may change fields.
  // Throws: as exchange does, and as the credentials do.
  HttpAnswer send(Patience& patience, S3Request request, HttpSink* sink = nullptr,
                  std::size_t max_text = std::size_t{1} << 20U,
                  const std::function<void(S3Request&)>& describe = nullptr);
  // Sends it up to three times, within a moment, though a signal came.  nullopt: no answer, or none
  // but passing ones.
  std::optional<HttpAnswer> try_to_send(S3Request request) noexcept;

  const Dialect& dialect() const { return dialect_; }
  HttpClient& http() { return http_; }

 private:
  std::string region_of(const std::string& bucket);
  bool learn_region(const std::string& bucket, const std::string& used, const HttpAnswer& answer);
  HttpRequest signed_request(const S3Request& request, const Address& address,
                             const std::string& region, const Credentials& credentials) const;

  HttpClient http_;
  const S3Settings settings_;
  const S3Dialect dialect_;
  CredentialCache credentials_;
  std::mutex mutex_;
  std::map<std::string, std::string> regions_;  // of buckets, where they are not the usual one
};

}  // namespace fsdp::formats
