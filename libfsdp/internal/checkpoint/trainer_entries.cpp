// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/trainer_entries.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

// The version whose layout the entries have; Lightning migrates checkpoints of earlier versions.
constexpr const char* kVersion = "2.5.5";

// Returns the counts of a progress all of whose stages were reached `count` times.
StateDict counts(std::int64_t count, bool staged = true) {
  StateDict result{{"ready", count}, {"completed", count}};
  if (staged) {
    result.set("started", count);
    result.set("processed", count);
  }
  return result;
}

StateDict progress(std::int64_t total, std::int64_t current, bool staged = true) {
  return {{"total", counts(total, staged)}, {"current", counts(current, staged)}};
}

StateDict batch_progress(std::int64_t count, bool ended) {
  StateDict result = progress(count, ended ? count : 0);
  result.set("is_last_batch", ended);
  return result;
}

StateDict evaluation_loop(bool has_last_batch) {
  StateDict batches = progress(0, 0);
  if (has_last_batch) batches.set("is_last_batch", false);
  return {{"state_dict", StateDict()}, {"batch_progress", std::move(batches)}};
}

StateDict optimizer_progress(std::int64_t steps) {
  StateDict zero_grad = progress(steps, 0, false);
  for (const char* part : {"total", "current"})
    zero_grad.at(part).dict().set("started", part == std::string("total") ? steps : 0);
  return {{"optimizer", StateDict{{"step", progress(steps, 0, false)}, {"zero_grad", zero_grad}}}};
}

StateDict fit_loop(std::int64_t epochs, std::int64_t steps) {
  return {
      {"state_dict", StateDict()},
      {"epoch_loop.state_dict", StateDict{{"_batches_that_stepped", steps}}},
      {"epoch_loop.batch_progress", batch_progress(steps, true)},
      {"epoch_loop.scheduler_progress", progress(0, 0, false)},
      {"epoch_loop.automatic_optimization.state_dict", StateDict()},
      {"epoch_loop.automatic_optimization.optim_progress", optimizer_progress(steps)},
      {"epoch_loop.manual_optimization.state_dict", StateDict()},
      {"epoch_loop.manual_optimization.optim_step_progress", progress(0, 0, false)},
      {"epoch_loop.val_loop.state_dict", StateDict()},
      {"epoch_loop.val_loop.batch_progress", batch_progress(0, false)},
      {"epoch_progress", progress(epochs, epochs)},
  };
}

std::int64_t whole_number(const StateDict& rest, const char* key) {
  const StateValue& value = rest.at(key);
  FSDP_CHECK(value.as_int() != nullptr && *value.as_int() >= 0, "'", key, "' is a ",
             value.kind_name(), "; expected a count");
  return *value.as_int();
}

std::optional<double> number_at(const StateDict& dict, const char* key) {
  const StateValue* const value = dict.find(key);
  if (value == nullptr) return std::nullopt;
  if (const double* const number = value->as_double()) return *number;
  if (const std::int64_t* const number = value->as_int()) return static_cast<double>(*number);
  return std::nullopt;
}

}  // namespace

void add_lightning_meta(StateDict& rest) {
  const auto add = [&](const char* key, StateValue value) {
    if (rest.find(key) == nullptr) rest.set(key, std::move(value));
  };
  add("epoch", 0);
  add("global_step", 0);
  add("pytorch-lightning_version", kVersion);
  if (rest.find("loops") == nullptr) {
    rest.set("loops", StateDict{{"fit_loop", fit_loop(whole_number(rest, "epoch"),
                                                      whole_number(rest, "global_step"))},
                                {"validate_loop", evaluation_loop(true)},
                                {"test_loop", evaluation_loop(true)},
                                {"predict_loop", evaluation_loop(false)}});
  }
  add("callbacks", StateDict());
  add("lr_schedulers", StateList());
}

StateDict scaler_dict(const GradScalerState& state) {
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"_growth_tracker", state.growth_tracker}};
}

std::optional<GradScalerState> scaler_state(const StateDict& dict) {
  const auto scale = number_at(dict, "scale");
  const auto growth = number_at(dict, "growth_factor");
  const auto backoff = number_at(dict, "backoff_factor");
  const auto interval = number_at(dict, "growth_interval");
  const auto tracker = number_at(dict, "_growth_tracker");
  if (!scale || !growth || !backoff || !interval || !tracker) return std::nullopt;
  return GradScalerState{*scale, *growth, *backoff, static_cast<std::int64_t>(*interval),
                         static_cast<std::int64_t>(*tracker)};
}

bool is_name_of_scaler(std::string_view key) {
  constexpr std::array<std::string_view, 7> kNames{"FSDPPrecision",
                                                   "MixedPrecision",
                                                   "MixedPrecisionPlugin",
                                                   "FSDPMixedPrecisionPlugin",
                                                   "grad_scaler",
                                                   "scaler",
                                                   "amp_scaler"};
  return std::find(kNames.begin(), kNames.end(), key) != kNames.end();
}

}  // namespace fsdp::internal
