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

#include "formats/bytes/http/headers.h"

namespace fsdp::formats {

struct HttpRequest {
  std::string method = "GET";  // or HEAD, PUT, POST, DELETE
  std::string url;             // encoded
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::span<const std::byte> body = {};  // of PUT and POST; outlives the request
  // The longest time for the whole of it; 0: as long as bytes go on coming.
  std::chrono::milliseconds timeout{0};
  // Bytes must come or go again within this time; 0: no matter when.
  std::chrono::seconds stall{0};
  bool past_proxies = false;        // straight to the host, whatever the environment says
  bool though_interrupted = false;  // takes something back: is sent after a signal too
  // Sent once, by a connection of its own.  Otherwise libcurl may send it again by itself, where a
  // connection that was kept open turns out to be closed.
  bool once = false;
};

// Where the body of an answer goes.
class HttpSink {
 public:
  HttpSink() = default;
  HttpSink(const HttpSink&) = delete;
  HttpSink& operator=(const HttpSink&) = delete;
  virtual ~HttpSink() = default;

  // Called once an answer of 2xx begins to have a body, with its head.  What it throws ends the
  // request and is thrown on.
  virtual void begin(const HttpHead& head) = 0;
  // Returns whether more is wanted; if not, the request ends here, and well.
  virtual bool take(std::span<const std::byte> bytes) = 0;
  // Called when the whole of such an answer has come.  Throws TransferError if it is not all.
  virtual void end() = 0;
};

struct HttpAnswer {
  HttpHead head;
  // The body of an answer that no sink took; of a refusal, its first 64 KiB.
  std::string text;

  // Whether the status is one of 2xx.
  bool succeeded() const { return head.status >= 200 && head.status < 300; }
};

// The request brought no answer, or none that makes sense.  The words hold no secret.
class TransferError : public std::runtime_error {
 public:
  // `tries`: how often it may be tried in all before somebody is told.
  TransferError(const std::string& words, unsigned tries)
      : std::runtime_error(words), tries_(tries) {}
  unsigned tries() const noexcept { return tries_; }

 private:
  unsigned tries_;
};

// Sends requests, each in the calling thread and up to hundreds at once.  Connections stay open for
// later requests; names and sessions of TLS are shared.  Certificates are checked always, against
// the file that AWS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE names, else libcurl's.  Thread-safe.
class HttpClient {
 public:
  // Loads libcurl.  Throws: kUnsupported, telling what is missing.
  HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Redirects are answers.  `sink`: for the body of an answer of 2xx; null: it becomes text, of at
  // most `max_text` bytes.
  // Throws: TransferError; kInterrupted; what the sink throws.
  HttpAnswer send(const HttpRequest& request, HttpSink* sink,
                  std::size_t max_text = std::size_t{1} << 20U);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fsdp::formats
