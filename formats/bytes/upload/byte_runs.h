// SPDX-License-Identifier: Apache-2.0
// A set of bytes of a file, as runs that do not touch.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace fsdp::formats {

class ByteRuns {
 public:
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };

  // Adds [begin, end) and returns the run that then contains these bytes.  Returns a run with end
  // 0, and adds nothing, if some of the bytes are in the set already.  Requires: begin < end.
  Run add(std::uint64_t begin, std::uint64_t end);
  // Removes the bytes in [begin, end) and returns them as runs.
  std::vector<Run> take(std::uint64_t begin, std::uint64_t end);
  // Returns all runs, in order.
  std::vector<Run> runs() const;

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
};

}  // namespace fsdp::formats
