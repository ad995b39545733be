// SPDX-License-Identifier: Apache-2.0
// Averages that latent-diffusion's LitEma keeps in the state dict of the model: buffers under the
// names of the parameters without their dots, beside `decay` and `num_updates`.
#pragma once

#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

struct LitEma {
  std::string front;    // "model_ema"
  std::string part;     // "model": what the averages are of; empty: all that is beside them
  Value averages;       // by the names of the parameters in the state dict
  std::string problem;  // why these names are not known; empty: they are
};

// Returns those of `tensors`, a mapping of names to tensors.  A name without dots is that of the
// only tensor that it can be of, and has its shape.
std::vector<LitEma> lit_emas(const Value& tensors);

// Returns `tensors` without those below the fronts.
Value without_fronts(const Value& tensors, const std::vector<std::string>& fronts);

}  // namespace fsdp::formats
