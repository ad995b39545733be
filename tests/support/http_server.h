// SPDX-License-Identifier: Apache-2.0
// A server of HTTP on loopback in threads of the test, which answers as the test likes.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp::test {

struct HttpRequestSeen {
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

// `raw`: sent as it is instead of all else, and the connection is closed behind it.
struct HttpReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields = {};
  std::string body = {};
  std::string raw = {};
};

class HttpServer {
 public:
  using Answer = std::function<HttpReply(const HttpRequestSeen&)>;

  explicit HttpServer(Answer answer);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  std::string authority() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url() const { return "http://" + authority(); }
  // In the order of their arrival.
  std::vector<HttpRequestSeen> seen() const;

 private:
  void serve(int fd);

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<HttpRequestSeen> seen_;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
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

// Without what would lead a client of a store elsewhere, and with `values`.
std::vector<std::pair<std::string, std::string>> store_environment(
    std::vector<std::pair<std::string, std::string>> values);

}  // namespace fsdp::test
