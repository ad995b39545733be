// SPDX-License-Identifier: Apache-2.0
// One request of HTTP and its answer, by libcurl.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/interface.h"
#include "formats/bytes/http/headers.h"

namespace fsdp::formats {

struct HttpRequest {
  std::string method = "GET";  // or HEAD, PUT, POST, DELETE
  std::string url;             // encoded
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::span<const std::byte> body = {};  // of PUT and POST; outlives the request
  // The longest time for the whole request; 0: as long as bytes keep coming.
  std::chrono::milliseconds timeout{0};
  // The longest time without a byte in either direction; 0: no limit.
  std::chrono::seconds stall{0};
  bool past_proxies = false;        // ignores proxies of the environment
  bool though_interrupted = false;  // undoes something: is sent after a signal too
  // Sent once, on a connection of its own.  Otherwise libcurl may send the request again by itself
  // if a kept connection turns out to be closed.
  bool once = false;
};

// Receives the body of an answer.
class HttpSink : public Interface {
 public:
  // Called with the head when a 2xx answer begins to have a body.  An exception ends the request
  // and is thrown on.
  virtual void begin(const HttpHead& head) = 0;
  // Returns whether more is wanted; false ends the request successfully.
  virtual bool take(std::span<const std::byte> bytes) = 0;
  // Called when the whole body of a 2xx answer has come.  Throws TransferError if it is incomplete.
  virtual void end() = 0;
};

struct HttpAnswer {
  HttpHead head;
  // The body of an answer that no sink took; of a refusal, its first 64 KiB.
  std::string text;

  // Returns whether the status is 2xx.
  bool succeeded() const { return head.status >= 200 && head.status < 300; }
};

// The request brought no answer, or one that makes no sense.  The text holds no secret.
class TransferError : public std::runtime_error {
 public:
  // `tries`: how often the request may be tried in all before the error is reported.
  TransferError(const std::string& words, unsigned tries)
      : std::runtime_error(words), tries_(tries) {}
  unsigned tries() const noexcept { return tries_; }

 private:
  unsigned tries_;
};

// Sends requests, each in the calling thread and up to hundreds at once.  Connections stay open for
// later requests; host names and TLS sessions are shared.  Certificates are always checked, against
// the file that AWS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE names, else libcurl's, else this
// machine's (certificates.h).  Thread-safe.
class HttpClient {
 public:
  // Loads libcurl.  Throws: kUnsupported, naming what is missing.
  HttpClient();
  ~HttpClient();

  // Returns redirects as answers.  `sink`: receives the body of a 2xx answer; null: the body
  // becomes `text`, at most `max_text` bytes.
  // Throws: TransferError; kInterrupted; what the sink throws.
  HttpAnswer send(const HttpRequest& request, HttpSink* sink,
                  std::size_t max_text = std::size_t{1} << 20U);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::formats
