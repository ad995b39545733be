// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/average.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/value_compare.h"

namespace fsdp::formats {
namespace {

// Returns whether the key is that of an optimizer's step count, which is not a weight even if its
// dtype is floating.
bool is_step_key(const std::string& key) {
  return key == "step" || key.ends_with(".step");
}

class Averager {
 public:
  Averager(std::vector<InputContent> inputs, const AverageOptions& options)
      : options_(options),
        rule_(std::make_shared<arrays::SumRule>(options.rule)),
        inputs_(std::move(inputs)),
        base_(options.differing == Differing::kLast ? inputs_.size() - 1 : 0) {
    for (const InputContent& input : inputs_)
      sources_.push_back(std::make_shared<arrays::ArraySource>(input.checkpoint));
  }

  Average run() {
    auto all = sources_;
    std::swap(all[0], all[base_]);
    auto made = std::make_shared<arrays::ComputedTensors>(std::move(all));
    made->set_path(path_of_all());
    for (const auto& [key, leaf] : inputs_[base_].leaves) look_at(leaf, *made);
    if (options_.differing == Differing::kRefused) compare_equals();
    result_.content = made->edited(inputs_[base_].content);
    result_.checkpoint = std::move(made);
    return std::move(result_);
  }

 private:
  std::string path_of_all() const {
    const std::size_t others = inputs_.size() - 1;
    return inputs_[0].path() +
           (others == 1 ? " and " + inputs_[1].path() : cat(" and ", others, " more"));
  }

  const Leaf& leaf_of(std::size_t input, const std::string& key) const {
    return inputs_[input].leaves.at(key);
  }
  const TensorEntry& tensor(std::size_t input, std::size_t number) const {
    return sources_[input]->entry(number);
  }

  void look_at(const Leaf& leaf, arrays::ComputedTensors& made) {
    const std::string& key = leaf.key;
    if (!tensor_number(leaf.value)) {
      ++result_.values;
      return;
    }
    std::vector<std::size_t> numbers;
    bool floating = !is_step_key(key);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      numbers.push_back(*tensor_number(leaf_of(i, key).value));
      floating = floating && is_floating(tensor(i, numbers.back()).dtype);
    }
    if (!floating) {
      ++result_.taken;
      return;
    }
    refuse_scaled(key, numbers);
    ++result_.summed;
    // Tensors that are tied in every input are tied in the sum.
    const auto [at, fresh] = groups_.try_emplace(numbers);
    if (fresh) at->second = made.separate(leaf.path, sum_of(numbers));
    made.replace(leaf, at->second);
    summed_.insert(key);
  }

  // Throws if a tensor has block scales: the numbers and their scales cannot be summed separately.
  void refuse_scaled(const std::string& key, const std::vector<std::size_t>& numbers) const {
    constexpr std::array<std::string_view, 2> kScales = {"_scale_inv", "_scale"};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (item_bytes(tensor(i, numbers[i]).dtype) != 1) continue;
      for (const std::string_view scale : kScales) {
        if (!inputs_[i].leaves.contains(key + std::string(scale))) continue;
        throw Error(ErrorCode::kUnsupported,
                    cat(inputs_[i].path(), ": ", quote(key, 200), " is ",
                        torch_name(tensor(i, numbers[i]).dtype), " with scales in ",
                        quote(key + std::string(scale), 200),
                        "; dequantize it first: a sum needs elements of one floating type"));
      }
    }
  }

  arrays::Array sum_of(const std::vector<std::size_t>& numbers) {
    std::vector<arrays::Array> arrays;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      result_.input_bytes += tensor(i, numbers[i]).bytes();
      arrays.push_back(sources_[i]->array(numbers[i]));
    }
    const DType to = options_.dtype.value_or(arrays[0].dtype);
    return arrays::sum_of(std::move(arrays), rule_, to);
  }

  // Checks that everything that is not summed is the same in all inputs.
  void compare_equals() {
    for (std::size_t i = 1; i < inputs_.size(); ++i) {
      const Checkpoint& a = *inputs_[0].checkpoint;
      const Checkpoint& b = *inputs_[i].checkpoint;
      std::array<std::vector<TargetPiece>, 2> pieces;
      std::vector<std::string> keys;
      for (const auto& [key, leaf] : inputs_[0].leaves) {
        if (summed_.contains(key)) continue;
        const Leaf& beside = leaf_of(i, key);
        if (const auto number = tensor_number(leaf.value)) {
          const std::size_t other = *tensor_number(beside.value);
          if (a.index().tensors[*number].dtype != b.index().tensors[other].dtype)
            refuse(i, key,
                   cat("is ", inputs_[i].text_of(beside), ", but ", inputs_[0].text_of(leaf)));
          pieces[0].push_back(whole_tensor_piece(a, *number));
          pieces[1].push_back(whole_tensor_piece(b, other));
          keys.push_back(key);
          continue;
        }
        const ValueComparison found =
            compare_values(resolved(a, leaf.value), resolved(b, beside.value));
        if (!found.same) refuse(i, key, "has another value than");
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
      if (differs[p]) refuse(input, keys[p], "has other elements than");
    }
  }

  // `what`: for example "has other elements than".
  [[noreturn]] void refuse(std::size_t input, const std::string& key,
                           const std::string& what) const {
    throw Error(ErrorCode::kMismatch,
                cat(inputs_[input].path(), ": ", quote(key, 200), " ", what, " in ",
                    inputs_[0].path(), ", and is not averaged"),
                {Remedy::kTakeOne});
  }

  const AverageOptions& options_;
  std::shared_ptr<const arrays::SumRule> rule_;
  std::vector<InputContent> inputs_;
  std::vector<std::shared_ptr<arrays::ArraySource>> sources_;  // of the inputs
  std::size_t base_;                                           // the input that values come from
  std::map<std::vector<std::size_t>, Value> groups_;           // by numbers in the inputs
  std::set<std::string> summed_;                               // keys
  Average result_;
};

}  // namespace

Average average_of(std::vector<InputContent> inputs, const AverageOptions& options) {
  return Averager(std::move(inputs), options).run();
}

}  // namespace fsdp::formats
