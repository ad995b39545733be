// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/network_address.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

using formats::FileDescriptor;

Connection connect_once(const addrinfo& address, std::chrono::milliseconds time) {
  Connection result{
      FileDescriptor(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), 0,
      ""};
  const int fd = result.fd.get();
  if (fd < 0) {
    result.error = errno;
    return result;
  }
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return result;
  result.error = errno;
  if (result.error == EINPROGRESS) {
    pollfd waiting{fd, POLLOUT, 0};
    socklen_t bytes = sizeof(result.error);
    if (poll(&waiting, 1, static_cast<int>(time.count())) != 1) {
      result.error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &result.error, &bytes) != 0) {
      result.error = errno;
    }
  }
  if (result.error != 0) result.fd = FileDescriptor();
  return result;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Sets `error`, for gai_strerror, if there are none.
Addresses addresses_of(const std::string& host, int port, int socket_type, int& error) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

}  // namespace

std::string address_towards(const std::string& host) {
  int error = 0;
  const Addresses addresses = addresses_of(host, 9, SOCK_DGRAM, error);
  FSDP_CHECK(error == 0, "cannot resolve the address of rank 0, ", host, ": ", gai_strerror(error));
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_DGRAM, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t own_bytes = sizeof(own);
    auto* const own_address = reinterpret_cast<sockaddr*>(&own);
    char text[NI_MAXHOST] = "";
    const bool told =
        connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
        getsockname(fd, own_address, &own_bytes) == 0 &&
        getnameinfo(own_address, own_bytes, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
    close(fd);
    if (told) return text;
  }
  FSDP_CHECK(false, "no network interface leads to the address of rank 0, ", host,
             "; set GLOO_SOCKET_IFNAME to the interface to use");
}

Connection connect_to(const std::string& host, std::uint16_t port, std::chrono::milliseconds time) {
  int unknown = 0;
  const Addresses addresses = addresses_of(host, port, SOCK_STREAM, unknown);
  if (unknown != 0) return {FileDescriptor(), EHOSTUNREACH, gai_strerror(unknown)};
  Connection result;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    result = connect_once(*a, time);
    if (result.error == 0) break;
  }
  return result;
}

}  // namespace fsdp::internal
