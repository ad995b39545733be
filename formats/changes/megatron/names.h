// SPDX-License-Identifier: Apache-2.0
// The names that Megatron-Core's checkpoints give to parameters.
//
// torch_dist joins the layers of a block, if they are alike, along a new dimension 0 of one tensor,
// "decoder.layers.mlp.linear_fc2.weight", and the experts of a layer along the next one,
// "mlp.experts.experts.linear_fc1.weight".  Modules, and fsdp_dtensor, have a tensor for each:
// "decoder.layers.3.mlp.experts.linear_fc1.weight7".
// Source: megatron/core/transformer/{transformer_block,mlp,moe/experts}.py of Megatron-Core 0.16;
// docs/formats/megatron.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats::megatron {

// Returns whether each rank, or each layer, has an object of this key: "rng_state/shard_0_4".
bool is_sharded_object(std::string_view key);

// A tensor of torch_dist: the model's, or a state of the optimizer.
struct DistKey {
  std::string state;  // "exp_avg", "param", ...; empty: the model's
  std::string name;   // of the parameter
};
// Splits "optimizer.state.exp_avg.decoder.final_layernorm.weight", also after "chained_0.".
DistKey dist_key(std::string_view key);
// Returns whether the key is that of a state of an optimizer in buckets, which names no parameter:
// "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(...).bucket_idx_0.exp_avg".
bool is_bucket(std::string_view key);

// A name split at the number of a layer or an expert, whether the number is there or not.
struct Numbered {
  std::string before;                  // "decoder.layers."
  std::optional<std::int64_t> number;  // 3; nothing if all are joined
  std::string after;                   // "mlp.linear_fc2.weight"
};
// Splits a name at its layer of a decoder or an encoder.  Nothing if the name has none.
std::optional<Numbered> layer_of(std::string_view name);
// Splits a name at its expert, whichever form of names the modules use: before "...mlp.experts.",
// after "linear_fc1.weight".
std::optional<Numbered> expert_of(std::string_view name);

// Returns "decoder.layers.3.mlp...", and without a number "decoder.layers.mlp...".
std::string layer_name(const Numbered& layer);
// Returns "...mlp.experts.linear_fc1.weight3", and without a number
// "...mlp.experts.experts.linear_fc1.weight".
std::string expert_name(const Numbered& expert);

// Returns Transformer Engine's name, which torch_dist uses too, for a parameter of a layer that is
// built without Transformer Engine.  `experts`: the layer has experts.
std::string engine_name(const std::string& name, bool experts);
// Returns the modules' name of the norm before the experts of a layer.  torch_dist names that norm
// as a part of their first matrix if the layer was built without Transformer Engine.  Other names
// stay.
std::string norm_name(const std::string& name);

// Returns whether it is the first matrix or bias of a perceptron: gate and input of gated linear
// units stand in it one after the other.
bool is_first_linear(std::string_view name);
// Returns the name of the weight of the second matrix of the same perceptron.
std::string second_linear(std::string_view name);

}  // namespace fsdp::formats::megatron
