// SPDX-License-Identifier: Apache-2.0
// A set of bytes of a file, as runs that do not touch.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace fsdp::formats {

class ByteRuns {
 public:
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };

  // Adds [begin, end) and returns the run that it is part of then.  Requires: begin < end.  An end
  // of 0: some of the bytes were there already, and nothing was added.
  Run add(std::uint64_t begin, std::uint64_t end);
  // Removes the bytes in [begin, end) and returns the runs that they were.
  std::vector<Run> take(std::uint64_t begin, std::uint64_t end);
  // All of them, in order.
  std::vector<Run> runs() const;

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
};

}  // namespace fsdp::formats
