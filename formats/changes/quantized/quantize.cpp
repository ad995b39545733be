// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/quantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/pack.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/quantizers.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;
using Shape = std::vector<std::int64_t>;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kHead = "lm_head";
constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kGroup = 128;

// A scheme by its word, and how a configuration of compressed-tensors describes it.
struct Known {
  std::string_view word;
  Scheme scheme;
  std::string_view preset;  // the name of the preset
  std::string_view format;
  std::string_view algorithm;  // of modelopt; empty: it has none
};

std::array<Known, 10> known_schemes() {
  const auto integer = NumberKind::kInteger;
  return {{
      {"fp8-tensor", {}, "FP8", "float-quantized", "FP8"},
      {"fp8-channel",
       {.sharing = Sharing::kRows},
       "FP8_DYNAMIC",
       "float-quantized",
       "FP8_PER_CHANNEL_PER_TOKEN"},
      {"fp8-block",
       {.sharing = Sharing::kBlocks, .rows = kBlock, .columns = kBlock},
       "FP8_BLOCK",
       "float-quantized",
       "fp8_pb_wo"},
      {"mxfp8",
       {.sharing = Sharing::kGroups, .columns = 32, .powers = true},
       "MXFP8",
       "mxfp8-quantized",
       "MXFP8"},
      {"mxfp4",
       {.bits = 4, .sharing = Sharing::kGroups, .columns = 32, .powers = true},
       "MXFP4A16",
       "mxfp4-pack-quantized",
       "mxfp4"},
      {"nvfp4",
       {.bits = 4, .sharing = Sharing::kGroups, .columns = 16, .second_scale = true},
       "NVFP4A16",
       "nvfp4-pack-quantized",
       "W4A16_NVFP4"},
      {"int8", {.numbers = integer, .sharing = Sharing::kRows}, "W8A8", "int-quantized", "W8A16"},
      {"int8-group",
       {.numbers = integer, .sharing = Sharing::kGroups, .columns = kGroup},
       "W8A16",
       "pack-quantized",
       ""},
      {"int4",
       {.numbers = integer, .bits = 4, .sharing = Sharing::kGroups, .columns = kGroup},
       "W4A16",
       "pack-quantized",
       "W4A16_AWQ"},
      {"int4-asym",
       {.numbers = integer,
        .bits = 4,
        .sharing = Sharing::kGroups,
        .columns = kGroup,
        .symmetric = false},
       "W4A16_ASYM",
       "pack-quantized",
       ""},
  }};
}

// Returns whether a scheme has groups of any size: the other sizes belong to their formats.
bool has_any_group(const Scheme& scheme) {
  return scheme.numbers == NumberKind::kInteger && scheme.sharing == Sharing::kGroups;
}

// Sets the size of the groups.
void set_group(Known& known, Dialect dialect, std::int64_t size) {
  if (!has_any_group(known.scheme)) {
    std::string words;
    for (const Known& one : known_schemes())
      if (has_any_group(one.scheme)) words += cat(words.empty() ? "" : ", ", one.word);
    throw Error(ErrorCode::kUsage,
                cat(known.word, " has no groups of other sizes than its format's; ",
                    "these have: ", words));
  }
  if (dialect == Dialect::kModelOpt && size != known.scheme.columns) {
    throw Error(ErrorCode::kUsage,
                cat("the configuration of modelopt does not say the size of ", known.word,
                    "'s groups, and its readers take ", known.scheme.columns,
                    "; --quantize-dialect compressed-tensors writes groups of ", size));
  }
  known.scheme.columns = size;
}

bool takes(Dialect dialect, const Known& known) {
  if (dialect == Dialect::kTransformersFp8) return known.word == "fp8-block";
  return dialect != Dialect::kModelOpt || !known.algorithm.empty();
}

