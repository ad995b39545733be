// SPDX-License-Identifier: Apache-2.0
// Puts the optimizer states of a checkpoint into another form: by parameter name, by id, flattened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/rewrite/optimizer_state.h"
#include "formats/rewrite/parameter_order.h"

namespace fsdp::formats {

struct RekeyOptions {
  OptimizerForm to = OptimizerForm::kNames;
  std::optional<ParameterOrder> order;  // given by the user; the checkpoint's own counts otherwise
};

// What became of one optimizer.
struct RekeyedOptimizer {
  std::string key;  // "optimizer_states.0"; empty where it is the whole checkpoint
  OptimizerForm from = OptimizerForm::kIds;
  std::uint64_t groups = 0;
  std::uint64_t parameters = 0;
  std::uint64_t without_state = 0;
  std::string order;  // where names or ids come from
  bool shapes_checked = false;
  // What parameters were called and are called, in the order of the groups; none where they stay.
  std::vector<std::pair<std::string, std::string>> keys;
};

struct Rekeyed {
  Value content;
  std::vector<RekeyedOptimizer> optimizers;
};

// Whether the order in which the checkpoint lists its keys is the one they had when it was saved:
// a folder of several ranks has lost it.
bool keeps_order(const Checkpoint& checkpoint);

// The order of the parameters of a checkpoint's model; nothing where it holds none, or several.
std::optional<ParameterOrder> model_order(const Checkpoint& checkpoint, const Value& content,
                                          const std::string& origin);

// `content` with every optimizer in it in the form asked for; one that has it already stays.
// Throws: kKey where there is no optimizer, or several and `order` has ids' names; what
// read_optimizer, names_of_ids, ids_of_names, check_shapes and reading values throw.
Rekeyed rekey_content(const Checkpoint& checkpoint, const Value& content,
                      const RekeyOptions& options);

}  // namespace fsdp::formats
