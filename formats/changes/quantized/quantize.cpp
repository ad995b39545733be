// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/quantize.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/known_schemes.h"
#include "formats/changes/quantized/quantized_weight.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/table_names.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kHead = "lm_head";
constexpr std::int64_t kBlock = 128;

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

// Returns whether modules of that name hold embeddings, heads or gates of experts, which lose most
// by quantization and are small.
bool is_kept(std::string_view module) {
  constexpr std::array<std::string_view, 13> kKept = {"wpe",
                                                      "embeddings",
                                                      "score",
                                                      "classifier",
                                                      "gate",
                                                      "router",
                                                      "shared_expert_gate",
                                                      "position_embeddings",
                                                      "token_type_embeddings",
                                                      "embed_positions",
                                                      "relative_attention_bias",
                                                      "embed_tokens_per_layer",
                                                      "position_embedding"};
  const auto among = [&](const auto& names) {
    return std::ranges::find(names, last_part(module)) != names.end();
  };
  return among(kEmbeddingModules) || among(kHeadModules) || among(kKept);
}

// Returns the name of the set of weights that share the scale of their scales, because engines join
// them: query, key and value; gate and up.  Empty: none.
std::string joined_set(const std::string& module) {
  struct Set {
    std::vector<std::string_view> ends;
    std::string_view name;
  };
  static const std::array<Set, 3> sets = {
      {{{"attn.q_proj", "attn.k_proj", "attn.v_proj", "attention.q_proj", "attention.k_proj",
         "attention.v_proj"},
        "qkv"},
       {{"mlp.gate_proj", "mlp.up_proj"}, "gate_up"},
       {{"w1", "w3"}, "w13"}}};
  for (const Set& set : sets) {
    for (const std::string_view end : set.ends) {
      if (module.ends_with(end))
        return cat(module.substr(0, module.size() - last_part(end).size()), "|", set.name);
    }
  }
  return {};
}

// Returns what a preset says of activations, which are quantized as they come; null: it does not
// quantize them.
Json activations(const KnownScheme& known) {
  const bool plain = known.scheme.bits == 8 && known.scheme.sharing != Sharing::kGroups;
  if (!plain && known.preset != "MXFP8") return nullptr;
  const std::int64_t group = known.scheme.sharing == Sharing::kBlocks ? kBlock
                             : known.scheme.powers                    ? known.scheme.columns
                                                                      : 0;
  Json::Object out{
      {"dynamic", true}, {"group_size", group == 0 ? Json() : Json(group)}, {"num_bits", 8}};
  if (known.scheme.powers) out.emplace_back("scale_dtype", "torch.uint8");
  out.emplace_back("strategy", group == 0 ? "token" : "group");
  out.emplace_back("symmetric", true);
  out.emplace_back("type", known.scheme.numbers == NumberKind::kInteger ? "int" : "float");
  return out;
}

class ModelQuantizer {
 public:
  ModelQuantizer(const Checkpoint& source, const QuantizeRequest& request)
      : source_(source),
        request_(request),
        known_(known_scheme(request.dialect, request.word, request.group)),
        computed_(std::make_shared<arrays::ComputedTensors>(
            std::vector{std::make_shared<arrays::ArraySource>(source)})) {}

  QuantizedModel run(const Value& tensors) {
    for (const auto& [key, value] : members_of(tensors)) {
      if (const auto number = tensor_number(value)) numbers_.emplace(*key.as_string(), *number);
    }
    for (const auto& [key, value] : members_of(tensors)) note(*key.as_string(), value);
    share_magnitudes();
    for (const auto& [key, value] : members_of(tensors)) {
      const std::string& name = *key.as_string();
      const auto found = chosen_.find(name);
      if (found == chosen_.end()) {
        const Array own = computed_->source_array(*tensor_number(value));
        entries_.emplace_back(key, is_floating(own.dtype) ? tensor(name, cast_to(own)) : value);
      } else {
        quantize(name.substr(0, name.size() - kWeight.size()), found->second);
      }
    }
    if (chosen_.empty()) {
      throw Error(ErrorCode::kNotFound,
                  cat(source_.description().path, ": no matrix is left to quantize"));
    }
    out_.content = Value::dict(std::move(entries_));
    out_.checkpoint = std::move(computed_);
    out_.weights = chosen_.size();
    out_.scheme = cat(known_.word);
    if (known_.scheme.sharing == Sharing::kGroups) out_.group = known_.scheme.columns;
    out_.config = config();
    return std::move(out_);
  }

