// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/merged_tensor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/changes/arithmetic/element_stages.h"

namespace fsdp::formats {
namespace {

// The size of buffers for the parts of storages that are read last, and for comparing tensors.
constexpr std::size_t kMergeCheckBytes = 1U << 20U;

DType real_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// Reads the operands of steps, and stacks them on the tensor.
class Stages {
 public:
  Stages(LoraOperands& operands, const MergedTensor& tensor, DType to)
      : operands_(operands), tensor_(tensor), to_(to) {}

  ComputedElements run() {
    const InputTensor start = operands_.start(tensor_);
    StorageChecks& checks =
        tensor_.replacement ? *operands_.checks[tensor_.replacement->first] : operands_.base_checks;
    auto reader = std::make_unique<InputReader>(start, checks);
    elements_.checked = reader->checked();
    numel_ = start.entry().numel();
    const auto& shape = start.entry().shape;
    rows_ = shape.empty() ? 1 : static_cast<std::uint64_t>(shape[0]);
    reader_ = std::move(reader);
    for (std::size_t i = 0; numel_ != 0 && i < tensor_.steps.size();) i = stack(i);
    elements_.source = source_ ? source_ : cast_source(std::move(reader_), to_, numel_);
    return std::move(elements_);
  }

 private:
  // Stacks the steps from `first` on that one stage computes; returns the next step.
  std::size_t stack(std::size_t first) {
    const LoraStep& step = tensor_.steps[first];
    if (source_) reader_ = elements_of(std::move(source_), stage_type_);
    source_ = nullptr;
    std::size_t end = first + 1;
    if (step.kind == LoraStep::Kind::kRows) {
      stage_type_ = type_after(end);
      source_ = with_rows(std::move(reader_), step.rows, rows_of(step), numel_ / rows_, stage_type_,
                          numel_);
      return end;
    }
    if (step.kind == LoraStep::Kind::kUpdate && step.experts != 0) {
      stage_type_ = type_after(end);
      source_ = experts_of(step);
      return end;
    }
    std::vector<LowRankUpdate> updates{update_of(step)};
    while (!tensor_.steps[end - 1].magnitude && end < tensor_.steps.size() &&
           is_plain(tensor_.steps[end]))
      updates.push_back(update_of(tensor_.steps[end++]));
    const bool bias = step.kind == LoraStep::Kind::kBias;
    const std::uint64_t columns = bias ? 1 : numel_ / rows_;
    const auto& magnitude = tensor_.steps[end - 1].magnitude;
    stage_type_ = magnitude ? real_of(reader_->dtype()) : type_after(end);
    source_ = low_rank_source(std::move(reader_), updates, columns, stage_type_, numel_);
    if (magnitude) {
      source_ = scaled_source(elements_of(std::move(source_), stage_type_),
                              numbers_of(tensor_.steps[end - 1].adapter, *magnitude),
                              tensor_.steps[end - 1].turned, columns, numel_);
      if (end == tensor_.steps.size())
        source_ = cast_source(elements_of(std::move(source_), stage_type_), to_, numel_);
    }
    return end;
  }

  static bool is_plain(const LoraStep& step) {
    return step.kind != LoraStep::Kind::kRows && step.experts == 0;
  }
  // Returns the dtype of a stage: `to_` for the last one, else the dtype of the computation.
  DType type_after(std::size_t end) const {
    return end == tensor_.steps.size() ? to_ : real_of(reader_->dtype());
  }

  std::vector<std::byte> bytes_of(std::size_t adapter, std::size_t number) {
    const InputReader reader({operands_.adapters[adapter].get(), number},
                             *operands_.checks[adapter]);
    std::vector<std::byte> bytes(entry_of(adapter, number).bytes());
    std::vector<std::byte> scratch(bytes.size());
    reader.read(0, bytes, scratch);
    elements_.checked = elements_.checked && reader.checked();
    return bytes;
  }
  const TensorEntry& entry_of(std::size_t adapter, std::size_t number) const {
    return operands_.adapters[adapter]->index().tensors[number];
  }

