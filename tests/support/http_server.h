// SPDX-License-Identifier: Apache-2.0
// An HTTP server on loopback, in threads of the test, which chooses the answers.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::test {

struct HttpRequestSeen {
  std::string line;  // GET /a%20b?c=1 HTTP/1.1
  std::string head;  // the lines after it, in lower case
  std::string method;
  std::string target;                         // as it was sent: /a%20b?c=1
  std::map<std::string, std::string> fields;  // by names in lower case
  std::string body;

  std::string path() const { return target.substr(0, target.find('?')); }
  bool has(const std::string& name) const { return fields.count(name) != 0; }
  std::string field(const std::string& name) const {
    const auto at = fields.find(name);
    return at == fields.end() ? std::string() : at->second;
  }
};

// What happens to the connection after an answer.
enum class Then {
  kKeep,   // it stays open for the next request
  kClose,  // it ends
  kReset,  // it breaks
  kStall,  // nothing more comes, and it stays open
};

// An answer byte for byte.
struct RawReply {
  std::string bytes;
  Then then = Then::kKeep;
};
// "HTTP/1.1 <status> ...", these fields ("etag: \"a\"\r\n"), and a body with its length.
std::string whole_answer(int status, std::string_view body, std::string_view fields = {});

// `raw`: sent instead of all other members.
struct HttpReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::string body = {};
  std::optional<RawReply> raw = {};
};

// Thread-safe.
class HttpServer {
 public:
  using Answer = std::function<HttpReply(const HttpRequestSeen&)>;

  explicit HttpServer(Answer answer);
  // Each request gets the next answer, whichever connection it comes by; after the last one
  // connections are closed without an answer.
  explicit HttpServer(std::vector<RawReply> replies);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  std::string authority() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url(std::string_view target = {}) const {
    return "http://" + authority() + std::string(target);
  }
  // In the order of their arrival.
  std::vector<HttpRequestSeen> seen() const;
  std::size_t connection_count() const;
  // Returns once so many requests have come.
  void wait_for(std::size_t requests) const;

 private:
  void accept_all();
  void serve(int fd);

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::vector<HttpRequestSeen> seen_;
  bool ending_ = false;
  std::vector<int> open_;  // closed by the destructor alone, so that no descriptor is reused
  std::vector<std::jthread> threads_;
  std::jthread acceptor_;
};

// Sets variables of the environment for one test; an empty value takes one away.
class Environment {
 public:
  explicit Environment(std::vector<std::pair<std::string, std::string>> values);
  Environment(const char* name, const std::string& value)
      : Environment(std::vector<std::pair<std::string, std::string>>{{name, value}}) {}
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

// Returns `values` after settings that remove what would lead a client of a store elsewhere.
std::vector<std::pair<std::string, std::string>> store_environment(
    std::vector<std::pair<std::string, std::string>> values);

}  // namespace fsdp::test