 private:
  std::string place(const std::string& name) const {
    return cat(source_.description().path, ": ", quote(name, 200));
  }
  bool modelopt() const { return request_.dialect == Dialect::kModelOpt; }

  Array cast_to(const Array& array) const {
    if (!request_.dtype || array.dtype == *request_.dtype) return array;
    return arrays::with_step(array, {arrays::Arithmetic::kCast, *request_.dtype});
  }
  Value tensor(const std::string& name, const Array& array) {
    return computed_->shared({name}, array);
  }
  // Notes whether a tensor is quantized.
  void note(const std::string& name, const Value& value) {
    const auto number = tensor_number(value);
    if (!number) throw Error(ErrorCode::kUnsupported, place(name) + " is not a dense tensor");
    const Array own = computed_->source_array(*number);
    if (is_floating(own.dtype) && item_bytes(own.dtype) == 1) {
      throw Error(ErrorCode::kUnsupported,
                  cat(place(name), " is ", torch_name(own.dtype),
                      ": the model is quantized already, --dequantize undoes that"));
    }
    if (!name.ends_with(kWeight) || own.shape.size() != 2 || !is_floating(own.dtype)) return;
    const std::string module = name.substr(0, name.size() - kWeight.size());
    // transformers reads whole blocks alone.
    const bool cut = request_.dialect == Dialect::kTransformersFp8 &&
                     (own.shape[0] % kBlock != 0 || own.shape[1] % kBlock != 0);
    if (is_kept(module) || (request_.skip && request_.skip(module)) || cut) {
      out_.kept.push_back(module);
      return;
    }
    check_linear(module, own.shape[0]);
    const Array weight = cast_to(own);
    if (weight.dtype != DType::kBFloat16 && weight.dtype != DType::kFloat16 &&
        weight.dtype != DType::kFloat32) {
      throw Error(ErrorCode::kDtype, cat(place(name), " is ", torch_name(weight.dtype),
                                         "; --dtype bfloat16 casts it first"));
    }
    check(name, weight);
    chosen_.emplace(name, weight);
  }

  // Throws if the bias beside a matrix is not that of a linear layer, as in transformers' Conv1D,
  // whose weights are [in, out].
  void check_linear(const std::string& module, std::int64_t rows) const {
    const auto bias = numbers_.find(module + ".bias");
    if (bias == numbers_.end()) return;
    const Shape& shape = source_.index().tensors[bias->second].shape;
    if (shape == Shape{rows}) return;
    throw Error(ErrorCode::kUnsupported,
                cat(place(module + std::string(kWeight)), " has ", rows, " rows, and its bias is ",
                    shape_text(shape),
                    ": not a linear layer; --quantize-skip leaves the module "
                    "as it is"));
  }

  void check(const std::string& name, const Array& weight) const {
    const std::string why = unfit(request_.dialect, known_.scheme, weight.shape);
    if (why.empty()) return;
    throw Error(ErrorCode::kShape,
                cat(place(name), " ", shape_text(weight.shape), ": ", known_.word, " ", why,
                    "; --quantize-skip leaves the module as it is"));
  }

  // Reads the largest magnitudes that scales of scales need.
  void share_magnitudes() {
    if (!known_.scheme.second_scale) return;
    std::map<std::string, float> sets;
    const auto set_of = [](const std::string& name) {
      const std::string set = joined_set(name.substr(0, name.size() - kWeight.size()));
      return set.empty() ? name : set;
    };
    for (const auto& [name, weight] : chosen_) {
      float& most = sets[set_of(name)];
      most = std::max(most, arrays::largest_magnitude(weight));
    }
    for (const auto& [name, weight] : chosen_) magnitudes_[name] = sets[set_of(name)];
  }

  void quantize(const std::string& module, const Array& weight) {
    const float most =
        known_.scheme.second_scale ? magnitudes_.at(module + std::string(kWeight)) : 0;
    const StoredWeight stored = quantized_weight(request_.dialect, known_.scheme, weight, most);
    for (const auto& [role, array] : stored.parts) {
      const std::string name =
          module + std::string(ending_of(request_.dialect, role, stored.packed));
      entries_.emplace_back(Value::string(name), tensor(name, array));
    }
  }

