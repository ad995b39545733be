// SPDX-License-Identifier: Apache-2.0
// Makes requests to a c10d::Store that cannot hang.
//
// A request to a TCPStore blocks for as long as its server does not answer: for ever if the process
// that serves it is stopped.  So a thread makes the requests, on its own connection, and callers
// wait for the answer until a deadline.  No request waits for a key, so none delays the others:
// callers that need a key ask again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Store;
}

namespace fsdp::internal {

// Thread-safe.
class StoreClient {
 public:
  using Clock = std::chrono::steady_clock;
  using Request = std::function<void(c10d::Store&)>;

  // `served_by` names the store's server in errors: "rank 0".
  StoreClient(c10::intrusive_ptr<c10d::Store> store, std::string served_by);
  // Makes the requests that are queued already, but gives up on a server that does not answer.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // Each returns when the store has answered.
  // Throws: PeerError if the store is gone, or has answered neither by the deadline nor within two
  // seconds.
  void set(const std::string& key, const std::string& value, Clock::time_point deadline);
  void append(const std::string& key, const std::string& value, Clock::time_point deadline);
  std::int64_t add(const std::string& key, std::int64_t value, Clock::time_point deadline);
  bool has(const std::string& key, Clock::time_point deadline);
  void erase(const std::vector<std::string>& keys, Clock::time_point deadline);
  // Returns nullopt unless all of them are there.
  std::optional<std::vector<std::string>> get_all(const std::vector<std::string>& keys,
                                                  Clock::time_point deadline);

  // Has the thread make a request that may throw, and does not wait for it.
  void post(Request request);
  // Has the thread make a request about every second.
  void repeat(Request request);

  const std::string& served_by() const noexcept;
  // Sets a check of whether the server's process has ended, used while the store does not answer: a
  // child of that process may keep the connection.  The check may take a second.
  void find_out_by(std::function<bool()> server_has_ended);
  // Returns whether the process that served the store has ended: the connection broke, or the store
  // does not answer and the check of find_out_by() says so.
  bool gone() const;
  // Returns for how long the current request has had no answer.
  std::chrono::milliseconds silence() const;

 private:
  struct Shared;
  void ask(Request request, Clock::time_point deadline);
  template <typename T, typename Question>
  T answer(Question question, Clock::time_point deadline);
  [[noreturn]] void throw_gone() const;

  // Shared with the thread, which outlives the client if the server does not answer.
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

// "4 s", "250 ms"
std::string duration_text(std::chrono::milliseconds duration);

}  // namespace fsdp::internal
