// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/quantization_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/quantized/dequantize.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::size_t kComparedAtOnce = 2048;  // elements
using Histogram = std::array<std::uint64_t, 256>;

// Returns whether a number of that many bits is at an end of its range.
bool is_end(Dialect dialect, const Scheme& scheme, DType dtype, unsigned code) {
  if (dialect == Dialect::kBitsandbytes8) return code == 127 || code == 129 || code == 128;
  if (dialect == Dialect::kBitsandbytes4) {
    // The largest of FP4's table, and the ends of NF4's.
    return scheme.name == "fp4" ? (code & 7U) == 3 : code == 0 || code == 15;
  }
  if (scheme.numbers == NumberKind::kFloat && scheme.bits == 4) return (code & 7U) == 7;
  if (scheme.numbers == NumberKind::kFloat) {
    const unsigned most = dtype == DType::kFloat8E4M3FN ? 0x7E
                          : dtype == DType::kFloat8E5M2 ? 0x7B
                                                        : 0x7F;
    return (code & 0x7FU) == most;
  }
  const unsigned half = 1U << (scheme.bits - 1);
  const bool twos = dtype == DType::kInt8 || (dialect == Dialect::kModelOpt && scheme.bits == 4);
  return twos ? code == half || code == half - 1 : code == 0 || code == 2 * half - 1;
}

// Counts the numbers at an end, from how often each byte occurs.  `numel`: without what fills the
// last word.
std::optional<std::uint64_t> ends_of(Dialect dialect, const Scheme& scheme, DType dtype,
                                     const Histogram& bytes, std::uint64_t numel) {
  const bool table = dialect == Dialect::kBitsandbytes4;
  const unsigned bits = table ? 4 : dialect == Dialect::kBitsandbytes8 ? 8 : scheme.bits;
  if (8 % bits != 0) return std::nullopt;
  std::uint64_t ends = 0;
  std::uint64_t held = 0;
  for (unsigned byte = 0; byte < bytes.size(); ++byte) {
    for (unsigned at = 0; at < 8; at += bits) {
      held += bytes[byte];
      const unsigned code = (byte >> at) & ((1U << bits) - 1);
      if (is_end(dialect, scheme, dtype, code)) ends += bytes[byte];
    }
  }
  // Words are filled with zero bits.
  const std::uint64_t filled = held - std::min(held, numel);
  return is_end(dialect, scheme, dtype, 0) ? ends - std::min(ends, filled) : ends;
}

class Measurement {
 public:
  Measurement(const ModelTensors& original, const ModelTensors& quantized, const Settings& settings,
              DType to, const VisitOptions& options)
      : original_(original),
        quantized_(quantized),
        settings_(settings),
        options_(options),
        model_(dequantized_model(quantized.checkpoint, quantized.tensors, settings, to)) {}

  ErrorReport run(const std::function<bool(const std::string&)>& selected) {
    visit_weights(
        quantized_.checkpoint, quantized_.tensors, settings_,
        {.on_weight =
             [&](const std::string& name, const StoredWeight& stored, const Scheme& scheme) {
               stored_.emplace(name, Stored{scheme, stored.tensors.at(Role::kNumbers)});
             },
         .on_fault = [](const std::string&, ErrorCode, const std::string&) {}});
    match(selected);
    measure();
    count_ends();
    model_.checkpoint->check_unchanged();
    return std::move(out_);
  }

 private:
  struct Stored {
    Scheme scheme;
    std::size_t numbers;  // position in the index of the quantized checkpoint
  };

  const TensorEntry& after(std::size_t number) const {
    return model_.checkpoint->index().tensors[number];
  }

  void match(const std::function<bool(const std::string&)>& selected) {
    std::map<std::string, std::size_t> originals;
    for (const auto& [key, value] : members_of(original_.tensors)) {
      if (const auto number = tensor_number(value)) originals.emplace(*key.as_string(), *number);
    }
    for (const auto& [key, value] : members_of(model_.content)) {
      const std::string& name = *key.as_string();
      const auto stored = stored_.find(name);
      const auto number = tensor_number(value);
      if (stored == stored_.end() || !number || !selected(name)) continue;
      const auto before = originals.find(name);
      if (before == originals.end()) {
        out_.not_compared.emplace_back(name, "the original has no tensor of this name");
        continue;
      }
      const TensorEntry& entry = original_.checkpoint.index().tensors[before->second];
      if (entry.shape != after(*number).shape) {
        out_.not_compared.emplace_back(name, cat("has the shape ", shape_text(after(*number).shape),
                                                 ", in the original ", shape_text(entry.shape)));
        continue;
      }
      if (!is_floating(entry.dtype)) {
        throw Error(ErrorCode::kDtype,
                    cat(original_.checkpoint.description().path, ": ", quote(name, 200), " is ",
                        torch_name(entry.dtype), ", expected floating numbers"));
      }
      out_.weights.push_back({name, stored->second.scheme.name, entry.shape, {}, {}});
      before_.push_back(whole_tensor_piece(original_.checkpoint, before->second));
      after_.push_back(whole_tensor_piece(*model_.checkpoint, *number));
      numbers_.push_back(&stored->second);
    }
  }

