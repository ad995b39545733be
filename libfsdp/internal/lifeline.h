// SPDX-License-Identifier: Apache-2.0
// Notices that the process of another rank has ended, however it ended.
//
// The connections of a process break when it ends; those of one that is stopped, slow or cut off do
// not.  So each rank serves a small store of its own and keeps asking that of the next rank: every
// rank is watched by one other, whatever the world size.  Where the next one has ended, the one
// behind it is watched.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class TCPStore;
}

namespace fsdp {

struct LifelineAddress {
  std::string host;  // where rank `i` of the list serves
  std::uint16_t port = 0;
};

class Lifeline {
 public:
  // Serves at a port that the system chooses.  Throws: c10::Error where none can be had.
  Lifeline();
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  std::uint16_t port() const;

  // Begins to watch the ranks behind `rank`, from a thread of its own.  `addresses` has every
  // rank's; `on_end` is told once of each rank whose process is found to have ended, about a second
  // after it did, and must not throw.  Called once.
  void watch(int rank, std::vector<LifelineAddress> addresses, std::function<void(int)> on_end);

 private:
  void run(int rank, const std::vector<LifelineAddress>& addresses,
           const std::function<void(int)>& on_end);
  // Returns when the process that serves there has ended (true) or watching is to stop (false).
  bool watch_one(const LifelineAddress& address, const std::string& name);

  c10::intrusive_ptr<c10d::TCPStore> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fsdp
