// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/network_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include <c10/util/Exception.h>

namespace fsdp::internal {

std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), "9", &hints, &found);
  TORCH_CHECK(error == 0, "the address of rank 0, ", host, ": ", gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
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
  TORCH_CHECK(false, "no network interface leads to the address of rank 0, ", host,
              "; set GLOO_SOCKET_IFNAME to the interface to use");
}

}  // namespace fsdp::internal
