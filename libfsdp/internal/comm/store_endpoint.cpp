// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/store_endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/network_address.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {
namespace {

using std::chrono::milliseconds;
using TorchStore = c10::intrusive_ptr<c10d::Store>;

constexpr milliseconds kStoreConnect(1000);
constexpr milliseconds kBetweenTries(50);
// Host names may resolve some seconds late when hosts start together.
constexpr milliseconds kUnknown(4000);
// A store that listens answers from a thread of its own, unless its machine is very busy.
constexpr milliseconds kGreeting(5000);

TorchStore served_store(const std::string& addr, std::uint16_t port,
                        const c10d::TCPStoreOptions& options) {
  static std::mutex mutex;
  // Never destroyed: other ranks may still read when this process returns from main.
  static auto* const served = new std::map<std::uint16_t, TorchStore>;
  const std::lock_guard lock(mutex);
  auto& store = (*served)[port];
  if (store) return store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(addr, options);
  } catch (const std::exception& error) {
    FSDP_CHECK(false, "rank 0 cannot open its store at port ", port, ": ", message_of(error),
               "; set MASTER_PORT to a free port");
  }
  return store;
}

// Runs `make`, which may never return, in a separate thread and returns its result; null if there
// is none within the timeout.  Calls `late` once if `make` takes long.
TorchStore made_within(milliseconds timeout, std::function<TorchStore()> make,
                       const std::function<void()>& late) {
  const auto task = std::make_shared<std::packaged_task<TorchStore()>>(std::move(make));
  auto made = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  const auto ready = [&](milliseconds time) {
    return made.wait_for(time) == std::future_status::ready;
  };
  if (timeout > kGreeting && !ready(kGreeting)) late();
  return ready(timeout > kGreeting ? timeout - kGreeting : timeout) ? made.get() : TorchStore();
}

// Waits until something accepts connections at the address.
// Throws: c10::Error if the host stays unknown; PeerError if nothing accepts within the timeout.
void await_listener(const std::string& addr, std::uint16_t port, const std::string& served_by,
                    milliseconds timeout) {
  const auto began = StoreClient::Clock::now();
  while (true) {
    const Connection there = connect_to(addr, port, kStoreConnect);
    if (there.error == 0) return;
    const auto waited = StoreClient::Clock::now() - began;
    FSDP_CHECK(there.unknown.empty() || waited < std::min(kUnknown, timeout), "the address of ",
               served_by, ", '", addr, "', cannot be resolved here: ", there.unknown,
               "; set MASTER_ADDR to a name or address of its host");
    if (waited >= timeout)
      throw_peer_error(c10::str(served_by, " did not open the store at ", addr, ":", port,
                                " within ", duration_text(timeout), ": ",
                                std::strerror(there.error)));
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace

StoreEndpoint store_endpoint(const std::string& addr, std::uint16_t port, int rank,
                             std::chrono::milliseconds timeout) {
  const char* const agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool of_agent = agent != nullptr && std::string_view(agent) == "True";
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.isServer = rank == 0 && !of_agent;
  if (options.isServer) return {served_store(addr, port, options), "rank 0", true};
  const std::string served_by = of_agent ? "torchrun's agent" : "rank 0";
  await_listener(addr, port, served_by, timeout);
  const std::string what = "what listens at " + addr + ":" + std::to_string(port);
  const std::string remedy = "; set MASTER_PORT to a port that nothing else uses";
  const std::string silent = " has not answered as the store of " + served_by + " for ";
  const std::string causes =
      ": it is another program, or " + served_by + " is stopped or very busy";
  TorchStore store;
  try {
    store = made_within(
        timeout,
        [addr, options]() -> TorchStore {
          return c10::make_intrusive<c10d::TCPStore>(addr, options);
        },
        [&] { TORCH_WARN(what, silent, duration_text(kGreeting), causes, remedy); });
  } catch (const std::exception& error) {
    throw_peer_error(what + " is not the store of " + served_by + ": " + message_of(error) +
                     remedy);
  }
  if (!store) throw_peer_error(what + silent + duration_text(timeout) + causes + remedy);
  if (of_agent) {
    // Ranks that are restarted must not find keys of an earlier attempt.
    const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    store = c10::make_intrusive<c10d::PrefixStore>(
        std::string("fsdp/attempt_") + (restarts ? restarts : "0"), store);
  }
  return {store, served_by, false};
}

}  // namespace fsdp::internal
