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
#include "formats/bytes/files/local_file.h"
#include "formats/changes/arithmetic/low_rank_factors.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/lora/adapter_config.h"
#include "formats/changes/lora/peft_names.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxListed = 6;

// Elements that wait in a file to be written.
class SpilledSource : public arrays::ComputedSource {
 public:
  SpilledSource(DType dtype, std::uint64_t numel, std::shared_ptr<const SpillFile> file,
                std::uint64_t offset, bool checked)
      : ComputedSource(dtype, numel), file_(std::move(file)), offset_(offset) {
    if (!checked) note_unchecked();
  }

 protected:
  void compute(std::uint64_t first, std::span<std::byte> out) const override {
    file_->read_at(offset_ + first * item_bytes(dtype()), out);
  }

 private:
  std::shared_ptr<const SpillFile> file_;
  std::uint64_t offset_;
};

// tuned - base in float64: both elements are converted exactly, and the difference is rounded once.
class DifferenceRows : public MatrixRows {
 public:
  // Requires: matrices of one shape, of floating types.
  // `on_bytes`: called with the number of bytes that were read from both since the last call.
  DifferenceRows(const arrays::Array& base, const arrays::Array& tuned,
                 const std::function<void(std::uint64_t)>& on_bytes)
      : base_(base),
        tuned_(tuned),
        rows_(static_cast<std::size_t>(base.shape.at(0))),
        columns_(static_cast<std::size_t>(base.shape.at(1))),
        on_bytes_(on_bytes) {}

  std::size_t rows() const override { return rows_; }
  std::size_t columns() const override { return columns_; }
  // Throws: kUnsupported, naming the checkpoint, for NaN and infinite elements; the errors of
  // reading.
  void read(std::size_t first, std::span<double> out) override {
    std::uint64_t at = first * columns_;
    while (!out.empty()) {
      const auto part = out.first(std::min(arrays::kComputedNumel, out.size()));
      numbers_.resize(part.size());
      read_side(tuned_, at, part);
      read_side(base_, at, numbers_);
      for (std::size_t i = 0; i < part.size(); ++i) part[i] = part[i] - numbers_[i];
      at += part.size();
      out = out.subspan(part.size());
    }
  }
  // Returns whether everything that is read has checksums.
  bool checked() const { return base_.reader.checked() && tuned_.reader.checked(); }

 private:
  struct Side {
    explicit Side(const arrays::Array& array)
        : reader(array), name(array.parts.empty() ? "" : array.parts[0].operand->name()) {}
    arrays::ArrayReader reader;
    std::string name;
  };

  void read_side(const Side& side, std::uint64_t first, std::span<double> out) const {
    side.reader.read_as(DType::kFloat64, first, std::as_writable_bytes(out));
    on_bytes_(out.size() * item_bytes(side.reader.dtype()));
    const auto bad =
        std::ranges::find_if_not(out, [](double number) { return std::isfinite(number); });
    if (bad == out.end()) return;
    const std::uint64_t position = first + static_cast<std::uint64_t>(bad - out.begin());
    throw Error(ErrorCode::kUnsupported,
                cat(side.name, " has ", std::isnan(*bad) ? "NaN" : "an infinite element", " at [",
                    position / columns_, ", ", position % columns_, "]"));
  }

  Side base_;
  Side tuned_;
  std::size_t rows_;
  std::size_t columns_;
  const std::function<void(std::uint64_t)>& on_bytes_;
  std::vector<double> numbers_;
};

class Extractor {
 public:
  Extractor(const ModelTensors& base, const ModelTensors& tuned, const LoraExtractOptions& options)
      : options_(options),
        scale_(options.alpha / static_cast<double>(options.rank)),
        pair_(std::make_unique<ModelPair>(base, tuned)),
        made_(std::make_unique<arrays::ComputedTensors>(
            std::vector{pair_->tuned.source, pair_->base.source})) {}

  LoraExtraction run() {
    std::vector<std::string> matrices;
    std::vector<std::string> others;
    for (const std::string& name : pair_->names(options_.wanted))
      (is_matrix(name) ? matrices : others).push_back(name);
    const std::vector<std::string> whole = differing(others);
    for (const std::string& name : matrices) extract(name);
    if (out_.weights.empty()) {
      throw Error(ErrorCode::kMismatch, cat(pair_->tuned.path(), ": no weight differs from ",
                                            pair_->base.path(), ", there is nothing to extract"));
    }
    take_whole(whole);
    made_->check_unchanged();
    AdapterConfig config;
    config.rank = options_.rank;
    config.alpha = options_.alpha;
    config.fan_in_fan_out = options_.fan_in_fan_out;
    out_.config = adapter_config_text(config, modules_);
    out_.content = Value::dict(std::move(entries_));
    out_.checkpoint = std::move(made_);
    return std::move(out_);
  }

