// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/network_address.h"

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
      throw PeerError(c10::str(served_by, " did not open the store at ", addr, ":", port,
                               " within ", duration_text(timeout), ": ",
                               std::strerror(there.error)));
    std::this_thread::sleep_for(kBetweenTries);
  }
}

constexpr milliseconds kFirstRest(1);
constexpr milliseconds kLongestRest(50);
constexpr milliseconds kFarewell(2000);

// Means "no host" in a line.
constexpr const char* kNoHost = "-";

// One line of the log of all newcomers.  Host names and addresses hold no blanks.
std::string line_of(const Newcomer& who) {
  std::ostringstream line;
  line << who.rank << ' ' << who.world_size << ' ' << who.backend << ' ' << who.device << ' '
       << who.host << ' ' << who.network << ' '
       << (who.lifeline.host.empty() ? kNoHost : who.lifeline.host) << ' ' << who.lifeline.port
       << '\n';
  return line.str();
}

std::vector<Newcomer> read_log(const std::string& log) {
  std::vector<Newcomer> result;
  std::istringstream lines(log);
  Newcomer who;
  while (lines >> who.rank >> who.world_size >> who.backend >> who.device >> who.host >>
         who.network >> who.lifeline.host >> who.lifeline.port) {
    if (who.lifeline.host == kNoHost) who.lifeline.host.clear();
    result.push_back(who);
  }
  return result;
}

std::string described(const Newcomer& who) {
  return "rank " + std::to_string(who.rank) + " on " + who.host;
}

// Compares a rank with one that came before it.
void check_agreement(const Newcomer& first, const Newcomer& other) {
  FSDP_CHECK(first.world_size == other.world_size, described(first),
             " was started with a world size of ", first.world_size, ", but ", described(other),
             " with ", other.world_size);
  FSDP_CHECK(first.backend == other.backend, described(first), " was started with backend ",
             first.backend, ", but ", described(other), " with ", other.backend);
  FSDP_CHECK(first.device == other.device, described(first), " was started for devices of type ",
             first.device, ", but ", described(other), " for ", other.device,
             ": give every rank a ProcessGroupOptions::device_id of one type");
}

std::string missing_ranks(const std::vector<std::optional<Newcomer>>& came) {
  std::string names;
  std::size_t count = 0;
  constexpr std::size_t kNamed = 8;
  for (std::size_t r = 0; r < came.size(); ++r) {
    if (came[r]) continue;
    if (++count <= kNamed) names += (names.empty() ? "" : ", ") + std::to_string(r);
  }
  if (count > kNamed) names += " and " + std::to_string(count - kNamed) + " more";
  return (count == 1 ? "rank " : "ranks ") + names + " of " + std::to_string(came.size());
}

std::vector<Newcomer> wait_for_all(StoreClient& store, const std::string& key, const Newcomer& self,
                                   milliseconds timeout) {
  const auto deadline = StoreClient::Clock::now() + timeout;
  store.append(key, line_of(self), deadline);
  auto pause = kFirstRest;
  while (true) {
    std::vector<std::optional<Newcomer>> came(static_cast<std::size_t>(self.world_size));
    const auto log = store.get_all({key}, deadline);
    const auto newcomers = read_log(log ? log->front() : "");
    for (const auto& who : newcomers) {
      check_agreement(newcomers.front(), who);
      auto& place = came.at(static_cast<std::size_t>(who.rank));
      FSDP_CHECK(!place, "rank ", who.rank, " joined twice, from ", place->host, " and from ",
                 who.host, ": each process needs its own rank");
      place = who;
    }
    if (newcomers.size() == came.size()) {
      std::vector<Newcomer> result;
      for (auto& who : came) result.push_back(*who);
      return result;
    }
    if (StoreClient::Clock::now() >= deadline) {
      throw PeerError(missing_ranks(came) + " did not join within " + duration_text(timeout));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestRest);
  }
}

// Counts the ranks that gave up; the one that serves the store waits for the others.
void give_up(StoreClient& store, const std::string& prefix, bool serves) {
  const auto deadline = StoreClient::Clock::now() + kFarewell;
  auto left = store.add(prefix + "gave_up", 1, deadline);
  while (serves && StoreClient::Clock::now() < deadline) {
    const auto log = store.get_all({prefix + "joined"}, deadline);
    if (static_cast<std::size_t>(left) >= read_log(log ? log->front() : "").size()) return;
    std::this_thread::sleep_for(kLongestRest);
    left = store.add(prefix + "gave_up", 0, deadline);
  }
}

}  // namespace

StoreEndpoint store_endpoint(const std::string& addr, std::uint16_t port, int rank,
                             milliseconds timeout) {
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
    throw PeerError(what + " is not the store of " + served_by + ": " + message_of(error) + remedy);
  }
  if (!store) throw PeerError(what + silent + duration_text(timeout) + causes + remedy);
  if (of_agent) {
    // Ranks that are restarted must not find keys of an earlier attempt.
    const char* const restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    store = c10::make_intrusive<c10d::PrefixStore>(
        std::string("fsdp/attempt_") + (restarts ? restarts : "0"), store);
  }
  return {store, served_by, false};
}

std::string host_name() {
  std::array<char, 256> name{};
  const bool known = gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return known ? name.data() : "unnamed";
}

std::string network_id() {
  // Containers share a kernel but not its loopback, and may all have the same host name.
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  return (boot.empty() ? host_name() : boot) + (error ? "" : "/" + space);
}

int local_rank_of(const std::vector<Newcomer>& newcomers, int rank) {
  const Newcomer& self = newcomers[static_cast<std::size_t>(rank)];
  return static_cast<int>(
      std::count_if(newcomers.begin(), newcomers.begin() + rank, [&](const Newcomer& other) {
        return other.host == self.host && other.network == self.network;
      }));
}

std::vector<Newcomer> join(StoreClient& store, const std::string& prefix, const Newcomer& self,
                           bool serves, milliseconds timeout) {
  try {
    return wait_for_all(store, prefix + "joined", self, timeout);
  } catch (const c10::Error&) {
    if (!store.gone()) give_up(store, prefix, serves);
    throw;
  }
}

}  // namespace fsdp::internal