Known known_by(const QuantizeRequest& request) {
  std::string words;
  for (const Known& known : known_schemes()) {
    if (!takes(request.dialect, known)) continue;
    if (known.word == request.word) {
      Known chosen = known;
      if (request.group) set_group(chosen, request.dialect, *request.group);
      return chosen;
    }
    words += cat(words.empty() ? "" : ", ", known.word);
  }
  throw Error(ErrorCode::kUsage,
              cat("no scheme ", quote(request.word, 100), " of this dialect; there are ", words));
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

// Returns whether modules of that name hold embeddings, heads or gates of experts, which lose most
// by quantization and are small.
bool is_kept(std::string_view module) {
  constexpr std::array<std::string_view, 22> kKept = {"embed_tokens",
                                                      "tok_embeddings",
                                                      "wte",
                                                      "wpe",
                                                      "word_embeddings",
                                                      "embed_in",
                                                      "shared",
                                                      "embeddings",
                                                      "lm_head",
                                                      "output",
                                                      "embed_out",
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
  return std::ranges::find(kKept, last_part(module)) != kKept.end();
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
Json activations(const Known& known) {
  const bool plain = known.scheme.bits == 8 && !known.scheme.powers && !has_any_group(known.scheme);
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
        known_(known_by(request)),
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
  void add(const std::string& name, const Array& array) {
    entries_.emplace_back(Value::string(name), tensor(name, array));
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
    const Scheme& scheme = known_.scheme;
    const auto refuse = [&](std::string_view why) {
      throw Error(ErrorCode::kShape,
                  cat(place(name), " ", shape_text(weight.shape), ": ", known_.word, why,
                      "; --quantize-skip leaves the module as it is"));
    };
    if (weight.parts.empty()) refuse(" needs elements");
    if (scheme.sharing == Sharing::kGroups && weight.shape[1] % scheme.columns != 0)
      refuse(cat(" needs rows of a multiple of ", scheme.columns));
    if (modelopt() && scheme.bits == 4 && scheme.numbers == NumberKind::kInteger &&
        weight.shape[0] % 2 != 0)
      refuse(" needs an even number of rows");
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
    const Scheme& scheme = known_.scheme;
    const std::string name = module + std::string(kWeight);
    const std::int64_t rows = weight.shape[0];
    const std::int64_t columns = weight.shape[1];
    arrays::BlockGrid grid;
    grid.rows = static_cast<std::uint64_t>(rows);
    grid.columns = static_cast<std::uint64_t>(columns);
    Shape scales{rows};
    grid.block_columns = grid.columns;
    switch (scheme.sharing) {
      case Sharing::kTensor:
        grid.block_rows = grid.rows;
        scales = modelopt() ? Shape{} : Shape{1};
        break;
      case Sharing::kRows:
        if (!modelopt()) scales.push_back(1);
        break;
      case Sharing::kGroups:
        grid.block_columns = static_cast<std::uint64_t>(scheme.columns);
        scales.push_back(columns / scheme.columns);
        break;
      case Sharing::kBlocks:
        grid.block_rows = static_cast<std::uint64_t>(scheme.rows);
        grid.block_columns = static_cast<std::uint64_t>(scheme.columns);
        scales = {static_cast<std::int64_t>(grid.scale_rows()),
                  static_cast<std::int64_t>(grid.scale_columns())};
        if (modelopt())
          scales = scales == Shape{1, 1} ? Shape{} : Shape{scales[0], 1, scales[1], 1};
        break;
    }
    if (request_.dialect == Dialect::kTransformersFp8) {
      arrays::QuantizedArrays made = arrays::quantized_arrays(weight, grid, scales);
      add(name, made.numbers);
      add(name + "_scale_inv", made.scales);
      return;
    }
    const float most = scheme.second_scale ? magnitudes_.at(name) : 0;
    const arrays::Quantization from{weight, grid,
                                    quantizer_of(request_.dialect, scheme, weight.dtype, most)};
    add_numbers(module, from);
    const DType scale_dtype = scheme.powers         ? DType::kUInt8
                              : scheme.second_scale ? DType::kFloat8E4M3FN
                              : modelopt()          ? DType::kFloat32
                                                    : weight.dtype;
    add(name + "_scale", arrays::quantized_scales(from, scales, scale_dtype));
    if (scheme.second_scale) {
      add(name + (modelopt() ? "_scale_2" : "_global_scale"),
          arrays::constant_array(DType::kFloat32, modelopt() ? Shape{} : Shape{1},
                                 second_scale_of(request_.dialect, weight.dtype, most)));
    }
    if (!scheme.symmetric) {
      // Zero points are packed as numbers are, along the rows of the weight.
      const Array zeros = arrays::quantized_zeros(from, scales, 1 << (scheme.bits - 1));
      add(name + "_zero_point", arrays::packed(zeros, scheme.bits, DType::kInt32, true));
    }
  }

  void add_numbers(const std::string& module, const arrays::Quantization& from) {
    const Scheme& scheme = known_.scheme;
    const std::string name = module + std::string(kWeight);
    const bool plain = scheme.bits == 8 && !has_any_group(scheme);
    const DType bytes = !plain                                 ? DType::kUInt8
                        : scheme.numbers == NumberKind::kFloat ? DType::kFloat8E4M3FN
                                                               : DType::kInt8;
    const Array numbers = arrays::quantized_numbers(from, bytes);
    if (plain) return add(name, numbers);
    if (scheme.numbers == NumberKind::kFloat) {
      return add(modelopt() ? name : name + "_packed", arrays::packed(numbers, 4, DType::kUInt8));
    }
    if (modelopt()) return add(name, arrays::packed(numbers, 4, DType::kUInt8, true));
    add(name + "_packed", arrays::packed(numbers, scheme.bits, DType::kInt32));
    std::vector<std::byte> shape(2 * sizeof(std::int64_t));
    std::memcpy(shape.data(), from.array.shape.data(), shape.size());
    add(name + "_shape", arrays::repeated_array(DType::kInt64, {2}, shape));
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
  Known known_;
  std::shared_ptr<arrays::ComputedTensors> computed_;
  std::map<std::string, std::size_t> numbers_;  // tensors of the source by name
  std::map<std::string, Array> chosen_;         // weights by name, cast
  std::map<std::string, float> magnitudes_;     // of weights whose scales have a scale
  std::vector<Value::Entry> entries_;
  QuantizedModel out_;
};

}  // namespace

std::vector<std::string_view> scheme_words(Dialect dialect) {
  std::vector<std::string_view> out;
  for (const Known& known : known_schemes()) {
    if (takes(dialect, known)) out.push_back(known.word);
  }
  return out;
}

QuantizedModel quantized_model(const Checkpoint& source, const Value& tensors,
                               const QuantizeRequest& request) {
  return ModelQuantizer(source, request).run(tensors);
}

}  // namespace fsdp::formats::quantized