  std::vector<double> numbers_of(std::size_t adapter, std::size_t number) {
    const std::vector<std::byte> bytes = bytes_of(adapter, number);
    std::vector<double> numbers(entry_of(adapter, number).numel());
    cast(entry_of(adapter, number).dtype, bytes, DType::kFloat64,
         std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  std::vector<std::byte> rows_of(const LoraStep& step) {
    const std::vector<std::byte> bytes = bytes_of(step.adapter, step.values);
    const TensorEntry& entry = entry_of(step.adapter, step.values);
    std::vector<std::byte> rows(entry.numel() * item_bytes(stage_type_));
    cast(entry.dtype, bytes, stage_type_, rows);
    return rows;
  }

  ThinMatrix matrix_of(std::size_t adapter, std::size_t number, bool transposed) {
    return {entry_of(adapter, number).dtype, bytes_of(adapter, number), transposed};
  }

  LowRankUpdate update_of(const LoraStep& step) {
    LowRankUpdate update;
    update.rank = step.rank;
    update.scale = step.scale;
    if (step.kind == LoraStep::Kind::kBias) {
      constexpr float kOne = 1;
      update.left = matrix_of(step.adapter, step.b, false);
      const auto one = std::as_bytes(std::span(&kOne, 1));
      update.right = {DType::kFloat32, {one.begin(), one.end()}, false};
      return update;
    }
    ThinMatrix a = matrix_of(step.adapter, step.a, step.turned);
    ThinMatrix b = matrix_of(step.adapter, step.b, step.turned);
    update.left = std::move(step.turned ? a : b);
    update.right = std::move(step.turned ? b : a);
    return update;
  }

  // Rows of A are grouped by expert; columns of B by rank, each group with one column per expert.
  // Source: peft 0.21's ParamWrapper.get_delta_weight.
  std::shared_ptr<const ByteSource> experts_of(const LoraStep& step) {
    const ThinMatrix a = matrix_of(step.adapter, step.a, false);
    const ThinMatrix b = matrix_of(step.adapter, step.b, false);
    const std::uint64_t a_item = item_bytes(a.dtype);
    const std::uint64_t b_item = item_bytes(b.dtype);
    const std::uint64_t a_bytes = a.elements.size() / step.experts;
    const std::uint64_t out = b.elements.size() / b_item / step.experts / step.rank;
    const std::uint64_t in = a_bytes / a_item / step.rank;
    const std::uint64_t each = numel_ / step.experts;
    const std::shared_ptr<const ElementReader> all = std::move(reader_);
    std::vector<std::shared_ptr<const ByteSource>> parts;
    for (std::uint64_t e = 0; e < step.experts; ++e) {
      ThinMatrix own_a{a.dtype, {}, step.turned};
      own_a.elements.assign(a.elements.begin() + static_cast<std::ptrdiff_t>(e * a_bytes),
                            a.elements.begin() + static_cast<std::ptrdiff_t>((e + 1) * a_bytes));
      ThinMatrix own_b{b.dtype, std::vector<std::byte>(out * step.rank * b_item), step.turned};
      for (std::uint64_t i = 0; i < out * step.rank; ++i) {
        std::copy_n(
            b.elements.begin() + static_cast<std::ptrdiff_t>((i * step.experts + e) * b_item),
            b_item, own_b.elements.begin() + static_cast<std::ptrdiff_t>(i * b_item));
      }
      LowRankUpdate update;
      update.rank = step.rank;
      update.scale = step.scale;
      update.left = std::move(step.turned ? own_a : own_b);
      update.right = std::move(step.turned ? own_b : own_a);
      parts.push_back(low_rank_source(elements_from(all, e * each), std::span(&update, 1),
                                      step.turned ? out : in, stage_type_, each));
    }
    return joined_source(std::move(parts));
  }

  LoraOperands& operands_;
  const MergedTensor& tensor_;
  DType to_;
  ComputedElements elements_;
  std::uint64_t numel_ = 0;
  std::uint64_t rows_ = 1;
  std::unique_ptr<ElementReader> reader_;
  std::shared_ptr<const ByteSource> source_;
  DType stage_type_ = DType::kFloat32;  // of `source_`
};

}  // namespace

InputTensor LoraOperands::start(const MergedTensor& tensor) const {
  if (tensor.replacement)
    return {adapters[tensor.replacement->first].get(), tensor.replacement->second};
  return {base.get(), *tensor.base};
}

void LoraOperands::finish() {
  std::vector<std::byte> buffer(kMergeCheckBytes);
  base_checks.finish(buffer, [] { return interrupted(); });
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    checks[i]->finish(buffer, [] { return interrupted(); });
    if (adapters[i] != base) adapters[i]->check_unchanged();
  }
}

ComputedTensor merged_tensor(std::shared_ptr<LoraOperands> operands, MergedTensor tensor,
                             DType to) {
  ComputedTensor computed;
  computed.dtype = to;
  computed.shape = operands->start(tensor).entry().shape;
  computed.open = [held = std::move(operands), tensor = std::move(tensor), to] {
    return Stages(*held, tensor, to).run();
  };
  return computed;
}

bool equal_tensors(const Checkpoint& checkpoint, std::size_t one, std::size_t other) {
  if (one == other) return true;
  const TensorEntry& first = checkpoint.index().tensors[one];
  const TensorEntry& second = checkpoint.index().tensors[other];
  if (first.dtype != second.dtype || first.shape != second.shape) return false;
  StorageChecks checks{true};
  const InputReader a({&checkpoint, one}, checks);
  const InputReader b({&checkpoint, other}, checks);
  const std::uint64_t item = item_bytes(first.dtype);
  const std::uint64_t most = std::max<std::uint64_t>(kMergeCheckBytes / item, 1);
  std::vector<std::byte> left(most * item);
  std::vector<std::byte> right(most * item);
  std::vector<std::byte> scratch(most * item);
  for (std::uint64_t at = 0; at < first.numel();) {
    const std::uint64_t count = std::min(most, first.numel() - at);
    const auto l = std::span(left).first(count * item);
    const auto r = std::span(right).first(count * item);
    a.read(at, l, scratch);
    b.read(at, r, scratch);
    if (!std::equal(l.begin(), l.end(), r.begin())) return false;
    at += count;
    throw_if_interrupted();
  }
  return true;
}

}  // namespace fsdp::formats