  void measure() {
    std::vector<std::map<std::uint64_t, ErrorFigures>> parts(out_.weights.size());
    std::mutex mutex;
    VisitOptions options = options_;
    options.on_piece = [&](std::size_t piece) {
      const std::lock_guard lock(mutex);
      for (const auto& [first, part] : parts[piece]) out_.weights[piece].figures.append(part);
      parts[piece].clear();
    };
    visit_pairs(before_, after_, options, [&](const TensorBlockPair& block) {
      const ErrorFigures part = error_figures(before_[block.piece].dtype, block.left,
                                              after_[block.piece].dtype, block.right);
      const std::lock_guard lock(mutex);
      parts[block.piece].emplace(block.first, part);
    });
  }

  void count_ends() {
    std::vector<TargetPiece> pieces;
    for (const Stored* const stored : numbers_)
      pieces.push_back(whole_tensor_piece(quantized_.checkpoint, stored->numbers));
    std::vector<Histogram> found(pieces.size());
    std::mutex mutex;
    VisitOptions options = options_;
    options.on_progress = {};
    visit_pieces(pieces, options, [&](const TensorBlock& block) {
      Histogram bytes{};
      for (const std::byte byte : block.bytes) ++bytes[static_cast<std::size_t>(byte)];
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < bytes.size(); ++i) found[block.piece][i] += bytes[i];
    });
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      WeightError& weight = out_.weights[i];
      weight.saturated = ends_of(settings_.dialect, numbers_[i]->scheme, pieces[i].dtype, found[i],
                                 volume({weight.shape, weight.shape}));
    }
  }

  const ModelTensors& original_;
  const ModelTensors& quantized_;
  const Settings& settings_;
  const VisitOptions& options_;
  DequantizedModel model_;
  std::map<std::string, Stored> stored_;  // by name of the weight
  std::vector<TargetPiece> before_;
  std::vector<TargetPiece> after_;
  std::vector<const Stored*> numbers_;
  ErrorReport out_;
};

}  // namespace

std::optional<double> ErrorFigures::relative() const {
  if (square_sum == 0) return std::nullopt;
  return std::sqrt(error_sum / square_sum);
}

std::optional<double> ErrorFigures::decibels() const {
  if (square_sum == 0 || error_sum == 0) return std::nullopt;
  return 10 * std::log10(square_sum / error_sum);
}

void ErrorFigures::append(const ErrorFigures& behind) {
  count += behind.count;
  not_finite += behind.not_finite;
  zeros += behind.zeros;
  original_zeros += behind.original_zeros;
  square_sum += behind.square_sum;
  error_sum += behind.error_sum;
  max_abs = std::max(max_abs, behind.max_abs);
}

ErrorFigures error_figures(DType original, std::span<const std::byte> before, DType weight,
                           std::span<const std::byte> after) {
  ErrorFigures out;
  std::array<double, kComparedAtOnce> left{};
  std::array<double, kComparedAtOnce> right{};
  out.count = before.size() / item_bytes(original);
  for (std::uint64_t first = 0; first < out.count; first += kComparedAtOnce) {
    const std::size_t size = std::min<std::uint64_t>(kComparedAtOnce, out.count - first);
    const auto as_doubles = [&](DType dtype, std::span<const std::byte> bytes,
                                std::array<double, kComparedAtOnce>& to) {
      cast(dtype, bytes.subspan(first * item_bytes(dtype), size * item_bytes(dtype)),
           DType::kFloat64, std::as_writable_bytes(std::span(to).first(size)));
    };
    as_doubles(original, before, left);
    as_doubles(weight, after, right);
    for (std::size_t i = 0; i < size; ++i) {
      out.zeros += right[i] == 0 ? 1 : 0;
      out.original_zeros += left[i] == 0 ? 1 : 0;
      const double difference = right[i] - left[i];
      if (!std::isfinite(difference)) {
        ++out.not_finite;
        continue;
      }
      out.square_sum += left[i] * left[i];
      out.error_sum += difference * difference;
      out.max_abs = std::max(out.max_abs, std::abs(difference));
    }
  }
  return out;
}

ErrorReport quantization_error(const ModelTensors& original, const ModelTensors& quantized,
                               const Settings& settings, DType to,
                               const std::function<bool(const std::string&)>& selected,
                               const VisitOptions& options) {
  return Measurement(original, quantized, settings, to, options).run(selected);
}

}  // namespace fsdp::formats::quantized
