// SPDX-License-Identifier: Apache-2.0
// Every optimizer that state dicts support, with all state that it can keep.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "libfsdp/optim/adamw.h"

namespace fsdp::test {

inline const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names = {"SGD",     "SGD momentum", "Adam",
                                                 "AdamW",   "fused AdamW",  "capturable AdamW",
                                                 "Adagrad", "RMSprop",      "RMSprop all"};
  return names;
}

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// Groups after the first have a tenth of the learning rate.
template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make(const ParamGroups& groups, const Options& options) {
  ParamGroups with_options;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto own = std::make_unique<Options>(options);
    if (g > 0) own->lr(options.lr() / 10);
    with_options.emplace_back(groups[g].params(), std::move(own));
  }
  return std::make_unique<Optimizer>(with_options, options);
}

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                               const ParamGroups& groups) {
  using namespace torch::optim;
  if (name == "SGD") return make<SGD>(groups, SGDOptions(0.05));
  if (name == "SGD momentum")
    return make<SGD>(groups, SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
  if (name == "Adam") return make<Adam>(groups, AdamOptions(0.01).amsgrad(true).eps(1e-7));
  const auto adamw = AdamWOptions(0.01).betas({0.8, 0.95}).weight_decay(0.1);
  if (name == "AdamW") return make<torch::optim::AdamW>(groups, adamw);
  if (name == "fused AdamW") return make<fsdp::optim::AdamW>(groups, adamw);
  if (name == "capturable AdamW") {
    auto result = make<fsdp::optim::AdamW>(groups, adamw);
    static_cast<fsdp::optim::AdamW&>(*result).capturable();
    return result;
  }
  if (name == "Adagrad")
    return make<Adagrad>(groups, AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.2));
  if (name == "RMSprop") return make<RMSprop>(groups, RMSpropOptions(0.01));
  if (name == "RMSprop all")
    return make<RMSprop>(groups, RMSpropOptions(0.01).momentum(0.5).centered(true));
  throw std::invalid_argument("no optimizer " + name);
}

}  // namespace fsdp::test
