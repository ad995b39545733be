// SPDX-License-Identifier: Apache-2.0
// Sends requests to one S3 interface: signed with valid credentials, and to the right region.
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
  std::vector<std::pair<std::string, std::string>> fields = {};  // names are in lower case
  std::span<const std::byte> body = {};
  std::chrono::seconds stall{0};  // as in HttpRequest; 0: the default
  bool though_interrupted = false;
  bool once = false;  // as in HttpRequest
};

// Thread-safe.
class S3Client {
 public:
  // `find`: finds credentials.  Throws: kUnsupported where libcurl cannot be loaded.
  S3Client(S3Settings settings, std::function<Credentials(HttpClient&)> find);

  // Returns the answer.  Repeats the request while `patience` lasts and the error may pass.
  // Repeats a refused HEAD as a GET of the first byte, since a HEAD has no error text.  Calls
  // `describe`, which may change fields, before each attempt.
  // Throws: as exchange does, and as the credentials do.
  HttpAnswer send(Patience& patience, S3Request request, HttpSink* sink = nullptr,
                  std::size_t max_text = std::size_t{1} << 20U,
                  const std::function<void(S3Request&)>& describe = nullptr);
  // Sends the request up to three times, within seconds, even after a signal.  Returns nullopt if
  // every attempt fails or gets a transient answer.
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
  std::map<std::string, std::string> regions_;  // by bucket, where it is not the default
};

}  // namespace fsdp::formats
