// SPDX-License-Identifier: Apache-2.0
// Reduces full gradients to this rank's rows of their mean.
//
// Note [mean of gradients]: a rank's full gradients are staged rank-major in the reduce dtype.  If
// the backend cannot add while it scatters, ranks exchange their blocks and each takes the mean of
// its W rows at once, in float32 for 16-bit dtypes: sums are never rounded to the reduce dtype in
// between.  Replicas then add their rows.  Sums in 16 bits could overflow, and quotients underflow,
// so that a backend's sum is divided by one factor before and by another after it; other sums are
// divided after.  The result is cast to the dtype of the shards (unless keep_low_precision_grads)
// and added to their existing gradients.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/engine/published.h"
#include "libfsdp/internal/units/unit.h"

namespace fsdp::internal {

// One reduction in flight.
class Reduction {
 public:
  using Part = std::pair<Unit*, FlatGroup*>;

  // Collective.  Takes the staging buffers of groups with one reduce dtype and mesh, and reduces
  // them; parameters without a gradient count as zeros.
  Reduction(const EngineContext& context, std::vector<Part> parts);
  // Returns "gradient reduction of blocks.0 (float), ...", with every part.
  static std::string full_title(const std::vector<Part>& parts);
  Reduction(Reduction&&) noexcept = default;
  Reduction& operator=(Reduction&&) noexcept = default;
  ~Reduction();

  // Waits, and publishes the gradients of the shards.  `arriving`: see published.h.
  // Throws: c10::Error if the collective fails or another rank reduces other units.
  void finish(std::vector<Arriving>& arriving);

 private:
  // All parts have one mesh.
  const Mesh& mesh() const noexcept { return parts_.front().second->sharding->mesh; }
  const CommHook& hook() const noexcept { return parts_.front().first->comm_hook; }
  // Returns whether the replicas take part; else the mean inside a replica is kept.
  bool all_reduces() const noexcept {
    return !mesh().replicate || parts_.front().first->all_reduces;
  }
  // Returns whether the reduction is only the mean over ranks.
  bool is_plain() const;
  bool is_exchanged() const;
  void send(const std::string& what);
  void take_received(std::int64_t ranks);
  // The ways to finish.  Each waits, and publishes the gradients of the shards.
  void by_hook(std::vector<Arriving>& arriving);
  // Computes means from the other ranks' blocks in place.
  void by_reading();
  // Computes means of exchanged blocks right into the gradients.
  void by_exchange(std::vector<Arriving>& arriving);
  // Computes means of rows, which replicas, divide factors and hooks then change.
  void by_rows(std::vector<Arriving>& arriving);
  void receive();
  void note_received();
  void check_ids(const Blocks& blocks) const;
  at::Tensor mean_rows();
  void add_partial(const at::Tensor& rows);
  at::Tensor averaged_over_replicas(const at::Tensor& rows);
  // Calls f(unit, group, part of `rows`) for each part; rows: [numel_] or [W, numel_].
  template <typename F>
  void for_each_part(const at::Tensor& rows, const F& f) const;
  void publish_mean(FlatGroup& group, const at::Tensor& received_WN,
                    std::vector<Arriving>& arriving);

  const EngineContext* context_;
  std::vector<Part> parts_;
  std::int64_t numel_ = 0;  // of a rank's block: every part with its trailer
  at::Tensor sent_;         // [W, numel_]
  // [W, numel_], or [numel_] if the backend adds: then it may be the gradients' own memory.
  // Undefined while other ranks have it.
  at::Tensor received_;
  bool receives_in_grad_ = false;
  Pending pending_;
  Trace::Moment started_;
};

}  // namespace fsdp::internal
