// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/lifeline.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include <c10/util/Exception.h>

namespace fsdp::internal {
namespace {

using formats::FileDescriptor;

// Connections that the kernel keeps for a rank: from the rank before it, and, after that one has
// ended, from ranks further before.
constexpr int kBacklog = 64;
// Limits the time for a connection, and the time until a failed one is tried again.
constexpr int kConnectMs = 1000;
constexpr int kRetryMs = 1000;

FileDescriptor listen_at(int family, const sockaddr* address, socklen_t bytes) {
  FileDescriptor fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return fd;
  const int off = 0;
  // Listens on IPv4 and IPv6 if the machine has both.
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  const bool listens = bind(fd.get(), address, bytes) == 0 && listen(fd.get(), kBacklog) == 0;
  return listens ? std::move(fd) : FileDescriptor();
}

FileDescriptor listen_anywhere() {
  sockaddr_in6 both{};
  both.sin6_family = AF_INET6;
  auto fd = listen_at(AF_INET6, reinterpret_cast<const sockaddr*>(&both), sizeof(both));
  if (fd.get() >= 0) return fd;
  sockaddr_in one{};
  one.sin_family = AF_INET;
  return listen_at(AF_INET, reinterpret_cast<const sockaddr*>(&one), sizeof(one));
}

std::uint16_t port_of(int fd) {
  sockaddr_storage own{};
  socklen_t bytes = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes) != 0) return 0;
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

struct Connection {
  FileDescriptor fd;  // none if the connection failed:
  int error = 0;
};

Connection connect_to(const LifelineAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
      0) {
    return {FileDescriptor(), EHOSTUNREACH};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Connection result{
      FileDescriptor(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), 0};
  const int fd = result.fd.get();
  if (fd < 0) return {FileDescriptor(), errno};
  if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) return result;
  result.error = errno;
  if (result.error == EINPROGRESS) {
    pollfd waiting{fd, POLLOUT, 0};
    socklen_t bytes = sizeof(result.error);
    if (poll(&waiting, 1, kConnectMs) != 1) {
      result.error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &result.error, &bytes) != 0) {
      result.error = errno;
    }
  }
  if (result.error != 0) result.fd = FileDescriptor();
  return result;
}

}  // namespace

Lifeline::Lifeline() : listening_(listen_anywhere()), stop_(eventfd(0, EFD_CLOEXEC)) {
  port_ = port_of(listening_.get());
  TORCH_CHECK(listening_.get() >= 0 && stop_.get() >= 0 && port_ != 0,
              "no port to be watched by the other ranks: ", std::strerror(errno));
}

Lifeline::~Lifeline() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  // An eventfd takes eight bytes or fails, which it does not below 2^64.
  if (write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
}

void Lifeline::watch(int rank, std::vector<LifelineAddress> addresses,
                     std::function<void(int)> on_end) {
  thread_ = std::thread([this, rank, addresses = std::move(addresses), on_end = std::move(on_end)] {
    const auto size = static_cast<int>(addresses.size());
    for (int step = 1; step < size; ++step) {
      const int watched = (rank + step) % size;
      if (!watch_one(addresses[static_cast<std::size_t>(watched)])) return;
      on_end(watched);
    }
  });
}

bool Lifeline::watch_one(const LifelineAddress& address) const {
  // Waits until `fd` (-1: none) is ready or time is up; returns whether watching must stop.
  const auto stops = [&](int fd, int timeout_ms) {
    std::array<pollfd, 2> waiting{pollfd{stop_.get(), POLLIN, 0},
                                  pollfd{fd, POLLIN | POLLRDHUP, 0}};
    poll(waiting.data(), waiting.size(), timeout_ms);
    return waiting[0].revents != 0;
  };
  while (true) {
    // A connection may break while the process lives.  If the process has ended, its machine
    // refuses another one; a machine that does not answer may be cut off.
    const auto connection = connect_to(address);
    if (connection.error == ECONNREFUSED) return true;
    if (connection.error == 0) {
      if (stops(connection.fd.get(), -1)) return false;
      if (connect_to(address).error == ECONNREFUSED) return true;
    }
    if (stops(-1, kRetryMs)) return false;
  }
}

}  // namespace fsdp::internal
