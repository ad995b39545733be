// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>
#include <utility>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/store_client.h"
#include "libfsdp/internal/comm/waits.h"

namespace fsdp::internal {
namespace {

using Clock = StoreClient::Clock;

constexpr std::chrono::microseconds kFirstPause(50);
constexpr std::chrono::microseconds kLongestPause(10'000);
// Interval at which a waiting rank checks on the others.
constexpr std::chrono::milliseconds kLook(1000);

// One call of all_gather_text().
class TextExchange {
 public:
  TextExchange(ProcessGroup& group, const std::string& what)
      : group_(group), store_(*store_of(group)), what_(what) {
    const std::lock_guard lock(calls_of(group).mutex);
    enter_collective(group, what);
    const std::string base =
        group.name() + "/text/" + std::to_string(++calls_of(group).text_count) + "/";
    for (int r = 0; r < group.size(); ++r) keys_.push_back(base + std::to_string(r));
    done_key_ = base + "done";
  }

  std::vector<std::string> run(const std::string& text) {
    store_.set(keys_[static_cast<std::size_t>(group_.rank())], text, deadline_);
    auto texts = read();
    // The last reader removes keys that nobody needs any more.
    if (store_.add(done_key_, 1, deadline_) == group_.size()) {
      keys_.push_back(done_key_);
      store_.erase(keys_, deadline_);
    }
    return texts;
  }

 private:
  std::vector<std::string> read() {
    auto pause = kFirstPause;
    auto next_look = Clock::now() + kLook;
    while (true) {
      if (auto texts = store_.get_all(keys_, deadline_)) return std::move(*texts);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestPause);
      const auto now = Clock::now();
      if (now >= next_look) {
        next_look = now + kLook;
        look_at_the_others();
      }
      if (now >= deadline_) give_up("not within " + duration_text(group_.timeout()));
    }
  }

  void look_at_the_others() {
    long_wait_.look();
    if (others_failed(group_)) give_up("another rank failed");
    const std::string elsewhere = monitor_of(group_).elsewhere(group_.name());
    if (!elsewhere.empty()) {
      give_up(elsewhere + " where this rank is at " + what_ +
              ": the ranks run different operators, or run them in another order");
    }
    for (const int r : missing()) {
      if (monitor_of(group_).has_ended(group_.global_rank(r)))
        give_up("its process group has ended");
    }
  }

  std::vector<int> missing() {
    std::vector<int> result;
    for (int r = 0; r < group_.size(); ++r) {
      if (!store_.has(keys_[static_cast<std::size_t>(r)], Clock::now() + kLook)) {
        result.push_back(r);
      }
    }
    return result;
  }

  [[noreturn]] void give_up(const std::string& why) {
    std::string names;
    for (const int r : missing()) {
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(group_.global_rank(r));
    }
    throw_lost(group_, what_, (names.empty() ? "" : names + " did not arrive: ") + why);
  }

  ProcessGroup& group_;
  StoreClient& store_;
  const std::string& what_;
  LongWait long_wait_{group_, what_};
  const Clock::time_point deadline_ = Clock::now() + group_.timeout();
  std::vector<std::string> keys_;
  std::string done_key_;
};

}  // namespace

std::vector<std::string> all_gather_text(const std::shared_ptr<ProcessGroup>& group,
                                         const std::string& text, const std::string& what) {
  if (group->size() == 1) return {text};
  try {
    return TextExchange(*group, what).run(text);
  } catch (const PeerError& error) {
    monitor_of(*group).lost();
    {
      const std::lock_guard lock(calls_of(*group).mutex);
      calls_of(*group).text_failed = true;
    }
    const std::string message = message_of(error);
    // The store's own message does not name the collective.
    if (message.starts_with(what + ": ")) throw;
    throw PeerError(what + ": " + message);
  }
}

}  // namespace fsdp::internal
