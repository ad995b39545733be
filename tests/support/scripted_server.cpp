// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace fsdp::test {
namespace {

std::size_t length_of_body(std::string_view head) {
  constexpr std::string_view kName = "content-length: ";
  const std::size_t at = head.find(kName);
  std::size_t length = 0;
  if (at != std::string_view::npos) {
    const std::string_view rest = head.substr(at + kName.size());
    std::from_chars(rest.data(), rest.data() + rest.size(), length);
  }
  return length;
}

bool receive_more(int socket, std::string& pending) {
  std::array<char, 16384> buffer{};
  const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
  if (got > 0) pending.append(buffer.data(), static_cast<std::size_t>(got));
  return got > 0;
}

// False: the client went away.
bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void reset_connection(int socket) {
  // Closing a socket that does not linger sends RST; so does connecting it to nothing, and leaves
  // the descriptor to its owner.
  sockaddr nothing{};
  nothing.sa_family = AF_UNSPEC;
  ::connect(socket, &nothing, sizeof nothing);
}

}  // namespace

std::string whole_answer(int status, std::string_view body, std::string_view fields) {
  return "HTTP/1.1 " + std::to_string(status) + " words\r\n" + std::string(fields) +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

ScriptedServer::ScriptedServer(std::vector<ScriptedAnswer> answers)
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      answers_(std::make_move_iterator(answers.begin()), std::make_move_iterator(answers.end())) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, plain, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, plain, &size) != 0) {
    throw std::runtime_error("cannot listen on 127.0.0.1");
  }
  authority_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  accepting_ = std::jthread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  for (std::jthread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

std::vector<SeenRequest> ScriptedServer::seen() const {
  const std::scoped_lock lock(mutex_);
  return seen_;
}

std::size_t ScriptedServer::connection_count() const {
  const std::scoped_lock lock(mutex_);
  return sockets_.size();
}

void ScriptedServer::wait_for(std::size_t requests) const {
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return seen_.size() >= requests; });
}

void ScriptedServer::accept_all() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    const std::scoped_lock lock(mutex_);
    sockets_.push_back(socket);
    if (ending_) return;
    threads_.emplace_back([this, socket] { serve(socket); });
  }
}

void ScriptedServer::serve(int socket) {
  std::string pending;
  while (receive(socket, pending)) {
    const ScriptedAnswer answer = next();
    if (!send_all(socket, answer.bytes)) return;
    if (answer.then == Then::kKeep) continue;
    if (answer.then == Then::kReset) {
      reset_connection(socket);
    } else if (answer.then == Then::kClose) {
      ::shutdown(socket, SHUT_WR);
    }
    while (receive_more(socket, pending)) {
    }
    return;
  }
}

bool ScriptedServer::receive(int socket, std::string& pending) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  std::size_t end = 0;
  while ((end = pending.find(kEnd)) == std::string::npos) {
    if (!receive_more(socket, pending)) return false;
  }
  SeenRequest request;
  const std::size_t line_end = pending.find("\r\n");
  request.line = pending.substr(0, line_end);
  request.head = pending.substr(line_end + 2, end + 2 - (line_end + 2));
  std::transform(request.head.begin(), request.head.end(), request.head.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  pending.erase(0, end + kEnd.size());
  const std::size_t length = length_of_body(request.head);
  while (pending.size() < length) {
    if (!receive_more(socket, pending)) return false;
  }
  request.body = pending.substr(0, length);
  pending.erase(0, length);
  const std::scoped_lock lock(mutex_);
  seen_.push_back(std::move(request));
  came_.notify_all();
  return true;
}

ScriptedAnswer ScriptedServer::next() {
  const std::scoped_lock lock(mutex_);
  if (answers_.empty()) return {"", Then::kClose};
  ScriptedAnswer answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

}  // namespace fsdp::test
