// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/store_endpoint.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libfsdp/internal/comm/peer_error.h"
#include "libfsdp/internal/comm/store_client.h"

namespace fsdp::internal {
namespace {

using TorchStore = c10::intrusive_ptr<c10d::Store>;

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
    TORCH_CHECK(false, "rank 0 cannot serve the ranks at port ", port, ": ", message_of(error),
                "; set MASTER_PORT to a free one");
  }
  return store;
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
  TorchStore store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(addr, options);
  } catch (const std::exception& error) {
    throw_peer_error(served_by + " did not open the store at " + addr + ":" + std::to_string(port) +
                     " within " + duration_text(timeout) + ": " + message_of(error));
  }
  if (of_agent) {
    // Ranks that are restarted must not find keys of an earlier attempt.
    const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    store = c10::make_intrusive<c10d::PrefixStore>(
        std::string("fsdp/attempt_") + (restarts ? restarts : "0"), store);
  }
  return {store, served_by, false};
}

}  // namespace fsdp::internal
