// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/megatron/buckets.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/changes/megatron/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::megatron {
namespace {

arrays::Array element(const arrays::Array& array, std::int64_t index) {
  return arrays::without_dimension(arrays::sliced(array, 0, index, 1), 0);
}

// Adds the tensors of every expert; `array` begins with the dimension of experts if they are
// joined.
void add_experts(const std::string& name, const arrays::Array& array,
                 std::vector<NamedArray>& out) {
  auto expert = expert_of(name);
  if (!expert) {
    out.push_back({name, array});
    return;
  }
  if (expert->number || array.shape.empty()) {
    out.push_back({expert->number ? expert_name(*expert) : name, array});
    return;
  }
  for (std::int64_t e = 0; e < array.shape[0]; ++e) {
    expert->number = e;
    out.push_back({expert_name(*expert), element(array, e)});
  }
}

// Adds the tensors of every layer.
void add_layers(const std::string& name, const arrays::Array& array, std::vector<NamedArray>& out) {
  auto layer = layer_of(name);
  if (!layer || layer->number || array.shape.empty()) return add_experts(name, array, out);
  for (std::int64_t i = 0; i < array.shape[0]; ++i) {
    layer->number = i;
    add_experts(layer_name(*layer), element(array, i), out);
  }
}

class Writer {
 public:
  Writer(const ModuleState& state, const std::string& path, bool layers_apart,
         arrays::ComputedTensors& made)
      : state_(state), path_(path), made_(made) {
    for (const NamedArray& one : state.model) {
      const auto layer = layer_of(one.name);
      if (!layer) continue;
      if (layer->number && expert_of(one.name)) mixed_.insert(place(*layer));
      if (is_of_core(layer->after)) blocks_.insert(layer->before);
      if (layer->number && layer->after.starts_with("self_attention.linear_qkv."))
        fused_.insert(place(*layer));
    }
    joined_ = !layers_apart && are_alike(with_engine_names(state.model));
  }

  Value run() {
    const std::vector<NamedArray> model = joined_tensors(state_.model);
    for (const NamedArray& one : model) add(one.name, made_.shared({one.name}, one.array));
    for (const auto& [kind, arrays] : states()) {
      for (const NamedArray& one : joined_tensors(arrays)) {
        const std::string key = cat("optimizer.state.", kind, ".", one.name);
        add(key, made_.separate({key}, one.array));
      }
    }
    add_extra_states(model);
    add_common();
    return Value::dict(std::move(entries_));
  }

 private:
  static std::string place(const Numbered& layer) {
    return layer.before + std::to_string(layer.number.value_or(-1));
  }

  // Returns whether a tensor of a layer is of a state space model, whose layers are never joined.
  static bool is_of_mixer(const std::string& after) {
    return after.starts_with("mixer.") || after.starts_with("mamba_mixer.");
  }

  // Returns whether a tensor of a layer is one of Megatron-Core's layers, not of a model of
  // transformers inside the model, whose layers stay apart.
  static bool is_of_core(const std::string& after) {
    return after.starts_with("self_attention.") || after.starts_with("mlp.linear_fc") ||
           is_of_mixer(after);
  }

  std::optional<Numbered> core_layer_of(const std::string& name) const {
    auto layer = layer_of(name);
    if (layer && !blocks_.contains(layer->before)) layer.reset();
    return layer;
  }

  void add(const std::string& key, Value value) {
    entries_.emplace_back(Value::string(key), std::move(value));
  }

  // Returns the states of the optimizer with the copy of the parameters, which fsdp_dtensor holds
  // as the model.
  std::map<std::string, std::vector<NamedArray>> states() const {
    auto out = state_.states;
    if (out.empty() || out.contains(std::string(kMasterState)) || out.contains("fp32_param"))
      return out;
    std::set<std::string> with_state;
    for (const NamedArray& one : out.begin()->second) with_state.insert(one.name);
    for (const NamedArray& one : state_.model) {
      if (with_state.contains(one.name)) out[std::string(kMasterState)].push_back(one);
    }
    return out;
  }

  std::vector<NamedArray> with_engine_names(const std::vector<NamedArray>& arrays) const {
    std::vector<NamedArray> out;
    for (const NamedArray& one : arrays) {
      const auto layer = layer_of(one.name);
      const bool experts = layer && mixed_.contains(place(*layer));
      // Attention with latent vectors has its norm apart, with Transformer Engine too.
      const bool apart =
          layer && !fused_.contains(place(*layer)) && layer->after.starts_with("input_layernorm.");
      out.push_back({apart ? one.name : engine_name(one.name, experts), one.array});
    }
    return out;
  }

  // Returns whether every layer of a block has the same tensors as the others, so that they can be
  // joined.
  bool are_alike(const std::vector<NamedArray>& arrays) const {
    using Kind = std::pair<DType, std::vector<std::int64_t>>;
    std::map<std::string, std::map<std::int64_t, std::map<std::string, Kind>>> blocks;
    for (const NamedArray& one : arrays) {
      const auto layer = core_layer_of(one.name);
      if (!layer) continue;
      if (!layer->number || is_of_mixer(layer->after)) return false;
      blocks[layer->before][*layer->number].emplace(layer->after,
                                                    Kind{one.array.dtype, one.array.shape});
    }
    for (const auto& [before, layers] : blocks) {
      std::int64_t expected = 0;
      for (const auto& [number, tensors] : layers) {
        if (number != expected++ || tensors != layers.begin()->second) return false;
      }
    }
    return true;
  }

