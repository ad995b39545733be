// SPDX-License-Identifier: Apache-2.0
// The start that many tests of a sharded module share.
#pragma once

#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/libfsdp/error_of.h"
#include "tests/libfsdp/models.h"
#include "tests/libfsdp/sharded_case.h"

namespace fsdp {

inline FsdpOptions options_over(const Group& group, WrapPolicy policy = nullptr) {
  FsdpOptions options;
  options.process_group = group;
  options.device_id = test::device_id_of_rank(group->rank());
  options.auto_wrap_policy = std::move(policy);
  return options;
}

inline test::Gpt filled_gpt(int layers = 2) {
  test::Gpt module(layers, false);
  fill_parameters(*module);
  return module;
}

// Returns the loss of one rank in one step.
template <typename Sharded>
torch::Tensor gpt_loss(Sharded& sharded, int rank, int step) {
  const auto tokens = random_tokens({2, 9}, 53, static_cast<std::uint64_t>(100 * step + rank));
  return test::next_token_loss(sharded.forward(tokens), tokens);
}

}  // namespace fsdp
