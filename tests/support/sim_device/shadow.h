// SPDX-License-Identifier: Apache-2.0
// The history of a block of device memory: for every byte its last write, and the last read of each
// stream since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tests/support/sim_device/clock.h"

namespace fsdp::test::sim {

// Work on a stream that reads or writes memory.
struct Access {
  int stream = 0;          // its place in clocks
  std::uint32_t time = 0;  // of the stream; 0: there was none
  const char* name = "";   // of the operator, collective or copy; lives forever
  int chain = -1;          // see call_chain.h
  int capture = 0;         // that records it; 0: none, it happens now
  int node = -1;           // its place in the recording; -1: it is not work (an allocation)
};

enum class Conflict { kReadAfterWrite, kWriteAfterWrite, kWriteAfterRead };

class Shadow {
 public:
  using OnConflict = std::function<void(Conflict, const Access& earlier)>;

  // Notes an access to the bytes [begin, end).  `known`: the clock of its stream.  Calls
  // `on_conflict` for every earlier access to these bytes that the new one is not ordered after.
  void touch(std::size_t begin, std::size_t end, bool write, const Access& now, const Clock& known,
             const OnConflict& on_conflict);
  // Forgets accesses of a stream up to a time: later accesses are ordered after them.
  void settle(int stream, std::uint32_t time);

 private:
  struct Range {
    std::size_t end = 0;
    Access write;
    std::vector<Access> reads;  // one for each stream
  };

  void cut(std::size_t at);
  void fill_gaps(std::size_t begin, std::size_t end);

  std::map<std::size_t, Range> ranges_;  // by their first byte
};

}  // namespace fsdp::test::sim