  // Joins experts, then layers; in the order of their first tensors.
  std::vector<NamedArray> joined_tensors(const std::vector<NamedArray>& arrays) const {
    const std::vector<NamedArray> named = with_engine_names(arrays);
    std::vector<NamedArray> experts = joined_by(
        named, [](const std::string& name) { return expert_of(name); }, expert_name);
    if (!joined_) return experts;
    return joined_by(
        experts, [this](const std::string& name) { return core_layer_of(name); }, layer_name);
  }

  template <typename Split, typename Join>
  std::vector<NamedArray> joined_by(const std::vector<NamedArray>& arrays, const Split& split,
                                    const Join& join) const {
    std::vector<std::string> order;
    std::map<std::string, std::map<std::int64_t, arrays::Array>> gathered;
    std::map<std::string, arrays::Array> alone;
    for (const NamedArray& one : arrays) {
      auto part = split(one.name);
      if (!part || !part->number) {
        order.push_back(one.name);
        alone.emplace(one.name, one.array);
        continue;
      }
      const std::int64_t number = *part->number;
      part->number.reset();
      const std::string name = join(*part);
      auto& parts = gathered[name];
      if (parts.empty()) order.push_back(name);
      parts.emplace(number, one.array);
    }
    std::vector<NamedArray> out;
    for (const std::string& name : order) {
      if (const auto found = alone.find(name); found != alone.end()) {
        out.push_back({name, found->second});
        continue;
      }
      std::vector<arrays::Array> parts;
      for (const auto& [number, array] : gathered.at(name)) {
        if (number != static_cast<std::int64_t>(parts.size())) {
          throw Error(ErrorCode::kKey, cat(path_, ": ", quote(name, 200), ": number ", parts.size(),
                                           " is missing, the next is ", number));
        }
        if (!parts.empty() && (parts[0].shape != array.shape || parts[0].dtype != array.dtype)) {
          throw Error(ErrorCode::kShape,
                      cat(path_, ": ", quote(name, 200), ": number ", number, " has shape ",
                          shape_text(array.shape), ", number 0 ", shape_text(parts[0].shape)));
        }
        parts.push_back(array);
      }
      out.push_back({name, arrays::stacked(parts, 0)});
    }
    return out;
  }

  // Returns the linear layer that a tensor is of: "....mlp.linear_fc1", "....mixer.in_proj", whose
  // parts are "....mixer.in_proj.weight.z".
  static std::optional<std::string> module_of(const std::string& name) {
    const std::size_t joined = name.find(".in_proj.");
    if (joined != std::string::npos) return name.substr(0, joined) + ".in_proj";
    if (!name.ends_with(".weight")) return std::nullopt;
    const std::string module = name.substr(0, name.rfind('.'));
    if (module.find(".linear_") == std::string::npos && !module.ends_with(".out_proj") &&
        !module.ends_with(".eh_proj") && !module.ends_with("multi_modal_projector.proj") &&
        !module.ends_with("vision_model.embedder") &&
        !module.ends_with("vision_model.video_embedder")) {
      return std::nullopt;
    }
    return module;
  }

  // Modules ask for the extra state of their linear layers even where it is empty.
  void add_extra_states(const std::vector<NamedArray>& model) {
    std::set<std::string> made;
    const auto object = [&](const std::string& module, const std::string& where) {
      const std::string key = cat(module, "._extra_state/shard_", where);
      if (made.insert(key).second) add(key, Value::list({Value()}));
    };
    for (const NamedArray& one : model) {
      const auto layer = core_layer_of(one.name);
      // Layers for multi-token prediction are never joined.
      const bool predicts = one.name.find("mtp.layers.") != std::string::npos;
      if (!layer && !predicts) {
        const auto alone = module_of(one.name);
        if (!alone || layer_of(one.name) || expert_of(one.name)) continue;
        // Megatron-Bridge's towers join these as layers are joined.
        const bool merged = alone->find(".deepstack_merger_list.linear_") != std::string::npos;
        const std::int64_t count = merged ? one.array.shape.at(0) : 1;
        for (std::int64_t i = 0; i < count; ++i) object(*alone, cat(i, "_", count));
        continue;
      }
      // Hybrid models have one in their last layer, too.
      if (layer && is_of_mixer(layer->after)) {
        object(cat(layer->before.substr(0, layer->before.rfind("decoder.layers.")), "output_layer"),
               "0_1");
      }
      const auto found = module_of(one.name);
      if (!found) continue;
      const std::string& module = *found;
      const std::int64_t layers = !layer || layer->number ? 0 : one.array.shape.at(0);
      const bool attention = module.ends_with("self_attention.linear_qkv");
      const std::string core =
          attention ? module.substr(0, module.rfind('.')) + ".core_attention" : "";
      const auto expert = expert_of(one.name);
      const std::int64_t experts = expert ? one.array.shape.at(layers == 0 ? 0 : 1) : 0;
      for (std::int64_t i = 0; i < std::max<std::int64_t>(1, layers); ++i) {
        const std::string index = layers == 0 ? "" : cat(i);
        const std::string size = layers == 0 ? "" : cat(layers);
        const std::string dot = layers == 0 ? "" : ".";
        if (!expert) {
          const std::string where = layers == 0 ? "0_1" : cat(index, "_", size);
          object(module, where);
          if (attention) object(core, where);
          continue;
        }
        for (std::int64_t e = 0; e < experts; ++e)
          object(module, cat(index, dot, e, "_", size, dot, experts));
      }
    }
  }

