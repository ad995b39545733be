// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/lifeline.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/network_address.h"

namespace fsdp::internal {
namespace {

using formats::FileDescriptor;

// Connections that the kernel keeps for a rank: from the rank before it, and, after that one has
// ended, from ranks further before.
constexpr int kBacklog = 64;
// Limits the time for a connection, and the time until a failed one is tried again.
constexpr std::chrono::milliseconds kLifelineConnect(1000);
constexpr int kRetryMs = 1000;

// A child that this process forks must not keep the port open when this process has ended.
constexpr std::size_t kMostListening = 64;
std::array<std::atomic<int>, kMostListening> listening_fds;

// Runs in the child, where only calls that are safe in signal handlers may be made.  The
// descriptor's number stays taken, because the child's copy of the object may close it.
void leave_ports() {
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  for (auto& entry : listening_fds) {
    const int fd = entry.load() - 1;
    if (fd >= 0 && nothing >= 0) ::dup2(nothing, fd);
  }
  if (nothing >= 0) ::close(nothing);
}

void change_entry(int from, int to) {
  for (auto& entry : listening_fds) {
    int expected = from;
    if (entry.compare_exchange_strong(expected, to)) return;
  }
}

void note_listening(int fd) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, &leave_ports);
  if (registered == 0) change_entry(0, fd + 1);
}
void forget_listening(int fd) {
  change_entry(fd + 1, 0);
}

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

}  // namespace

Lifeline::Lifeline() : listening_(listen_anywhere()), stop_(eventfd(0, EFD_CLOEXEC)) {
  port_ = port_of(listening_.get());
  FSDP_CHECK(listening_.get() >= 0 && stop_.get() >= 0 && port_ != 0,
             "cannot open the port by which other ranks watch this one: ", std::strerror(errno));
  note_listening(listening_.get());
}

Lifeline::~Lifeline() {
  forget_listening(listening_.get());
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

bool Lifeline::has_ended(const LifelineAddress& address) {
  return connect_to(address.host, address.port, kLifelineConnect).error == ECONNREFUSED;
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
    const auto connection = connect_to(address.host, address.port, kLifelineConnect);
    if (connection.error == ECONNREFUSED) return true;
    if (connection.error == 0) {
      if (stops(connection.fd.get(), -1)) return false;
      if (has_ended(address)) return true;
    }
    if (stops(-1, kRetryMs)) return false;
  }
}

}  // namespace fsdp::internal
