// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/average.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/replaced_tensors.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/value_compare.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kKeyText = 200;
// Size of the buffer for comparing checksums of storages that were read only in part.
constexpr std::size_t kCheckBytes = 1U << 20U;

// Returns whether the key is that of an optimizer's step count, which is not a weight even if its
// dtype is floating.
bool is_step_key(const std::string& key) {
  return key == "step" || key.ends_with(".step");
}

// The inputs and the states of their checksums.  The computed tensors keep them alive.
struct Operands {
  std::vector<InputContent> inputs;
  SumRule rule;
  // One for each input: names of files are unique only within a checkpoint.
  std::vector<std::unique_ptr<StorageChecks>> checks;
  Spares<SumBuffers> buffers;

  const TensorEntry& tensor(std::size_t input, std::size_t number) const {
    return inputs[input].checkpoint->index().tensors[number];
  }

  // Compares the checksums that are still open, and checks that no input has changed.
  void finish() const {
    std::vector<std::byte> buffer(kCheckBytes);
    for (const auto& check : checks) check->finish(buffer, [] { return interrupted(); });
    for (const InputContent& input : inputs) input.checkpoint->check_unchanged();
  }
};

class Averager {
 public:
  Averager(std::vector<InputContent> inputs, const AverageOptions& options)
      : options_(options), operands_(std::make_shared<Operands>()) {
    operands_->inputs = std::move(inputs);
    operands_->rule = options.rule;
    for (std::size_t i = 0; i < operands_->inputs.size(); ++i)
      operands_->checks.push_back(std::make_unique<StorageChecks>(true));
    base_ = options.differing == Differing::kLast ? operands_->inputs.size() - 1 : 0;
  }

  Average run() {
    const InputContent& base = operands_->inputs[base_];
    ReplacedTensors sums(base.checkpoint);
    for (const auto& [key, leaf] : base.leaves) look_at(leaf, sums);
    if (options_.differing == Differing::kRefused) compare_equals();
    auto made = sums.finish(base.content, path_of_all(), [held = operands_] { held->finish(); });
    result_.checkpoint = std::move(made.checkpoint);
    result_.content = std::move(made.content);
    return std::move(result_);
  }

 private:
  std::string path_of_all() const {
    const std::size_t others = operands_->inputs.size() - 1;
    return operands_->inputs[0].path() +
           (others == 1 ? " and " + operands_->inputs[1].path() : cat(" and ", others, " more"));
  }

  const Leaf& leaf_of(std::size_t input, const std::string& key) const {
    return operands_->inputs[input].leaves.at(key);
  }

  void look_at(const Leaf& leaf, ReplacedTensors& sums) {
    const std::string& key = leaf.key;
    if (!tensor_number(leaf.value)) {
      ++result_.values;
      return;
    }
    std::vector<std::size_t> numbers;
    bool floating = !is_step_key(key);
    for (std::size_t i = 0; i < operands_->inputs.size(); ++i) {
      numbers.push_back(*tensor_number(leaf_of(i, key).value));
      floating = floating && is_floating(operands_->tensor(i, numbers.back()).dtype);
    }
    if (!floating) {
      ++result_.taken;
      return;
    }
    refuse_scaled(key, numbers);
    ++result_.summed;
    // Tensors that are tied in every input are tied in the sum.
    const auto [at, fresh] = groups_.try_emplace(numbers, 0);
    if (fresh)
      at->second = sums.replace(leaf, sum_of(numbers));
    else
      sums.tie(leaf, at->second);
    summed_.insert(key);
  }

