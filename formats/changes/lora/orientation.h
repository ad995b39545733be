// SPDX-License-Identifier: Apache-2.0
// Which weights are stored [in, out], as those of transformers' Conv1D: peft goes by the kind of a
// module, and a file does not tell kinds.
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

  // Whether the square weight is [in, out]: as the weights near it that are not square, whose
  // biases tell.  A Conv1D has a bias, so a weight without one is not.  Nothing if none tells.
  std::optional<bool> turned(const std::string& weight_key);

 private:
  struct Votes {
    std::uint64_t turned = 0;
    std::uint64_t straight = 0;
  };
  // Of the weights whose keys begin so.
  const Votes& votes_below(const std::string& front);
  const std::vector<std::int64_t>* shape_of(const std::string& key) const;

  const Checkpoint& base_;
  const std::map<std::string, Leaf>& leaves_;
  std::map<std::string, Votes> votes_;
};

// How peft takes a stacked weight of experts, of which each is square.
struct ExpertsOrder {
  bool turned = false;  // [experts, in, out], not [experts, out, in]
  std::string guess;    // what was assumed, if neither a version nor a class tells
};
// `model_type`: of the base's config.json; empty if it is not known.
// Source: ParamWrapper of peft 0.17 to 0.21, and is_transposed in transformers 5.
ExpertsOrder experts_order(const AdapterConfig& config, const std::string& model_type);

}  // namespace fsdp::formats
