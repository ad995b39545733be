// SPDX-License-Identifier: Apache-2.0
// Work that a capture has recorded (capture.h), done again as one piece.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace fsdp::test::sim {

struct RecordedWork;

class Graph {
 public:
  Graph(int device, int number, std::vector<RecordedWork> work);
  // Lets memory of the graph that nobody holds be lent to others.
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) = delete;

  // Does all work again, in order and at the addresses of the capture, on the current stream of the
  // device: after the work that is there, and before later work.  The checker counts all of it as
  // work of that stream.  Copies to and from pinned memory behave as other copies (host_copies.h).
  // Reports work that uses memory, of the device or pinned, that was freed since the capture.
  // Collective if work of the graph is.
  // Throws: c10::Error while the device captures.
  void replay() const;

  std::size_t work_count() const noexcept;

 private:
  int device_;
  int number_;
  std::vector<RecordedWork> work_;
};

}  // namespace fsdp::test::sim
