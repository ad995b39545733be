// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/extract.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/low_rank_factors.h"
#include "formats/changes/lora/adapter_config.h"
#include "formats/changes/lora/difference_rows.h"
#include "formats/changes/lora/peft_names.h"
#include "formats/changes/lora/spilled_tensors.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kNameText = 200;
constexpr std::size_t kMaxListed = 6;
constexpr std::uint64_t kCopyNumel = 64U << 10U;

std::vector<std::byte> as_bytes(const std::vector<double>& numbers, DType to) {
  std::vector<std::byte> out(numbers.size() * item_bytes(to));
  cast(DType::kFloat64, std::as_bytes(std::span(numbers)), to, out);
  return out;
}

class Extractor {
 public:
  Extractor(const ModelTensors& base, const ModelTensors& tuned, const LoraExtractOptions& options)
      : options_(options),
        scale_(options.alpha / static_cast<double>(options.rank)),
        pair_(std::make_shared<ModelPair>(base, tuned)) {}

  LoraExtraction run() {
    std::vector<std::string> matrices;
    std::vector<std::string> others;
    for (const std::string& name : pair_->names(options_.wanted))
      (is_matrix(name) ? matrices : others).push_back(name);
    const std::vector<std::string> whole = differing(others);
    made_ =
        std::make_unique<SpilledTensors>(pair_->tuned.path(), [held = pair_] { held->finish(); });
    for (const std::string& name : matrices) extract(name);
    if (out_.weights.empty()) {
      throw Error(ErrorCode::kMismatch, cat(pair_->tuned.path(), ": no weight differs from ",
                                            pair_->base.path(), ", there is nothing to extract"));
    }
    take_whole(whole);
    pair_->finish();
    AdapterConfig config;
    config.rank = options_.rank;
    config.alpha = options_.alpha;
    config.fan_in_fan_out = options_.fan_in_fan_out;
    out_.config = adapter_config_text(config, modules_);
    std::vector<Value::Entry> entries;
    for (std::size_t t = 0; t < made_->index().tensors.size(); ++t) {
      entries.emplace_back(Value::string(made_->index().tensors[t].key),
                           tensor_reference(*made_, t));
    }
    out_.content = Value::dict(std::move(entries));
    out_.checkpoint = std::move(made_);
    return std::move(out_);
  }

 private:
  bool has_scales(const std::string& name) const {
    const auto& tensors = pair_->base.tensors;
    return item_bytes(pair_->base.entry(name).dtype) == 1 &&
           (tensors.contains(name + "_scale") || tensors.contains(name + "_scale_inv"));
  }

  // Returns whether the tensor is a weight that matrices of the rank can change.
  bool is_matrix(const std::string& name) const {
    const TensorEntry& tensor = pair_->base.entry(name);
    return name.ends_with(kWeightSuffix) && tensor.shape.size() == 2 && is_floating(tensor.dtype) &&
           !has_scales(name) && std::min(tensor.shape[0], tensor.shape[1]) >= options_.rank;
  }

  // Returns the tensors in `names` that differ.
  // Throws: kUnsupported if one of these cannot be taken whole.
  std::vector<std::string> differing(const std::vector<std::string>& names) {
    std::vector<std::string> found;
    std::vector<std::string> refused;
    for (const std::string& name : names) {
      if (pair_->is_equal(name, options_.on_bytes)) {
        ++out_.unchanged;
        continue;
      }
      const bool can = is_floating(pair_->base.entry(name).dtype) && !has_scales(name) &&
                       !module_of(name).empty();
      (options_.whole && can ? found : refused).push_back(name);
    }
    if (refused.empty()) return found;
    std::string text =
        cat(pair_->tuned.path(), ": ", quote(refused[0], kNameText), " ", reason(refused[0]),
            ", but differs from the tensor in ", pair_->base.path());
    for (std::size_t i = 1; i < refused.size() && i < kMaxListed; ++i)
      text += (i == 1 ? "; so do " : ", ") + quote(refused[i], kNameText);
    if (refused.size() > kMaxListed) text += cat(" and ", refused.size() - kMaxListed, " more");
    throw Error(ErrorCode::kUnsupported, text, {Remedy::kExclude, refused[0]});
  }

  std::string reason(const std::string& name) const {
    const TensorEntry& tensor = pair_->base.entry(name);
    const std::string is = cat("is ", pair_->base.text(name));
    if (!is_floating(tensor.dtype)) return is + ", not floating numbers";
    if (has_scales(name)) return is + " with scales beside it";
    if (tensor.shape.size() != 2) return is + ", not a matrix";
    if (!name.ends_with(kWeightSuffix)) return is + ", not the weight of a module";
    return cat(is, ", whose smaller side is less than a rank of ", options_.rank);
  }

  static std::string module_of(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    return dot == name.npos ? std::string() : name.substr(0, dot);
  }

