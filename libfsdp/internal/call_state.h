// SPDX-License-Identifier: Apache-2.0
// What a group remembers of its collectives.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fsdp {

struct CallState {
  // Held while a collective is issued: backends number them, in the order that every rank shares.
  std::mutex mutex;
  std::uint64_t sequence = 0;
  std::uint64_t text_count = 0;
  bool text_failed = false;  // not all ranks read the last text
  // Collectives that nobody will wait for any more; the backend's threads may still be in them.
  std::vector<c10::intrusive_ptr<c10d::Work>> abandoned;
};

}  // namespace fsdp
