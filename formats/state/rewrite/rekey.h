// SPDX-License-Identifier: Apache-2.0
// Puts the optimizer states of a checkpoint into another form: by parameter name, by id, flattened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/rewrite/optimizer_state.h"
#include "formats/state/rewrite/parameter_order.h"

namespace fsdp::formats {

struct RekeyOptions {
  OptimizerForm to = OptimizerForm::kNames;
  std::optional<ParameterOrder> order;  // given by the user; otherwise the checkpoint's own
};

struct RekeyedOptimizer {
  std::string key;  // "optimizer_states.0"; empty if it is the whole checkpoint
  OptimizerForm from = OptimizerForm::kIds;
  std::uint64_t groups = 0;
  std::uint64_t parameters = 0;
  std::uint64_t without_state = 0;
  std::string order;  // where the names or ids come from
  bool shapes_checked = false;
  // The old and new keys of parameters, in the order of the groups; empty if the keys stay.
  std::vector<std::pair<std::string, std::string>> keys;
};

struct Rekeyed {
  Value content;
  std::vector<RekeyedOptimizer> optimizers;
};

// Returns whether the checkpoint lists its keys in the order in which they were saved, which a
// folder of several ranks does not.
bool keeps_order(const Checkpoint& checkpoint);

// Returns the only model's state dict of a checkpoint's content, or the one under a usual key if
// there are averages of it; nothing if there is none, or several.
std::optional<Value> model_of(const Value& content);

// Returns the order of the parameters of a checkpoint's model; nothing if the checkpoint holds no
// model, or several.
std::optional<ParameterOrder> model_order(const Checkpoint& checkpoint, const Value& content,
                                          const std::string& origin);

// Returns `content` with every optimizer in the requested form; optimizers already in that form
// stay. Throws: kKey if there is no optimizer, or several and `order` gives names for ids; what
// read_optimizer, names_of_ids, ids_of_names, check_shapes and reading values throw.
Rekeyed rekey_content(const Checkpoint& checkpoint, const Value& content,
                      const RekeyOptions& options);

}  // namespace fsdp::formats
