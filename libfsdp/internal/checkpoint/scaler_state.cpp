// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/scaler_state.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace fsdp::internal {
namespace {

std::optional<double> number_at(const StateDict& dict, const char* key) {
  const StateValue* const value = dict.find(key);
  if (value == nullptr) return std::nullopt;
  if (const double* const number = value->as_double()) return *number;
  if (const std::int64_t* const number = value->as_int()) return static_cast<double>(*number);
  return std::nullopt;
}

}  // namespace

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
