// SPDX-License-Identifier: Apache-2.0
// Finds averages of a model's weights that trainers and optimizers keep beside the weights.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/hf/model_content.h"
#include "formats/state/rewrite/optimizer_state.h"

namespace fsdp::formats {

// A tensor that counts with `weight`; without one, the weight of the model itself.
struct AverageTerm {
  std::optional<Value> tensor;
  double weight = 1;
};

// The average of one parameter: the sum of its terms.
struct KeptAverage {
  std::string key;  // its name, or its id in the optimizer
  std::vector<AverageTerm> terms;
};

struct AverageSource {
  std::string place;   // its key: "ema", "optimizer_states.0.ema"
  std::string what;    // "averages of NeMo's EMAOptimizer"
  bool model = false;  // a model of its own
  std::vector<KeptAverage> averages;
  // The optimizer that knows the parameters by these keys; nothing: the keys are names.
  std::optional<OptimizerState> optimizer;
  bool listed = false;  // the keys are positions in a list that has no names
  std::string part;     // tensors elsewhere than below this name have no averages; empty: all may
};

// Returns the models of `content` (hf::find_models) that hold averages of weights, or the others.
// A model holds averages if its key says so (hf::is_average), if it is the state of
// torch.optim.swa_utils.AveragedModel, whose module is returned, or if Lightning's WeightAveraging
// put it in the place of the weights; so is that of timm's ModelEmaV3, and what LitEma keeps in the
// state dict of another one.
std::vector<hf::FoundModel> models_of(const Value& content, bool averages);

// Returns the averages of `content`, which has no placeholders: models of averages, lists
// `shadow_params` (diffusers, torch_ema), NeMo's EMAOptimizer, and states of optimizers from which
// averages follow: schedule-free ones, SPlus.
// Throws: kKey and kType if one of them contradicts itself; kUnsupported if one does not keep what
// the averages follow from; what read_optimizer throws.
std::vector<AverageSource> average_sources(const Value& content);

}  // namespace fsdp::formats
