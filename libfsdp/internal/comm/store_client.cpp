// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/store_client.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

constexpr std::chrono::milliseconds kPeriod(1000);
// Limits how long a destructor waits for a server that does not answer.
constexpr std::chrono::milliseconds kServerFarewell(1000);
// No answer is expected sooner than this, even if the deadline is near.
constexpr std::chrono::milliseconds kShortestWait(2000);
// After this time without an answer, a caller finds out whether the server has ended.
constexpr std::chrono::milliseconds kSlowAnswer(500);

}  // namespace

struct StoreClient::Shared {
  struct Asked {
    explicit Asked(Request asked) : request(std::move(asked)) {}

    const Request request;
    bool done = false;
    bool failed = false;
  };

  explicit Shared(std::string server) : served_by(std::move(server)) {}

  const std::string served_by;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Asked>> waiting;
  Request repeated;
  Clock::time_point next_repeat;
  std::optional<Clock::time_point> busy_since;
  std::function<bool()> server_has_ended;  // may be null
  Clock::time_point next_question;         // when server_has_ended may be called again
  bool gone = false;
  bool stop = false;
  bool ended = false;

  void run(c10d::Store& store);
  bool make(c10d::Store& store, const Request& request, std::unique_lock<std::mutex>& lock);
};

// Returns whether the store answered.
bool StoreClient::Shared::make(c10d::Store& store, const Request& request,
                               std::unique_lock<std::mutex>& lock) {
  if (gone) return false;
  busy_since = Clock::now();
  lock.unlock();
  bool answered = true;
  try {
    request(store);
  } catch (const std::exception&) {
    answered = false;
  }
  lock.lock();
  busy_since.reset();
  // No request waits for a key, so only a lost connection can have made it fail.
  if (!answered) gone = true;
  return answered;
}

void StoreClient::Shared::run(c10d::Store& store) {
  std::unique_lock lock(mutex);
  while (true) {
    if (!waiting.empty()) {
      const auto asked = waiting.front();
      waiting.pop_front();
      asked->failed = !make(store, asked->request, lock);
      asked->done = true;
      changed.notify_all();
    } else if (stop) {
      break;
    } else if (repeated && !gone && Clock::now() >= next_repeat) {
      next_repeat = Clock::now() + kPeriod;
      make(store, repeated, lock);
      changed.notify_all();
    } else if (repeated && !gone) {
      changed.wait_until(lock, next_repeat);
    } else {
      changed.wait(lock);
    }
  }
  repeated = nullptr;
  ended = true;
  changed.notify_all();
}

StoreClient::StoreClient(c10::intrusive_ptr<c10d::Store> store, std::string served_by)
    : shared_(std::make_shared<Shared>(std::move(served_by))),
      thread_([shared = shared_, store = std::move(store)] { shared->run(*store); }) {}

StoreClient::~StoreClient() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended =
      shared_->changed.wait_for(lock, kServerFarewell, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void StoreClient::ask(Request request, Clock::time_point deadline) {
  const auto asked = std::make_shared<Shared::Asked>(std::move(request));
  std::unique_lock lock(shared_->mutex);
  // The thread may still wait for an answer to an earlier request.
  if (shared_->gone) throw_gone();
  shared_->waiting.push_back(asked);
  shared_->changed.notify_all();
  const auto began = Clock::now();
  const auto end = std::max(deadline, began + kShortestWait);
  const auto answered = [&](Clock::time_point until) {
    return shared_->changed.wait_until(lock, std::min(until, end), [&] { return asked->done; });
  };
  bool done = false;
  bool ended = false;
  while (!done && !ended && Clock::now() < end) {
    done = answered(Clock::now() + kPeriod);
    if (done) break;
    lock.unlock();
    ended = gone();
    lock.lock();
    done = asked->done;
  }
  const std::string& server = shared_->served_by;
  if (!done && !ended) {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began);
    throw PeerError("the store of " + server + " has not answered for " + duration_text(waited) +
                    ": " + server + " is stopped or out of reach");
  }
  if (!done || asked->failed) throw_gone();
}

void StoreClient::throw_gone() const {
  const std::string& server = shared_->served_by;
  throw PeerError("the store of " + server + " is gone: " + server + " has ended");
}

// Returns what `question` returned.
template <typename T, typename Question>
T StoreClient::answer(Question question, Clock::time_point deadline) {
  const auto result = std::make_shared<T>();
  ask([=](c10d::Store& store) { *result = question(store); }, deadline);
  return std::move(*result);
}

void StoreClient::set(const std::string& key, const std::string& value,
                      Clock::time_point deadline) {
  ask([=](c10d::Store& store) { store.set(key, value); }, deadline);
}

void StoreClient::append(const std::string& key, const std::string& value,
                         Clock::time_point deadline) {
  ask([=](c10d::Store& store) { store.append(key, {value.begin(), value.end()}); }, deadline);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t value,
                              Clock::time_point deadline) {
  return answer<std::int64_t>([=](c10d::Store& store) { return store.add(key, value); }, deadline);
}

bool StoreClient::has(const std::string& key, Clock::time_point deadline) {
  return answer<bool>([=](c10d::Store& store) { return store.check({key}); }, deadline);
}

void StoreClient::erase(const std::vector<std::string>& keys, Clock::time_point deadline) {
  ask(
      [=](c10d::Store& store) {
        for (const auto& key : keys) store.deleteKey(key);
      },
      deadline);
}

std::optional<std::vector<std::string>> StoreClient::get_all(const std::vector<std::string>& keys,
                                                             Clock::time_point deadline) {
  using Values = std::optional<std::vector<std::string>>;
  return answer<Values>(
      [=](c10d::Store& store) {
        Values values;
        if (!store.check(keys)) return values;
        values.emplace();
        for (const auto& value : store.multiGet(keys))
          values->emplace_back(value.begin(), value.end());
        return values;
      },
      deadline);
}

void StoreClient::post(Request request) {
  auto asked = std::make_shared<Shared::Asked>(std::move(request));
  const std::lock_guard lock(shared_->mutex);
  shared_->waiting.push_back(std::move(asked));
  shared_->changed.notify_all();
}

void StoreClient::repeat(Request request) {
  const std::lock_guard lock(shared_->mutex);
  shared_->repeated = std::move(request);
  shared_->next_repeat = Clock::now();
  shared_->changed.notify_all();
}

const std::string& StoreClient::served_by() const noexcept {
  return shared_->served_by;
}

void StoreClient::find_out_by(std::function<bool()> server_has_ended) {
  const std::lock_guard lock(shared_->mutex);
  shared_->server_has_ended = std::move(server_has_ended);
}

bool StoreClient::gone() const {
  std::function<bool()> ask;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->gone) return true;
    const auto now = Clock::now();
    if (!shared_->busy_since || now - *shared_->busy_since < kSlowAnswer ||
        now < shared_->next_question)
      return false;
    shared_->next_question = now + kPeriod;
    ask = shared_->server_has_ended;
  }
  if (!ask || !ask()) return false;
  const std::lock_guard lock(shared_->mutex);
  shared_->gone = true;
  return true;
}

std::chrono::milliseconds StoreClient::silence() const {
  const std::lock_guard lock(shared_->mutex);
  if (!shared_->busy_since) return std::chrono::milliseconds(0);
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *shared_->busy_since);
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto count = duration.count();
  if (count < 1000 || (count % 1000 != 0 && count < 2000)) return std::to_string(count) + " ms";
  return std::to_string(count / 1000) + " s";
}

}  // namespace fsdp::internal
