// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/lifeline.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libfsdp/internal/store_client.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// How often the next rank is asked, and how often this one looks whether it answers.
constexpr milliseconds kPeriod(500);
constexpr milliseconds kLook(100);
constexpr milliseconds kConnect(1000);

c10d::TCPStoreOptions options_for(std::uint16_t port, bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = kConnect;
  return options;
}

// Null where nothing answers there.
std::unique_ptr<StoreClient> connect_to(const LifelineAddress& address, const std::string& name) {
  try {
    auto store =
        c10::make_intrusive<c10d::TCPStore>(address.host, options_for(address.port, false));
    auto client = std::make_unique<StoreClient>(std::move(store), name);
    client->repeat([](c10d::Store& asked) { asked.check({"there"}); }, kPeriod);
    return client;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Whether the machine says that nothing serves there any more.  One that says nothing at all may be
// cut off, and a process that does not answer may be stopped.
bool refuses(const LifelineAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) !=
      0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  int error = connect(fd, found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  pollfd waiting{fd, POLLOUT, 0};
  if (error == EINPROGRESS && poll(&waiting, 1, static_cast<int>(kConnect.count())) == 1) {
    socklen_t bytes = sizeof(error);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  }
  close(fd);
  return error == ECONNREFUSED;
}

}  // namespace

Lifeline::Lifeline()
    : server_(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options_for(0, true))) {}

Lifeline::~Lifeline() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint16_t Lifeline::port() const {
  return server_->getPort();
}

void Lifeline::watch(int rank, std::vector<LifelineAddress> addresses,
                     std::function<void(int)> on_end) {
  thread_ = std::thread([this, rank, addresses = std::move(addresses), on_end = std::move(on_end)] {
    run(rank, addresses, on_end);
  });
}

void Lifeline::run(int rank, const std::vector<LifelineAddress>& addresses,
                   const std::function<void(int)>& on_end) {
  const auto size = static_cast<int>(addresses.size());
  for (int step = 1; step < size; ++step) {
    const int watched = (rank + step) % size;
    if (!watch_one(addresses[static_cast<std::size_t>(watched)],
                   "rank " + std::to_string(watched))) {
      return;
    }
    on_end(watched);
  }
}

bool Lifeline::watch_one(const LifelineAddress& address, const std::string& name) {
  while (true) {
    // A connection may break while the process lives.
    const auto client = connect_to(address, name);
    if (!client && refuses(address)) return true;
    std::unique_lock lock(mutex_);
    do {
      if (changed_.wait_for(lock, kLook, [this] { return stop_; })) return false;
    } while (client && !client->gone());
  }
}

}  // namespace fsdp