  // Throws if a tensor has block scales: the numbers and their scales cannot be summed separately.
  void refuse_scaled(const std::string& key, const std::vector<std::size_t>& numbers) const {
    constexpr std::array<std::string_view, 2> kScales = {"_scale_inv", "_scale"};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (item_bytes(operands_->tensor(i, numbers[i]).dtype) != 1) continue;
      for (const std::string_view scale : kScales) {
        if (!operands_->inputs[i].leaves.contains(key + std::string(scale))) continue;
        throw Error(ErrorCode::kUnsupported,
                    cat(operands_->inputs[i].path(), ": ", quote(key, kKeyText), " is ",
                        torch_name(operands_->tensor(i, numbers[i]).dtype), " with scales in ",
                        quote(key + std::string(scale), kKeyText),
                        "; dequantize it first: a sum needs elements of one floating type"));
      }
    }
  }

  ComputedTensor sum_of(const std::vector<std::size_t>& numbers) {
    ComputedTensor tensor;
    tensor.dtype = options_.dtype.value_or(operands_->tensor(0, numbers[0]).dtype);
    tensor.shape = operands_->tensor(0, numbers[0]).shape;
    for (std::size_t i = 0; i < numbers.size(); ++i)
      result_.input_bytes += operands_->tensor(i, numbers[i]).bytes();
    tensor.open = [held = operands_, numbers, to = tensor.dtype] {
      ComputedElements elements;
      elements.checked = true;
      std::vector<std::unique_ptr<InputReader>> readers;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const InputTensor input{held->inputs[i].checkpoint.get(), numbers[i]};
        readers.push_back(std::make_unique<InputReader>(input, *held->checks[i]));
        elements.checked = elements.checked && readers.back()->checked();
      }
      elements.source = std::make_shared<SumSource>(held->rule, held->buffers, std::move(readers),
                                                    to, held->tensor(0, numbers[0]).numel());
      return elements;
    };
    return tensor;
  }

  // Checks that everything that is not summed is the same in all inputs.
  void compare_equals() {
    for (std::size_t i = 1; i < operands_->inputs.size(); ++i) {
      const Checkpoint& a = *operands_->inputs[0].checkpoint;
      const Checkpoint& b = *operands_->inputs[i].checkpoint;
      std::array<std::vector<TargetPiece>, 2> pieces;
      std::vector<std::string> keys;
      for (const auto& [key, leaf] : operands_->inputs[0].leaves) {
        if (summed_.contains(key)) continue;
        const Leaf& beside = leaf_of(i, key);
        if (const auto number = tensor_number(leaf.value)) {
          const std::size_t other = *tensor_number(beside.value);
          if (a.index().tensors[*number].dtype != b.index().tensors[other].dtype)
            refuse(i, key,
                   cat(operands_->inputs[i].text_of(beside), ", but ",
                       operands_->inputs[0].text_of(leaf)));
          pieces[0].push_back(whole_tensor_piece(a, *number));
          pieces[1].push_back(whole_tensor_piece(b, other));
          keys.push_back(key);
          continue;
        }
        const ValueComparison found =
            compare_values(resolved(a, leaf.value), resolved(b, beside.value));
        if (!found.same) refuse(i, key, "another value than");
        for (const auto& [x, y] : found.storages) {
          pieces[0].push_back(storage_piece(a, x));
          pieces[1].push_back(storage_piece(b, y));
          keys.push_back(key);
        }
      }
      compare_pieces(i, pieces, keys);
    }
  }

  void compare_pieces(std::size_t input, const std::array<std::vector<TargetPiece>, 2>& pieces,
                      const std::vector<std::string>& keys) const {
    std::vector<std::atomic<bool>> differs(keys.size());
    visit_pairs(pieces[0], pieces[1], options_.compare, [&](const TensorBlockPair& pair) {
      if (!std::equal(pair.left.begin(), pair.left.end(), pair.right.begin(), pair.right.end()))
        differs[pair.piece] = true;
    });
    for (std::size_t p = 0; p < keys.size(); ++p) {
      if (differs[p]) refuse(input, keys[p], "other elements than");
    }
  }

  // `what`: for example "other elements than".
  [[noreturn]] void refuse(std::size_t input, const std::string& key,
                           const std::string& what) const {
    throw Error(ErrorCode::kMismatch,
                cat(operands_->inputs[input].path(), ": ", quote(key, kKeyText), " has ", what,
                    " in ", operands_->inputs[0].path(), ", and is not averaged"),
                {Remedy::kTakeOne});
  }

  const AverageOptions& options_;
  std::shared_ptr<Operands> operands_;
  std::size_t base_ = 0;                                    // the input that values come from
  std::map<std::vector<std::size_t>, std::size_t> groups_;  // numbers in the inputs -> position
  std::set<std::string> summed_;                            // keys
  Average result_;
};

}  // namespace

Average average_of(std::vector<InputContent> inputs, const AverageOptions& options) {
  return Averager(std::move(inputs), options).run();
}

}  // namespace fsdp::formats
