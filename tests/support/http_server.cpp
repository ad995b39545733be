// SPDX-License-Identifier: Apache-2.0
#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>

namespace fsdp::test {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// One request from a connection; nullopt: it was closed.
std::optional<HttpRequestSeen> read_request(int fd, std::string& buffer) {
  const auto more = [&] {
    std::array<char, 65536> block{};
    const ssize_t got = ::recv(fd, block.data(), block.size(), 0);
    if (got > 0) buffer.append(block.data(), static_cast<std::size_t>(got));
    return got > 0;
  };
  std::size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) return std::nullopt;
  }
  HttpRequestSeen request;
  std::string head = buffer.substr(0, end + 2);
  buffer.erase(0, end + 4);
  const std::string first = head.substr(0, head.find("\r\n"));
  const std::size_t blank = first.find(' ');
  request.line = first;
  request.head = lower(head.substr(first.size() + 2));
  request.method = first.substr(0, blank);
  request.target = first.substr(blank + 1, first.rfind(' ') - blank - 1);
  for (std::size_t at = first.size() + 2; at < head.size();) {
    const std::size_t line_end = head.find("\r\n", at);
    const std::string line = head.substr(at, line_end - at);
    const std::size_t colon = line.find(':');
    request.fields[lower(line.substr(0, colon))] =
        line.substr(std::min(line.find_first_not_of(' ', colon + 1), line.size()));
    at = line_end + 2;
  }
  const std::string length = request.field("content-length");
  const std::size_t bytes = length.empty() ? 0 : std::stoul(length);
  while (buffer.size() < bytes) {
    if (!more()) return std::nullopt;
  }
  request.body = buffer.substr(0, bytes);
  buffer.erase(0, bytes);
  return request;
}

// False: the client went away.
bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void reset_connection(int fd) {
  // Closing a socket that does not linger sends RST; so does connecting it to nothing, and leaves
  // the descriptor to its owner.
  sockaddr nothing{};
  nothing.sa_family = AF_UNSPEC;
  ::connect(fd, &nothing, sizeof nothing);
}

// Waits until the client goes away.
void await_end(int fd) {
  std::array<char, 65536> block{};
  while (::recv(fd, block.data(), block.size(), 0) > 0) {
  }
}

RawReply raw_of(const HttpRequestSeen& request, HttpReply reply) {
  if (reply.raw) return *std::move(reply.raw);
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " Answer\r\n";
  const bool has_length =
      std::any_of(reply.fields.begin(), reply.fields.end(),
                  [](const auto& field) { return lower(field.first) == "content-length"; });
  if (!has_length && reply.status != 204) {
    reply.fields.emplace_back("Content-Length", std::to_string(reply.body.size()));
  }
  for (const auto& [name, value] : reply.fields) text += name + ": " + value + "\r\n";
  text += "\r\n";
  if (request.method != "HEAD") text += reply.body;
  return {std::move(text)};
}

}  // namespace

std::string whole_answer(int status, std::string_view body, std::string_view fields) {
  return "HTTP/1.1 " + std::to_string(status) + " words\r\n" + std::string(fields) +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

HttpServer::HttpServer(std::vector<RawReply> replies)
    : HttpServer([replies = std::move(replies),
                  next = std::make_shared<std::atomic<std::size_t>>(0)](const HttpRequestSeen&) {
        const std::size_t i = (*next)++;
        return HttpReply{0, {}, {}, i < replies.size() ? replies[i] : RawReply{"", Then::kClose}};
      }) {}

HttpServer::HttpServer(Answer answer)
    : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, generic, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, generic, &size) != 0) {
    throw std::runtime_error("no port to listen on");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (std::jthread& thread : threads_) thread.join();
  for (const int fd : open_) ::close(fd);
  ::close(listener_);
}

std::vector<HttpRequestSeen> HttpServer::seen() const {
  const std::scoped_lock lock(mutex_);
  return seen_;
}

std::size_t HttpServer::connection_count() const {
  const std::scoped_lock lock(mutex_);
  return open_.size();
}

void HttpServer::wait_for(std::size_t requests) const {
  std::unique_lock lock(mutex_);
  came_.wait(lock, [&] { return seen_.size() >= requests; });
}

void HttpServer::accept_all() {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    const std::scoped_lock lock(mutex_);
    open_.push_back(fd);
    if (ending_) return;
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void HttpServer::serve(int fd) {
  std::string buffer;
  while (const auto request = read_request(fd, buffer)) {
    {
      const std::scoped_lock lock(mutex_);
      seen_.push_back(*request);
      came_.notify_all();
    }
    const RawReply reply = raw_of(*request, answer_(*request));
    if (!send_all(fd, reply.bytes)) break;
    if (reply.then == Then::kKeep) continue;
    if (reply.then == Then::kReset) {
      reset_connection(fd);
    } else if (reply.then == Then::kClose) {
      ::shutdown(fd, SHUT_WR);
    }
    await_end(fd);
    return;
  }
  ::shutdown(fd, SHUT_RDWR);
}

Environment::Environment(std::vector<std::pair<std::string, std::string>> values) {
  // NOLINTBEGIN(concurrency-mt-unsafe): before threads are started
  for (const auto& [name, value] : values) {
    const char* const before = std::getenv(name.c_str());
    before_.emplace_back(name, before == nullptr ? "" : before);
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
}

Environment::~Environment() {
  for (auto at = before_.rbegin(); at != before_.rend(); ++at) {
    if (at->second.empty()) {
      ::unsetenv(at->first.c_str());
    } else {
      ::setenv(at->first.c_str(), at->second.c_str(), 1);
    }
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

std::vector<std::pair<std::string, std::string>> store_environment(
    std::vector<std::pair<std::string, std::string>> values) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const char* name : {"AWS_ACCESS_KEY_ID",
                           "AWS_SECRET_ACCESS_KEY",
                           "AWS_SESSION_TOKEN",
                           "AWS_PROFILE",
                           "AWS_DEFAULT_PROFILE",
                           "AWS_REGION",
                           "AWS_DEFAULT_REGION",
                           "AWS_ENDPOINT_URL",
                           "AWS_ENDPOINT_URL_S3",
                           "AWS_ENDPOINT_URL_STS",
                           "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                           "AWS_WEB_IDENTITY_TOKEN_FILE",
                           "AWS_ROLE_ARN",
                           "AWS_ROLE_SESSION_NAME",
                           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                           "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                           "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                           "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                           "AWS_EC2_METADATA_SERVICE_ENDPOINT",
                           "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
                           "FSDP_CKPT_ANONYMOUS",
                           "FSDP_CKPT_REQUEST_PAYER",
                           "GS_ACCESS_KEY_ID",
                           "GS_SECRET_ACCESS_KEY",
                           "GS_ENDPOINT_URL",
                           "HF_ENDPOINT",
                           "HF_TOKEN",
                           "HF_HOME",
                           "http_proxy",
                           "https_proxy",
                           "HTTP_PROXY",
                           "HTTPS_PROXY",
                           "all_proxy",
                           "ALL_PROXY"}) {
    all.emplace_back(name, "");
  }
  all.emplace_back("AWS_CONFIG_FILE", "/nonexistent/config");
  all.emplace_back("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials");
  all.emplace_back("AWS_EC2_METADATA_DISABLED", "true");
  all.emplace_back("HF_TOKEN_PATH", "/nonexistent/token");
  for (auto& value : values) all.push_back(std::move(value));
  return all;
}

}  // namespace fsdp::test
