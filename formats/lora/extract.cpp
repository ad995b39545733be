// SPDX-License-Identifier: Apache-2.0
#include "formats/lora/extract.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "formats/arithmetic/low_rank_factors.h"
#include "formats/base/cast.h"
#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/content/content.h"
#include "formats/content/placed_leaves.h"
#include "formats/lora/adapter_config.h"
#include "formats/lora/difference_rows.h"
#include "formats/lora/peft_names.h"
#include "formats/lora/spilled_tensors.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kNameText = 200;
constexpr std::size_t kMaxNames = 2000;
constexpr std::size_t kMaxListed = 6;
constexpr std::uint64_t kBlockBytes = 1U << 20U;

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

// One of the two checkpoints.
struct Side {
  explicit Side(const ModelTensors& model) : checkpoint(model.checkpoint) {
    for (const auto& [key, value] : members_of(model.tensors))
      tensors.emplace(*key.as_string(), *tensor_number(value));
  }
  const std::string& path() const { return checkpoint->description().path; }
  const TensorEntry& entry(const std::string& name) const {
    return checkpoint->index().tensors[tensors.at(name)];
  }
  std::string text(const std::string& name) const {
    return cat(torch_name(entry(name).dtype), " ", shape_text(entry(name).shape));
  }
  DifferenceSide input(const std::string& name) {
    return {{checkpoint.get(), tensors.at(name)}, &checks};
  }

  std::shared_ptr<const Checkpoint> checkpoint;
  std::map<std::string, std::size_t, NaturalLess> tensors;  // position in the index
  StorageChecks checks{true};
};

// Both, as long as anything is read.
struct Sides {
  Sides(const ModelTensors& first, const ModelTensors& second) : base(first), tuned(second) {}
  void finish() {
    std::vector<std::byte> buffer(kBlockBytes);
    for (Side* const side : {&base, &tuned}) {
      side->checks.finish(buffer, [] { return interrupted(); });
      side->checkpoint->check_unchanged();
    }
  }
  Side base;
  Side tuned;
};

std::vector<std::byte> as_bytes(const std::vector<double>& numbers, DType to) {
  std::vector<std::byte> out(numbers.size() * item_bytes(to));
  if (to == DType::kFloat64) {
    const auto bytes = std::as_bytes(std::span(numbers));
    std::copy(bytes.begin(), bytes.end(), out.begin());
  } else {
    cast(DType::kFloat64, std::as_bytes(std::span(numbers)), to, out);
  }
  return out;
}

class Extractor {
 public:
  Extractor(const ModelTensors& base, const ModelTensors& tuned, const LoraExtractOptions& options)
      : options_(options),
        scale_(options.alpha / static_cast<double>(options.rank)),
        sides_(std::make_shared<Sides>(base, tuned)) {}

  LoraExtraction run() {
    check_names(sides_->base, sides_->tuned);
    check_names(sides_->tuned, sides_->base);
    std::vector<std::string> matrices;
    std::vector<std::string> others;
    for (const auto& [name, number] : sides_->base.tensors) {
      if (!options_.wanted(name)) continue;
      check_alike(name);
      (is_matrix(name) ? matrices : others).push_back(name);
    }
    compare_others(others);
    made_ =
        std::make_unique<SpilledTensors>(sides_->tuned.path(), [held = sides_] { held->finish(); });
    for (const std::string& name : matrices) extract(name);
    if (out_.weights.empty()) {
      throw Error(ErrorCode::kMismatch, cat(sides_->tuned.path(), ": no weight differs from ",
                                            sides_->base.path(), ", there is nothing to extract"));
    }
    sides_->finish();
    out_.config = config_text();
    std::vector<Value::Entry> entries;
    for (std::size_t t = 0; t < made_->index().tensors.size(); ++t)
      entries.emplace_back(Value::string(made_->index().tensors[t].key),
                           tensor_reference(*made_, t));
    out_.content = Value::dict(std::move(entries));
    out_.checkpoint = std::move(made_);
    return std::move(out_);
  }

 private:
  void check_names(const Side& a, const Side& b) const {
    std::string first;
    std::uint64_t more = 0;
    for (const auto& [name, number] : a.tensors) {
      if (b.tensors.contains(name) || !options_.wanted(name)) continue;
      if (first.empty()) {
        first = name;
      } else {
        ++more;
      }
    }
    if (first.empty()) return;
    std::vector<std::string> candidates;
    for (const auto& [name, number] : b.tensors) {
      if (candidates.size() == kMaxNames) break;
      if (!a.tensors.contains(name)) candidates.push_back(name);
    }
    const std::string near = nearest(first, candidates);
    throw Error(
        ErrorCode::kMismatch,
        cat(b.path(), ": lacks ", quote(first, kNameText), ", which is ", a.text(first), " in ",
            a.path(), near.empty() ? "" : "; its nearest name is " + quote(near, kNameText),
            more == 0 ? "" : cat("; ", more, " more are missing")));
  }

  void check_alike(const std::string& name) const {
    const Side& base = sides_->base;
    const Side& tuned = sides_->tuned;
    if (base.text(name) == tuned.text(name)) return;
    throw Error(ErrorCode::kMismatch,
                cat(tuned.path(), ": ", quote(name, kNameText), " is ", tuned.text(name), ", but ",
                    base.text(name), " in ", base.path()));
  }

  bool has_scales(const std::string& name) const {
    const auto& tensors = sides_->base.tensors;
    return item_bytes(sides_->base.entry(name).dtype) == 1 &&
           (tensors.contains(name + "_scale") || tensors.contains(name + "_scale_inv"));
  }

