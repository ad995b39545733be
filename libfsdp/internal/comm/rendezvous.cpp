// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

constexpr std::chrono::milliseconds kFirstRest(1);
constexpr std::chrono::milliseconds kLongestRest(50);
constexpr std::chrono::milliseconds kFarewell(2000);

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
                                   std::chrono::milliseconds timeout) {
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
      throw_peer_error(missing_ranks(came) + " did not join within " + duration_text(timeout));
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
                           bool serves, std::chrono::milliseconds timeout) {
  try {
    return wait_for_all(store, prefix + "joined", self, timeout);
  } catch (const c10::Error&) {
    if (!store.gone()) give_up(store, prefix, serves);
    throw;
  }
}

}  // namespace fsdp::internal
