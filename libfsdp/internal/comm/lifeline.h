// SPDX-License-Identifier: Apache-2.0
// Notices that the process of another rank has ended, for any reason.
//
// The connections of a process break when it ends, but not when it is stopped, slow or cut off.  So
// each rank keeps a connection to the next rank, over which nothing is ever sent: every rank is
// watched by one other, whatever the world size.  If the next rank has ended, the rank after that
// one is watched.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "formats/bytes/files/local_file.h"

namespace fsdp::internal {

struct LifelineAddress {
  std::string host;
  std::uint16_t port = 0;
};

class Lifeline {
 public:
  // Listens at a port that the system chooses.  The kernel accepts the connections; data sent to
  // the port is not read.  Throws: c10::Error if no port is available.
  Lifeline();
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  std::uint16_t port() const noexcept { return port_; }

  // Returns whether the process that listens there has ended: its machine refuses connections.
  // Takes up to a second.
  static bool has_ended(const LifelineAddress& address);

  // Starts a thread that watches the ranks after `rank`; call once.  `addresses` has every rank's
  // address.  `on_end` is called once for each rank whose process has ended, as soon as it has, and
  // must not throw.
  void watch(int rank, std::vector<LifelineAddress> addresses, std::function<void(int)> on_end);

 private:
  // Returns true once the process that listens there has ended, false if watching must stop.
  bool watch_one(const LifelineAddress& address) const;

  formats::FileDescriptor listening_;
  std::uint16_t port_ = 0;
  formats::FileDescriptor stop_;  // readable once watching must stop
  std::thread thread_;
};

}  // namespace fsdp::internal