 private:
  bool has_scales(const std::string& name) const {
    return arrays::has_scales(pair_->base.tensors, name, pair_->base.entry(name).dtype);
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
        cat(pair_->tuned.path(), ": ", quote(refused[0], 200), " ", reason(refused[0]),
            ", but differs from the tensor in ", pair_->base.path());
    for (std::size_t i = 1; i < refused.size() && i < kMaxListed; ++i)
      text += (i == 1 ? "; so do " : ", ") + quote(refused[i], 200);
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

  void extract(const std::string& name) {
    if (pair_->is_known_equal(name)) {
      ++out_.unchanged;
      return;
    }
    const TensorEntry& tensor = pair_->base.entry(name);
    DifferenceRows rows(pair_->base.array(name), pair_->tuned.array(name), options_.on_bytes);
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
                  cat(pair_->tuned.path(), ": ", quote(name, 200), " has matrices that exceed ",
                      torch_name(options_.dtype)));
    }
    out_.weights.push_back({name, tensor.shape, std::sqrt(left / factors->energy),
                            std::min(factors->kept / factors->energy, 1.0)});
    modules_.targets.push_back(module);
  }

  // Adds a matrix whose rows, or columns, are these vectors; rounds the vectors to its dtype.
  void write(const std::string& key, Vectors& vectors, bool as_columns, bool checked) {
    const auto count = static_cast<std::int64_t>(vectors.count);
    const auto length = static_cast<std::int64_t>(vectors.length);
    std::vector<std::byte> rounded(vectors.elements.size() * item_bytes(options_.dtype));
    cast(DType::kFloat64, std::as_bytes(std::span(vectors.elements)), options_.dtype, rounded);
    cast(options_.dtype, rounded, DType::kFloat64,
         std::as_writable_bytes(std::span(vectors.elements)));
    if (!as_columns) {
      file_->append(rounded);
      return add(key, options_.dtype, {count, length}, checked);
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
    file_->append(turned);
    add(key, options_.dtype, {length, count}, checked);
  }

  // Adds a tensor of the elements that were appended to the file last.
  void add(const std::string& key, DType dtype, const std::vector<std::int64_t>& shape,
           bool checked) {
    const std::uint64_t numel = volume({shape, shape});
    const auto open = [=, offset = file_->size() - numel * item_bytes(dtype),
                       file = std::shared_ptr<const SpillFile>(file_)] {
      return std::make_shared<SpilledSource>(dtype, numel, file, offset, checked);
    };
    entries_.emplace_back(Value::string(key),
                          made_->separate({key}, arrays::computed_array(dtype, shape, open)));
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
                    cat(pair_->tuned.path(), ": ", quote(name, 200), " ", reason(name),
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
      copy(name, targets.contains(module) ? peft_whole_key(module + ".base_layer.bias")
                                          : peft_whole_key(name));
    }
    modules_.whole.assign(whole.begin(), whole.end());
  }

  void copy(const std::string& name, const std::string& key) {
    const TensorEntry& tensor = pair_->tuned.entry(name);
    const arrays::ArrayReader reader(pair_->tuned.array(name));
    const arrays::Scratch scratch;
    const std::uint64_t item = item_bytes(tensor.dtype);
    for (std::uint64_t at = 0; at < tensor.numel();) {
      throw_if_interrupted();
      const auto part = scratch.first(
          std::min<std::uint64_t>(arrays::kComputedNumel, tensor.numel() - at) * item);
      reader.read(at, part);
      options_.on_bytes(part.size());
      file_->append(part);
      at += part.size() / item;
    }
    add(key, tensor.dtype, tensor.shape, reader.checked());
    ++out_.whole;
  }

  const LoraExtractOptions& options_;
  double scale_;
  std::unique_ptr<ModelPair> pair_;
  std::shared_ptr<SpillFile> file_ = std::make_shared<SpillFile>();
  std::unique_ptr<arrays::ComputedTensors> made_;
  std::vector<Value::Entry> entries_;  // of the content
  AdapterModules modules_;
  LoraExtraction out_;
};

}  // namespace

LoraExtraction extract_lora(const ModelTensors& base, const ModelTensors& tuned,
                            const LoraExtractOptions& options) {
  return Extractor(base, tuned, options).run();
}

}  // namespace fsdp::formats
