// SPDX-License-Identifier: Apache-2.0
// One all-gather in flight: of a single unit, or of several small ones that share it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/context.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

class Gather : public std::enable_shared_from_this<Gather> {
 public:
  // Starts gathering sharded units; they are kGathering afterwards.  Collective over the sharding
  // group that all of them have, or over the ranks that keep a unit together.
  static void start(const EngineContext& context, const std::vector<Unit*>& units);
  // Returns "all-gather of blocks.0 and 1 more units", for errors.
  static std::string title(const std::vector<Unit*>& units);
  static std::string full_title(const std::vector<Unit*>& units);
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;
  ~Gather();

  // Waits, and makes one of its units unsharded.  Its parameters come on kUnshard: a stream that
  // uses them must be ordered after that lane.
  // Throws: c10::Error if the collective fails, or what GatherChecks throws; all its units are
  // sharded again then.
  void finish(Unit& unit);
  // Frees a unit that will not be used, without copying it.  Waits all the same, because the shards
  // are read until the collective is over.
  void discard(Unit& unit);
  // On an accelerator: orders kUnshard after this gather's reads of the shards, which may be
  // written once the gather is given up.  The host does not wait, and nothing depends on other
  // ranks.
  void let_read() noexcept;

 private:
  Gather(const EngineContext& context, std::vector<Unit*> units);
  void wait();
  at::Tensor copied(const Blocks& blocks, const Unit& unit) const;
  at::Tensor copied_out(const Unit& unit);
  void check_trailers(const Unit& unit, const at::Tensor& full);
  void leave(Unit& unit);
  void fail() noexcept;

  const EngineContext& context_;
  Streams& streams_;
  const bool of_pieces_;  // of one unit, which some ranks have kept together: see Unit::piece
  const std::shared_ptr<ProcessGroup> group_;
  std::vector<Unit*> units_;                // still waiting for their parameters
  std::int64_t block_bytes_ = 0;            // of a rank
  at::Tensor staging_;                      // [block_bytes_], if the blocks had to be put together
  at::Tensor blocks_;                       // [W, block_bytes_]; undefined if other ranks have them
  std::map<const Unit*, at::Tensor> read_;  // on the CPU: the units' parameters, until they finish
  Pending pending_;
  bool waited_ = false;
  Trace::Moment started_;
};

}  // namespace fsdp::internal
