// SPDX-License-Identifier: Apache-2.0
// Scaling of losses for float16: PyTorch's torch.amp.GradScaler, and its ShardedGradScaler if ranks
// hold different shards of the gradients.
//
//   fsdp::GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);  // only where gradients are read before the step: clip_grad_norm_
//   scaler.step(optimizer);
//   scaler.update();
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "libfsdp/process_group.h"

namespace fsdp {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   // above 1
  double backoff_factor = 0.5;  // below 1
  // Steps in a row without an infinity or NaN after which the scale grows.
  std::int64_t growth_interval = 2000;
  // While false every method passes through: the same program trains without scaling.
  bool enabled = true;
  // The ranks that must skip the same steps.  Null: those that the optimizer's parameters are
  // sharded over; for other parameters, this process alone.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

// The fields of PyTorch's state_dict(), under its names.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  std::int64_t growth_interval = 0;
  std::int64_t growth_tracker = 0;  // "_growth_tracker"
};

class GradScaler {
 public:
  // Throws: c10::Error for factors on the wrong side of 1.
  explicit GradScaler(GradScalerOptions options = {});

  // Returns the loss times the scale, in the loss's dtype.
  at::Tensor scale(const at::Tensor& loss);

  // Collective; at most once for an optimizer between updates.  Divides the gradients of the
  // optimizer's parameters by the scale, in place, and looks for infinities and NaNs on any rank.
  // Throws: c10::Error if it was called since the last update(), or after step().
  void unscale_(torch::optim::Optimizer& optimizer);

  // Collective unless unscale_() was called.  Unscales, and steps the optimizer unless a rank found
  // an infinity or NaN.  Returns whether it stepped.
  // Throws: c10::Error if it was called since the last update().
  bool step(torch::optim::Optimizer& optimizer);

  // Ends the iteration.  Lowers the scale if a step was skipped, raises it after growth_interval
  // iterations without a skip, or sets it to `new_scale`.
  // Throws: c10::Error if no optimizer was unscaled or stepped.
  void update(std::optional<double> new_scale = std::nullopt);

  bool is_enabled() const noexcept { return options_.enabled; }
  double get_scale() const noexcept;  // 1 while not enabled

  GradScalerState state() const noexcept;
  void load_state(const GradScalerState& state);

 private:
  enum class Stage { kUnscaled, kStepped };
  struct Progress {
    Stage stage = Stage::kUnscaled;
    bool found_inf = false;
  };

  bool found_on_any_rank(bool found_here, const torch::optim::Optimizer& optimizer) const;

  GradScalerOptions options_;
  float scale_;  // in PyTorch a float32 tensor
  std::int64_t growth_tracker_ = 0;
  // The optimizers that were unscaled since the last update.
  std::map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace fsdp
