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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats::megatron {

// "rng_state/shard_0_4": an object that each rank, or each layer, has one of.
bool is_sharded_object(std::string_view key);
// "decoder.layers.mlp.linear_fc1._extra_state/shard_0_4".
bool is_extra_state_object(std::string_view key);

// A tensor of torch_dist: the model's, or a state of the optimizer.
struct DistKey {
  std::string state;  // "exp_avg", "param", ...; empty: the model's
  std::string name;   // of the parameter
};
// "optimizer.state.exp_avg.decoder.final_layernorm.weight", also behind "chained_0.".
DistKey dist_key(std::string_view key);
// The states of optimizers in buckets, whose keys name no parameter:
// "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(...).bucket_idx_0.exp_avg".
bool is_bucket(std::string_view key);

// Where the number of a layer or an expert stands in a name, or would stand.
struct Numbered {
  std::string before;                  // "decoder.layers."
  std::optional<std::int64_t> number;  // 3; nothing if all are joined
  std::string after;                   // "mlp.linear_fc2.weight"
};
// The layers of a decoder or an encoder.  Nothing if the name has none.
std::optional<Numbered> layer_of(std::string_view name);
// The experts of a layer; all of the names that modules give them have one form here: before
// "...mlp.experts.", after "linear_fc1.weight".
std::optional<Numbered> expert_of(std::string_view name);

// "decoder.layers." 3 "mlp..." to "decoder.layers.3.mlp...", and without a number
// "decoder.layers.mlp...".
std::string layer_name(const Numbered& layer);
// "...mlp.experts.linear_fc1.weight3", and without a number
// "...mlp.experts.experts.linear_fc1.weight".
std::string expert_name(const Numbered& expert);

// Returns the name that Transformer Engine's layers give the parameter of a layer that is built
// without it, which is also that in torch_dist.  `experts`: the layer has experts.
std::string engine_name(const std::string& name, bool experts);
// Returns the name of the norm before the experts of a layer, which torch_dist calls that of their
// first matrix if the layer was built without Transformer Engine.  Other names stay.
std::string norm_name(const std::string& name);

// Returns whether it is the first matrix or bias of a perceptron: gate and input of gated linear
// units stand in it one after the other.
bool is_first_linear(std::string_view name);
// The weight of the second matrix of the same perceptron.
std::string second_linear(std::string_view name);

}  // namespace fsdp::formats::megatron
