// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/input_content.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/families/checks/content_check.h"
#include "formats/state/content/content.h"
#include "formats/state/content/key_set.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/values_apart.h"

namespace fsdp::formats {
namespace {

// Limit of the names from which one is suggested in place of a missing one.
constexpr std::size_t kMaxCandidates = 2000;

KeySet keys_of(const Checkpoint& checkpoint) {
  std::vector<std::string> keys;
  for (const Index::EntryRef& ref : checkpoint.index().order) {
    keys.push_back(ref.is_tensor ? checkpoint.index().tensors[ref.position].key
                                 : checkpoint.index().values[ref.position].key);
  }
  return KeySet(std::move(keys));
}

// Returns the prefixes of the keys of optimizer states; "" stands for all keys.
std::vector<std::string> optimizer_prefixes(const Value& content) {
  std::vector<std::string> prefixes;
  for (const StatePart& part : state_parts_of(content)) {
    if (part.is_optimizer()) prefixes.push_back(part.path.empty() ? "" : joined(part.path) + ".");
  }
  return prefixes;
}

void open_content(InputContent& input, const InputChoice& choice) {
  input.content = pruned(content_of(*input.checkpoint), choice.wanted);
  if (!choice.with_optimizer) {
    const auto prefixes = optimizer_prefixes(input.content);
    input.content = with_leaves(input.content, [&](const Leaf& leaf) -> std::optional<Value> {
      const bool left_out = std::ranges::any_of(
          prefixes, [&](const std::string& prefix) { return leaf.key.starts_with(prefix); });
      if (!left_out) return leaf.value;
      if (tensor_number(leaf.value)) ++input.optimizer_tensors;
      return std::nullopt;
    });
  }
  check_before_copy(*input.checkpoint, input.content, choice.cancelled, LibraryTensors::kRefused,
                    *choice.team);
  for (Leaf& leaf : leaves_of(input.content)) {
    std::string key = leaf.key;
    if (!input.leaves.emplace(std::move(key), leaf).second) {
      throw Error(ErrorCode::kMismatch,
                  cat(input.path(), ": ", quote(leaf.key, 200), ": two entries have this name"));
    }
  }
  const bool any = std::ranges::any_of(
      input.leaves, [](const auto& leaf) { return tensor_number(leaf.second.value).has_value(); });
  if (any) return;
  const bool optimizer = input.optimizer_tensors != 0;
  throw Error(ErrorCode::kNotFound,
              input.path() + (optimizer ? ": holds only tensors of an optimizer"
                                        : ": no tensor is left to combine"),
              {optimizer ? Remedy::kTakeOptimizer : Remedy::kNone});
}

// Throws if `b` lacks keys that `a` has.
void check_lacking(const InputContent& a, const InputContent& b) {
  std::vector<const Leaf*> lacking;
  for (const auto& [key, leaf] : a.leaves) {
    if (!b.leaves.contains(key)) lacking.push_back(&leaf);
  }
  if (lacking.empty()) return;
  std::vector<std::string> candidates;
  for (const auto& [key, leaf] : b.leaves) {
    if (candidates.size() == kMaxCandidates) break;
    if (!a.leaves.contains(key)) candidates.push_back(key);
  }
  const Leaf& first = *lacking.front();
  const std::string near = nearest(first.key, candidates);
  std::string text = cat(b.path(), ": lacks ", quote(first.key, 200), ", which is ",
                         a.text_of(first), " in ", a.path());
  if (!near.empty()) text += cat("; its nearest key is ", quote(near, 200));
  if (lacking.size() > 1) text += cat("; ", lacking.size() - 1, " more are missing");
  throw Error(ErrorCode::kMismatch, text);
}

}  // namespace

std::string InputContent::text_of(const Leaf& leaf) const {
  const auto number = tensor_number(leaf.value);
  return number ? arrays::tensor_text(checkpoint->index().tensors[*number]) : "a value";
}

std::vector<InputContent> input_contents(std::vector<std::unique_ptr<Checkpoint>> checkpoints,
                                         const InputChoice& choice) {
  for (auto& checkpoint : checkpoints) {
    checkpoint = with_values_apart(std::move(checkpoint),
                                   {.wanted = choice.wanted, .only_with_tensors = true});
  }
  std::vector<KeySet> keys;
  for (const auto& checkpoint : checkpoints) keys.push_back(keys_of(*checkpoint));
  std::vector<InputContent> inputs;
  for (std::size_t i = 0; i < checkpoints.size(); ++i) {
    const auto apart_elsewhere = [&](const std::string& key) {
      return std::ranges::any_of(keys, [&](const KeySet& other) { return other.only_below(key); });
    };
    InputContent input;
    input.checkpoint = with_values_apart(std::move(checkpoints[i]), {.wanted = apart_elsewhere});
    open_content(input, choice);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

void check_same_keys(const std::vector<InputContent>& inputs) {
  const InputContent& first = inputs.front();
  for (const InputContent& other : inputs) {
    check_lacking(first, other);
    check_lacking(other, first);
    for (const auto& [key, leaf] : first.leaves) {
      const Leaf& beside = other.leaves.at(key);
      const auto a = tensor_number(leaf.value);
      const auto b = tensor_number(beside.value);
      const bool alike =
          a.has_value() == b.has_value() && (!a || first.checkpoint->index().tensors[*a].shape ==
                                                       other.checkpoint->index().tensors[*b].shape);
      if (alike) continue;
      throw Error(ErrorCode::kMismatch,
                  cat(other.path(), ": ", quote(key, 200), " is ", other.text_of(beside), ", but ",
                      first.text_of(leaf), " in ", first.path()));
    }
  }
}

}  // namespace fsdp::formats
