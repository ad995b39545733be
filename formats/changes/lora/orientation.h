// SPDX-License-Identifier: Apache-2.0
// Finds the weights that are stored [in, out], as in transformers' Conv1D.  peft decides by the
// kind of a module, which a file does not tell.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "formats/changes/lora/adapter_config.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

class Orientation {
 public:
  // Lifetime: both outlive it.
  Orientation(const Checkpoint& base, const std::map<std::string, Leaf>& leaves)
      : base_(base), leaves_(leaves) {}

  // Returns whether a square weight is [in, out].  Decides as for the nearest weights that are not
  // square, whose biases tell.  A weight without a bias is not: a Conv1D has one.  Returns nothing
  // if no weight tells.
  std::optional<bool> turned(const std::string& weight_key);

 private:
  struct Votes {
    std::uint64_t turned = 0;
    std::uint64_t straight = 0;
  };
  // Counts the weights whose keys begin with `front`.
  const Votes& votes_below(const std::string& front);
  const std::vector<std::int64_t>* shape_of(const std::string& key) const;

  const Checkpoint& base_;
  const std::map<std::string, Leaf>& leaves_;
  std::map<std::string, Votes> votes_;
};

// The order in which peft takes a stacked weight of square experts.
struct ExpertsOrder {
  bool turned = false;  // [experts, in, out], not [experts, out, in]
  std::string guess;    // what was assumed, if neither a version nor a class tells
};
// `model_type`: of the base's config.json; empty if it is not known.
// Source: ParamWrapper of peft 0.17 to 0.21, and is_transposed in transformers 5.
ExpertsOrder experts_order(const AdapterConfig& config, const std::string& model_type);

}  // namespace fsdp::formats