  void add_common() {
    std::set<std::string> named;
    for (const auto& [key, value] : state_.others) {
      if (key.as_string() == nullptr || *key.as_string() == "content_metadata") continue;
      named.insert(*key.as_string());
      add(*key.as_string(), value);
    }
    if (!named.contains("checkpoint_version")) add("checkpoint_version", Value::floating(3.0));
    if (!named.contains("iteration")) add("iteration", Value::integer(0));
    if (!state_.states.empty()) add("optimizer", optimizer());
    std::vector<Value::Entry> content = {
        {Value::string("distrib_optim_sharding_type"), Value::string("fully_reshardable")},
        {Value::string("singleton_local_shards"), Value::boolean(false)},
        {Value::string("chained_optim_avoid_prefix"), Value::boolean(true)}};
    if (!joined_)
      content.emplace_back(Value::string("non_homogeneous_layers"), Value::boolean(true));
    add("content_metadata", Value::dict(std::move(content)));
  }

  // Megatron-Core has an optimizer for experts and one for the rest.
  Value optimizer() const {
    std::vector<Value> dense;
    std::vector<Value> experts;
    for (const auto& group : state_.groups) {
      (is_of_experts(group) ? experts : dense).push_back(Value::dict(group));
    }
    const auto one = [](std::vector<Value> groups) {
      return Value::dict(
          {{Value::string("optimizer"),
            Value::dict({{Value::string("param_groups"), Value::list(std::move(groups))}})},
           {Value::string("param_state_sharding_type"), Value::string("fully_reshardable")}});
    };
    if (experts.empty()) return one(std::move(dense));
    return Value::dict(
        {{Value::integer(0), one(std::move(dense))}, {Value::integer(1), one(std::move(experts))}});
  }

  const ModuleState& state_;
  const std::string& path_;
  arrays::ComputedTensors& made_;
  std::set<std::string> mixed_;   // layers with experts
  std::set<std::string> fused_;   // layers with one matrix of queries, keys and values
  std::set<std::string> blocks_;  // of Megatron-Core's layers: "decoder.layers."
  bool joined_ = false;           // layers, not experts alone
  std::vector<Value::Entry> entries_;
};

}  // namespace

void add_groups(const Value& value, std::vector<std::vector<Value::Entry>>& out, int depth) {
  constexpr int kMaxDepth = 4;
  if (depth > kMaxDepth) return;
  for (const auto& [key, child] : members_of(value)) {
    if (key.as_string() == nullptr || *key.as_string() != "param_groups") {
      add_groups(child, out, depth + 1);
      continue;
    }
    for (const Value& group : child.items()) {
      std::vector<Value::Entry> options;
      for (const auto& option : members_of(group)) {
        if (option.first.as_string() == nullptr || *option.first.as_string() != "params")
          options.push_back(option);
      }
      out.push_back(std::move(options));
    }
  }
}

ModuleState read_torch_dist(const Checkpoint& source, const Value& content,
                            const std::vector<std::string>& names, arrays::ComputedTensors& made) {
  const std::string& path = source.description().path;
  ModuleState out;
  std::vector<Value::Entry> buckets;
  for (const auto& [key, value] : members_of(content)) {
    const std::string* name = key.as_string();
    const auto number = tensor_number(value);
    if (name == nullptr || (!number && !is_sharded_object(*name) && *name != "optimizer")) {
      out.others.emplace_back(key, value);
      continue;
    }
    if (is_bucket(*name)) {
      buckets.emplace_back(key, value);
      continue;
    }
    if (!number) {
      if (*name == "optimizer") add_groups(value, out.groups, 0);
      if (is_sharded_object(*name)) ++out.left_out;
      continue;
    }
    const DistKey parsed = dist_key(*name);
    add_layers(parsed.name, made.source_array(*number),
               parsed.state.empty() ? out.model : out.states[parsed.state]);
  }
  complete(out, path);
  if (!buckets.empty()) read_buckets(buckets, names, path, made, out);
  return out;
}

Value torch_dist_content(const ModuleState& state, const std::string& path, bool layers_apart,
                         arrays::ComputedTensors& made) {
  return Writer(state, path, layers_apart, made).run();
}

}  // namespace fsdp::formats::megatron
