// SPDX-License-Identifier: Apache-2.0
// Notices that the process of another rank has ended, however it ended.
//
// The connections of a process break when it ends; those of one that is stopped, slow or cut off do
// not.  So each rank keeps a connection to the next rank, over which nothing is ever sent: every
// rank is watched by one other, whatever the world size.  Where the next one has ended, the one
// behind it is watched.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "formats/files/file.h"

namespace fsdp {

struct LifelineAddress {
  std::string host;
  std::uint16_t port = 0;
};

class Lifeline {
 public:
  // Listens at a port that the system chooses.  The kernel takes the connections; nothing that is
  // sent is read.  Throws: c10::Error where no port can be had.
  Lifeline();
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  std::uint16_t port() const noexcept { return port_; }

  // Begins to watch the ranks behind `rank`, from a thread of its own.  `addresses` has every
  // rank's; `on_end` is told once of each rank whose process has ended, as soon as it did, and must
  // not throw.  Called once.
  void watch(int rank, std::vector<LifelineAddress> addresses, std::function<void(int)> on_end);

 private:
  // Returns when the process that listens there has ended (true) or watching is to stop (false).
  bool watch_one(const LifelineAddress& address) const;

  formats::FileDescriptor listening_;
  std::uint16_t port_ = 0;
  formats::FileDescriptor stop_;  // readable once watching is to stop
  std::thread thread_;
};

}  // namespace fsdp
