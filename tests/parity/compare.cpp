// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/compare.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace fsdp::test {
namespace {

double relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  TORCH_CHECK(ours.size() == theirs.size(), "expected ", theirs.size(), " numbers, found ",
              ours.size());
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double apart = std::abs(ours[i] - theirs[i]) / std::abs(theirs[i]);
    // NaN on either side is the largest distance.
    largest = std::isfinite(apart) ? std::max(largest, apart) : HUGE_VAL;
  }
  return largest;
}

// bfloat16 cases: a factor for the noise floor, and a minimum in case the floor was low by chance:
// the effect of one different rounding on a loss, and of a step of AdamW in the opposite direction.
constexpr double kFloors = 3;
constexpr double kLeastLosses = 5e-4;
constexpr double kLeastWeights = 6e-3;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A softmax ignores a value added to all keys alike, so the true gradient of the keys' bias is
// zero.  Adam divides its rounding noise by its own size: steps of full length in directions that
// differ between any two implementations.
std::pair<at::Tensor, at::Tensor> without_key_bias(const at::Tensor& ours,
                                                   const at::Tensor& theirs) {
  const auto third = theirs.size(0) / 3;
  const auto rest = [&](const at::Tensor& bias) {
    return at::cat({bias.narrow(0, 0, third), bias.narrow(0, 2 * third, third)});
  };
  return {rest(ours), rest(theirs)};
}

}  // namespace

Difference difference(const ParityCase& wanted, const Training& ours, const Training& theirs) {
  Difference found;
  TORCH_CHECK(ours.losses.size() == theirs.losses.size(), "expected ", theirs.losses.size(),
              " steps, found ", ours.losses.size());
  for (std::size_t step = 0; step < ours.losses.size(); ++step) {
    found.losses = std::max(found.losses, relative(ours.losses[step], theirs.losses[step]));
  }
  found.first = relative(ours.losses.front(), theirs.losses.front());
  found.losses = std::max(found.losses, relative(ours.evaluations, theirs.evaluations));
  found.norms = relative(ours.norms, theirs.norms);
  for (const auto& [name, expected] : theirs.tensors) {
    const auto tensor = ours.tensors.find(name);
    TORCH_CHECK(tensor != ours.tensors.end(), "no tensor '", name, "'");
    TORCH_CHECK(tensor->second.sizes() == expected.sizes(), name, " is ", tensor->second.sizes(),
                ", expected ", expected.sizes());
    auto pair = std::make_pair(tensor->second, expected);
    if (wanted.optimizer == "adamw" && ends_with(name, "qkv.bias")) {
      pair = without_key_bias(pair.first, pair.second);
    }
    const at::Tensor value = pair.second.to(at::kDouble);
    const at::Tensor apart = (pair.first.to(at::kDouble) - value).abs() / (1 + value.abs());
    const double largest = apart.max().item<double>();
    if (!(largest <= found.weights)) {  // this form also catches NaN
      found.weights = std::isfinite(largest) ? largest : HUGE_VAL;
      found.worst = name;
    }
  }
  return found;
}

Tolerance tolerance_of(const ParityCase& wanted, const Floor& floor) {
  Tolerance tolerance{.first = 1e-6, .losses = 1e-5, .norms = 1e-5, .weights = 1e-5};
  if (wanted.mixed.empty()) return tolerance;
  tolerance.losses = std::max(kFloors * floor.losses, kLeastLosses);
  tolerance.norms = std::max(kFloors * floor.norms, kLeastLosses);
  tolerance.weights = std::max(kFloors * floor.weights, kLeastWeights);
  return tolerance;
}

}  // namespace fsdp::test