  // A weight that an adapter can change.
  bool is_matrix(const std::string& name) const {
    const TensorEntry& tensor = sides_->base.entry(name);
    return name.ends_with(kWeightSuffix) && tensor.shape.size() == 2 && is_floating(tensor.dtype) &&
           !has_scales(name) && std::min(tensor.shape[0], tensor.shape[1]) >= options_.rank;
  }

  // Tensors that no adapter changes have to be equal.
  void compare_others(const std::vector<std::string>& names) {
    std::vector<std::string> differing;
    for (const std::string& name : names) {
      if (!is_known_equal(name) && !is_equal(name)) differing.push_back(name);
    }
    out_.unchanged += names.size() - differing.size();
    if (differing.empty()) return;
    std::string text =
        cat(sides_->tuned.path(), ": ", quote(differing[0], kNameText), " ", reason(differing[0]),
            ", and differs from that of ", sides_->base.path());
    for (std::size_t i = 1; i < differing.size() && i < kMaxListed; ++i)
      text += (i == 1 ? "; so do " : ", ") + quote(differing[i], kNameText);
    if (differing.size() > kMaxListed) text += cat(" and ", differing.size() - kMaxListed, " more");
    throw Error(ErrorCode::kUnsupported, text, {Remedy::kExclude, differing[0]});
  }

  std::string reason(const std::string& name) const {
    const TensorEntry& tensor = sides_->base.entry(name);
    const std::string is = cat("is ", sides_->base.text(name));
    if (!is_floating(tensor.dtype)) return is + ", no floating numbers";
    if (has_scales(name)) return is + " with scales beside it";
    if (tensor.shape.size() != 2) return is + ", no matrix";
    if (!name.ends_with(kWeightSuffix)) return is + ", not the weight of a module";
    return cat(is, ", whose smaller side is less than a rank of ", options_.rank);
  }

  // The two tensors by their positions: names may be tied to one tensor.
  std::pair<std::size_t, std::size_t> pair_of(const std::string& name) const {
    return {sides_->base.tensors.at(name), sides_->tuned.tensors.at(name)};
  }
  bool is_known_equal(const std::string& name) const { return equal_.contains(pair_of(name)); }

  bool is_equal(const std::string& name) {
    const DifferenceSide sides[] = {sides_->base.input(name), sides_->tuned.input(name)};
    const std::uint64_t numel = sides[0].input.entry().numel();
    if (numel == 0) return true;
    const InputReader base(sides[0].input, *sides[0].checks);
    const InputReader tuned(sides[1].input, *sides[1].checks);
    const std::uint64_t item = item_bytes(base.dtype());
    std::vector<std::byte> first(std::min(kBlockBytes / item, numel) * item);
    std::vector<std::byte> second(first.size());
    std::vector<std::byte> scratch(first.size());
    bool equal = true;
    // All is read, so that all checksums are compared.
    for (std::uint64_t at = 0; at < numel;) {
      throw_if_interrupted();
      const std::uint64_t count = std::min<std::uint64_t>(first.size() / item, numel - at);
      const auto a = std::span(first).first(count * item);
      const auto b = std::span(second).first(count * item);
      base.read(at, a, scratch);
      tuned.read(at, b, scratch);
      options_.on_bytes(2 * a.size());
      equal = equal && std::equal(a.begin(), a.end(), b.begin());
      at += count;
    }
    if (equal) equal_.insert(pair_of(name));
    return equal;
  }

  void extract(const std::string& name) {
    if (is_known_equal(name)) {
      ++out_.unchanged;
      return;
    }
    const TensorEntry& tensor = sides_->base.entry(name);
    DifferenceRows rows(sides_->base.input(name), sides_->tuned.input(name), options_.on_bytes);
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
      equal_.insert(pair_of(name));
      return;
    }
    const std::string module = name.substr(0, name.size() - kWeightSuffix.size());
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
                  cat(sides_->tuned.path(), ": ", quote(name, kNameText),
                      " has matrices that exceed ", torch_name(options_.dtype)));
    }
    out_.weights.push_back({name, tensor.shape, std::sqrt(left / factors->energy),
                            std::min(factors->kept / factors->energy, 1.0)});
    modules_.push_back(module);
  }

  // Adds a matrix whose rows, or columns, are these vectors, and leaves them rounded to its dtype.
  void write(const std::string& key, Vectors& vectors, bool as_columns, bool checked) {
    const auto count = static_cast<std::int64_t>(vectors.count);
    const auto length = static_cast<std::int64_t>(vectors.length);
    const std::vector<std::byte> rounded = as_bytes(vectors.elements, options_.dtype);
    if (options_.dtype != DType::kFloat64) {
      cast(options_.dtype, rounded, DType::kFloat64,
           std::as_writable_bytes(std::span(vectors.elements)));
    }
    if (!as_columns) {
      made_->add(key, options_.dtype, {count, length}, rounded, checked);
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
    made_->add(key, options_.dtype, {length, count}, turned, checked);
  }

  std::string config_text() const {
    AdapterConfig config;
    config.rank = options_.rank;
    config.alpha = options_.alpha;
    config.fan_in_fan_out = options_.fan_in_fan_out;
    return adapter_config_text(config, modules_);
  }

  const LoraExtractOptions& options_;
  double scale_;
  std::shared_ptr<Sides> sides_;
  std::unique_ptr<SpilledTensors> made_;
  std::vector<std::string> modules_;
  std::set<std::pair<std::size_t, std::size_t>> equal_;
  LoraExtraction out_;
};

}  // namespace

LoraExtraction extract_lora(const ModelTensors& base, const ModelTensors& tuned,
                            const LoraExtractOptions& options) {
  return Extractor(base, tuned, options).run();
}

}  // namespace fsdp::formats
