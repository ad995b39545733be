// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks of a gather gathered the same unit, with the same values.
//
// On an accelerator the trailers of the blocks are copied to the host without waiting for them, and
// compared once an event says that they are there: by a later gather, or at the end of a forward or
// backward.  So an error comes some units late.  If a device is far behind the host, some gathers
// stay unchecked; ranks that diverged stay apart, so a later check finds them.  Gathers of a graph
// that is being captured are not checked: no host code runs in its replays.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/streams.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

class GatherChecks {
 public:
  // `all` units of the engine, by id, give other ranks' units their names in errors.
  GatherChecks(Streams& streams, const std::vector<std::unique_ptr<Unit>>& all)
      : streams_(streams), all_(all) {}

  // `trailer`: the first rank's, on the host; each next rank's lies `stride` bytes after.
  // Throws: c10::Error if another rank gathered another unit, or wrote other values to this one
  // (see written_parameters.h).
  void check(const Unit& unit, const char* trailer, std::int64_t stride) const;

  // `trailers` [W * kTrailerBytes], on the device, written on kUnshard.
  void check_later(const Unit& unit, const at::Tensor& trailers);
  // Checks the trailers that have arrived.  Throws: what check() throws.
  void check_arrived();
  // Drops all trailers.
  void forget() noexcept { later_.clear(); }

 private:
  struct Later {
    const Unit* unit = nullptr;
    at::Tensor trailers;  // in pinned memory
    StreamPoint copied;
  };

  Streams& streams_;
  const std::vector<std::unique_ptr<Unit>>& all_;
  std::deque<Later> later_;
  std::vector<at::Tensor> spare_;  // pinned memory for trailers
};

}  // namespace fsdp::internal