  void extract(const std::string& name) {
    if (pair_->is_known_equal(name)) {
      ++out_.unchanged;
      return;
    }
    const TensorEntry& tensor = pair_->base.entry(name);
    DifferenceRows rows(pair_->base.input(name), pair_->tuned.input(name), options_.on_bytes);
    std::optional<LowRankFactors> factors;
    try {
      factors = low_rank_factors(
          rows, {static_cast<std::size_t>(options_.rank), options_.passes, options_.threads});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      throw Error(error.code(), error.what(), {Remedy::kExclude, name});
    }
    if (!factors) {
      ++out_.unchanged;
      pair_->note_equal(name);
      return;
    }
    const std::string module = module_of(name);
    const bool embedding = options_.embedding(name);
    const bool turned = embedding || options_.fan_in_fan_out;
    Vectors& a = turned ? factors->left : factors->right;
    Vectors& b = turned ? factors->right : factors->left;
    const double root = std::sqrt(scale_);
    for (Vectors* const vectors : {&a, &b}) {
      for (double& element : vectors->elements) element = element / root;
    }
    const PeftKeys keys = peft_keys(module, embedding);
    write(keys.a, a, false, rows.checked());
    write(keys.b, b, true, rows.checked());
    for (double& element : a.elements) element = element * scale_;
    const double left = residual_energy(rows, factors->left, factors->right, options_.threads);
    if (!std::isfinite(left)) {
      throw Error(ErrorCode::kUnsupported,
                  cat(pair_->tuned.path(), ": ", quote(name, kNameText),
                      " has matrices that exceed ", torch_name(options_.dtype)));
    }
    out_.weights.push_back({name, tensor.shape, std::sqrt(left / factors->energy),
                            std::min(factors->kept / factors->energy, 1.0)});
    modules_.targets.push_back(module);
  }

  // Adds a matrix whose rows, or columns, are these vectors; rounds the vectors to its dtype.
  void write(const std::string& key, Vectors& vectors, bool as_columns, bool checked) {
    const auto count = static_cast<std::int64_t>(vectors.count);
    const auto length = static_cast<std::int64_t>(vectors.length);
    const std::vector<std::byte> rounded = as_bytes(vectors.elements, options_.dtype);
    cast(options_.dtype, rounded, DType::kFloat64,
         std::as_writable_bytes(std::span(vectors.elements)));
    if (!as_columns) {
      made_->append(rounded);
      made_->add(key, options_.dtype, {count, length}, checked);
      return;
    }
    const std::size_t item = item_bytes(options_.dtype);
    std::vector<std::byte> turned(rounded.size());
    for (std::size_t k = 0; k < vectors.count; ++k) {
      for (std::size_t i = 0; i < vectors.length; ++i) {
        std::copy_n(rounded.begin() + static_cast<std::ptrdiff_t>((k * vectors.length + i) * item),
                    item,
                    turned.begin() + static_cast<std::ptrdiff_t>((i * vectors.count + k) * item));
      }
    }
    made_->append(turned);
    made_->add(key, options_.dtype, {length, count}, checked);
  }

  // Adds these tensors of the trained model as they are.  A bias is added alone, beside the
  // matrices of its module if it has any; for another tensor, peft takes the whole module.
  void take_whole(const std::vector<std::string>& names) {
    const std::set<std::string> targets(modules_.targets.begin(), modules_.targets.end());
    std::set<std::string, NaturalLess> whole;
    for (const std::string& name : names) {
      if (name.ends_with(kBiasSuffix)) continue;
      if (targets.contains(module_of(name))) {
        throw Error(ErrorCode::kUnsupported,
                    cat(pair_->tuned.path(), ": ", quote(name, kNameText), " ", reason(name),
                        ", but its module has another tensor that becomes LoRA matrices"),
                    {Remedy::kExclude, name});
      }
      whole.insert(module_of(name));
    }
    for (const auto& [name, number] : pair_->tuned.tensors) {
      if (whole.contains(module_of(name)) && options_.wanted(name) &&
          is_floating(pair_->tuned.entry(name).dtype))
        copy(name, peft_whole_key(name));
    }
    for (const std::string& name : names) {
      const std::string module = module_of(name);
      if (!name.ends_with(kBiasSuffix) || whole.contains(module)) continue;
      modules_.biases = true;
      copy(name, targets.contains(module) ? peft_bias_key(module) : peft_whole_key(name));
    }
    modules_.whole.assign(whole.begin(), whole.end());
  }

  void copy(const std::string& name, const std::string& key) {
    const TensorEntry& tensor = pair_->tuned.entry(name);
    bool checked = true;
    if (tensor.numel() != 0) {
      const InputReader reader(pair_->tuned.input(name).input, pair_->tuned.checks);
      checked = reader.checked();
      const std::uint64_t item = item_bytes(tensor.dtype);
      std::vector<std::byte> block(std::min(kCopyNumel, tensor.numel()) * item);
      std::vector<std::byte> scratch(block.size());
      for (std::uint64_t at = 0; at < tensor.numel();) {
        throw_if_interrupted();
        const auto part = std::span(block).first(
            std::min<std::uint64_t>(block.size(), (tensor.numel() - at) * item));
        reader.read(at, part, scratch);
        options_.on_bytes(part.size());
        made_->append(part);
        at += part.size() / item;
      }
    }
    made_->add(key, tensor.dtype, tensor.shape, checked);
    ++out_.whole;
  }

  const LoraExtractOptions& options_;
  double scale_;
  std::shared_ptr<ModelPair> pair_;
  std::unique_ptr<SpilledTensors> made_;
  AdapterModules modules_;
  LoraExtraction out_;
};

}  // namespace

LoraExtraction extract_lora(const ModelTensors& base, const ModelTensors& tuned,
                            const LoraExtractOptions& options) {
  return Extractor(base, tuned, options).run();
}

}  // namespace fsdp::formats
