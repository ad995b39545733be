// SPDX-License-Identifier: Apache-2.0
// A server of HTTP on this machine that gives prepared answers, byte for byte.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace fsdp::test {

// What a client sent.
struct SeenRequest {
  std::string line;  // GET /a HTTP/1.1
  std::string head;  // the lines behind it, in lower case, each with its end
  std::string body;
};

enum class Then {
  kKeep,   // the connection stays open for the next request
  kClose,  // it ends
  kReset,  // it breaks
  kStall,  // nothing more comes, and the connection stays open
};

struct ScriptedAnswer {
  std::string bytes;
  Then then = Then::kKeep;
};

// "HTTP/1.1 <status> ...", these fields ("etag: \"a\"\r\n"), and a body with its length.
std::string whole_answer(int status, std::string_view body, std::string_view fields = {});

// Each request gets the next answer, whichever connection it comes by; after the last one
// connections are closed without an answer.  Thread-safe.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<ScriptedAnswer> answers);
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;
  ~ScriptedServer();

  // 127.0.0.1:port
  const std::string& authority() const { return authority_; }
  std::string url(std::string_view target) const {
    return "http://" + authority_ + std::string(target);
  }
  std::vector<SeenRequest> seen() const;
  std::size_t connection_count() const;
  // Returns once so many requests have come.
  void wait_for(std::size_t requests) const;

 private:
  void accept_all();
  void serve(int socket);
  // False: the connection ended before a whole request.
  bool receive(int socket, std::string& pending);
  ScriptedAnswer next();

  int listener_ = -1;
  std::string authority_;
  mutable std::mutex mutex_;
  mutable std::condition_variable came_;
  std::deque<ScriptedAnswer> answers_;
  std::vector<SeenRequest> seen_;
  bool ending_ = false;
  std::vector<int> sockets_;  // closed by the destructor alone, so that no number comes twice
  std::vector<std::jthread> threads_;
  std::jthread accepting_;
};

}  // namespace fsdp::test
