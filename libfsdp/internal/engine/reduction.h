// SPDX-License-Identifier: Apache-2.0
// Reduces full gradients to this rank's rows of their mean.
//
// Note [mean of gradients]: a rank's full gradients are staged rank-major in the reduce dtype.  If
// the backend cannot add while it scatters, ranks exchange their blocks and each takes the mean of
// its W rows at once, in float32 for 16-bit dtypes: sums are never rounded to the reduce dtype in
// between.  Replicas then add their rows.  The division by the number of replicas comes before
// that sum for 16-bit dtypes, which could overflow, and after it for others.  The result is cast
// to the dtype of the shards (unless keep_low_precision_grads) and added to their existing
// gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/streams.h"
#include "libfsdp/internal/engine/trace.h"
#include "libfsdp/internal/engine/unit.h"
#include "libfsdp/options.h"

namespace fsdp::internal {

// Settings of an engine's reductions.
struct ReduceContext {
  std::shared_ptr<ProcessGroup> shard_group;
  std::shared_ptr<ProcessGroup> replicate_group;  // null: no replicas
  Streams* streams = nullptr;
  bool flat = false;  // gradients are published to FlatGroup::flat
  bool keep_low_precision = false;
  CommHook hook;  // null: the library's own
  Trace* trace = nullptr;
};

// Copies the full gradient of `parameter` into its group's staging buffer, and drops it.  Adds its
// kept gradient (see gradients.h), which stays until the reduction is done.
// Throws: c10::Error for a sparse gradient.
void stage_gradient(const ReduceContext& context, Parameter& parameter);

// One reduction in flight.
class Reduction {
 public:
  using Part = std::pair<Unit*, FlatGroup*>;

  // Collective.  Takes the staging buffers of groups with one reduce dtype and starts reducing
  // them; parameters without a gradient count as zeros.
  Reduction(const ReduceContext& context, std::vector<Part> parts);
  // Returns "gradient reduction of blocks.0 (float), ...", with every part.
  static std::string full_title(const std::vector<Part>& parts);
  Reduction(Reduction&&) noexcept = default;
  Reduction& operator=(Reduction&&) noexcept = default;
  ~Reduction();

  // Waits, and publishes the gradients of the shards.
  // Throws: c10::Error if the collective fails or another rank reduces other units.
  void finish();

 private:
  at::Tensor mean_rows();
  void check_ids() const;
  at::Tensor averaged_over_replicas(const at::Tensor& rows);
  void run_hook();

  const ReduceContext* context_;
  std::vector<Part> parts_;
  std::int64_t numel_ = 0;  // of a rank's block: every part with its trailer
  at::Tensor sent_;         // [W, numel_]
  at::Tensor received_;     // [W, numel_], or [numel_] if the backend adds
  Pending pending_;
  Trace::Clock::time_point started_;
};

}  // namespace fsdp::internal