  Json config() const {
    std::vector<std::string> kept = out_.kept;
    // A head that is tied to the embedding has no tensor, and is a linear layer of the model.
    const bool tied = std::ranges::none_of(
        kept, [](const std::string& module) { return last_part(module) == kHead; });
    if (tied) kept.emplace_back(kHead);
    std::ranges::sort(kept);
    Json::Array ignored(kept.begin(), kept.end());
    if (request_.dialect == Dialect::kTransformersFp8) {
      return Json::Object{{"activation_scheme", "dynamic"},
                          {"modules_to_not_convert", std::move(ignored)},
                          {"quant_method", "fp8"},
                          {"weight_block_size", Json::Array{kBlock, kBlock}}};
    }
    return modelopt() ? modelopt_config(std::move(ignored)) : compressed_config(std::move(ignored));
  }

  Json modelopt_config(Json::Array ignored) const {
    Json::Object out{{"quant_method", "modelopt"},
                     {"quant_algo", known_.algorithm},
                     {"ignore", std::move(ignored)}};
    if (known_.scheme.second_scale || known_.scheme.sharing == Sharing::kTensor) {
      Json::Object weights{{"dynamic", false},
                           {"num_bits", static_cast<std::int64_t>(known_.scheme.bits)},
                           {"type", "float"}};
      if (known_.scheme.second_scale) weights.emplace_back("group_size", known_.scheme.columns);
      Json group =
          Json::Object{{"targets", Json::Array{"Linear"}}, {"weights", std::move(weights)}};
      out.emplace_back("config_groups", Json::Object{{"group_0", std::move(group)}});
    }
    return out;
  }

  Json compressed_config(Json::Array ignored) const {
    const Scheme& scheme = known_.scheme;
    const bool groups = scheme.sharing == Sharing::kGroups;
    const bool blocks = scheme.sharing == Sharing::kBlocks;
    const char* const strategy = groups   ? (scheme.second_scale ? "tensor_group" : "group")
                                 : blocks ? "block"
                                 : scheme.sharing == Sharing::kRows ? "channel"
                                                                    : "tensor";
    Json::Object weights;
    if (blocks) weights.emplace_back("block_structure", Json::Array{scheme.rows, scheme.columns});
    weights.emplace_back("dynamic", false);
    weights.emplace_back("group_size", groups ? Json(scheme.columns) : Json());
    weights.emplace_back("num_bits", static_cast<std::int64_t>(scheme.bits));
    if (scheme.powers || scheme.second_scale) {
      weights.emplace_back("scale_dtype", scheme.powers ? "torch.uint8" : "torch.float8_e4m3fn");
    }
    weights.emplace_back("strategy", strategy);
    weights.emplace_back("symmetric", scheme.symmetric);
    weights.emplace_back("type", scheme.numbers == NumberKind::kFloat ? "float" : "int");
    Json group = Json::Object{{"format", known_.format},
                              {"input_activations", activations(known_)},
                              {"output_activations", nullptr},
                              {"targets", Json::Array{"Linear"}},
                              {"weights", std::move(weights)}};
    return Json::Object{{"config_groups", Json::Object{{"group_0", std::move(group)}}},
                        {"format", known_.format},
                        {"global_compression_ratio", nullptr},
                        {"ignore", std::move(ignored)},
                        {"kv_cache_scheme", nullptr},
                        {"moe_sparsity_config", nullptr},
                        {"quant_method", "compressed-tensors"},
                        {"quantization_status", "compressed"},
                        {"transform_config", Json::Object{}}};
  }

  const Checkpoint& source_;
  const QuantizeRequest& request_;
  KnownScheme known_;
  std::shared_ptr<arrays::ComputedTensors> computed_;
  std::map<std::string, std::size_t> numbers_;  // tensors of the source by name
  std::map<std::string, Array> chosen_;         // weights by name, cast
  std::map<std::string, float> magnitudes_;     // of weights whose scales have a scale
  std::vector<Value::Entry> entries_;
  QuantizedModel out_;
};

}  // namespace

QuantizedModel quantized_model(const Checkpoint& source, const Value& tensors,
                               const QuantizeRequest& request) {
  return ModelQuantizer(source, request).run(tensors);
}

}  // namespace fsdp::formats::quantized
