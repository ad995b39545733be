// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/loose_states.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kStatePart = "state.";
constexpr std::size_t kStateKeyText = 200;

// States of the optimizers of PyTorch, bitsandbytes, torchao and transformers.
constexpr std::array<std::string_view, 29> kStateNames = {"step",
                                                          "exp_avg",
                                                          "exp_avg_sq",
                                                          "max_exp_avg_sq",
                                                          "momentum_buffer",
                                                          "sum",
                                                          "square_avg",
                                                          "grad_avg",
                                                          "acc_delta",
                                                          "ax",
                                                          "eta",
                                                          "mu",
                                                          "mu_product",
                                                          "exp_inf",
                                                          "prev",
                                                          "step_size",
                                                          "exp_avg_sq_row",
                                                          "exp_avg_sq_col",
                                                          "exp_avg_diff",
                                                          "state1",
                                                          "state2",
                                                          "absmax1",
                                                          "absmax2",
                                                          "qmap1",
                                                          "qmap2",
                                                          "master_param",
                                                          "row_var",
                                                          "col_var",
                                                          "variance"};

// Returns what follows the part `state` of a key; empty if there is none.  A part that only ends so
// ("my_state.") does not count.
std::string_view behind_state(std::string_view key) {
  for (std::size_t at = key.find(kStatePart); at != key.npos; at = key.find(kStatePart, at + 1)) {
    if (at == 0 || key[at - 1] == '.') return key.substr(at + kStatePart.size());
  }
  return {};
}

bool is_state_name(std::string_view name) {
  return std::ranges::find(kStateNames, name) != kStateNames.end();
}

bool is_numbered_state(std::string_view rest) {
  const std::size_t dot = rest.find('.');
  return dot != rest.npos && dot != 0 &&
         rest.substr(0, dot).find_first_not_of("0123456789") == rest.npos &&
         is_state_name(rest.substr(dot + 1));
}

// `names`: keys of parameters, and what follows each dot in them.
bool is_named_state(std::string_view rest, const std::unordered_set<std::string_view>& names) {
  const std::size_t first = rest.find('.');
  if (first == rest.npos) return false;
  // Megatron-Core's order: state.<name of the state>.<parameter>.
  if (is_state_name(rest.substr(0, first)) && names.contains(rest.substr(first + 1))) return true;
  const std::size_t last = rest.rfind('.');
  const std::string_view parameter = rest.substr(0, last);
  // A name of a single part may mean other things.
  const bool certain =
      parameter.find('.') != parameter.npos || is_state_name(rest.substr(last + 1));
  return certain && names.contains(parameter);
}

bool begins_at(const Leaf& leaf, const StatePart& part) {
  return leaf.path.size() > part.path.size() &&
         std::equal(part.path.begin(), part.path.end(), leaf.path.begin());
}

// Returns the keys of the tensors outside the optimizers that can be read.
std::vector<std::string> tensors_outside(const Value& content) {
  std::vector<StatePart> optimizers = state_parts_of(content);
  std::erase_if(optimizers, [](const StatePart& part) { return !part.is_optimizer(); });
  std::vector<std::string> keys;
  for (const Leaf& leaf : leaves_of(content)) {
    const bool inside = std::ranges::any_of(
        optimizers, [&](const StatePart& part) { return begins_at(leaf, part); });
    if (!inside && is_tensor(leaf.value)) keys.push_back(leaf.key);
  }
  return keys;
}

}  // namespace

std::optional<std::string> loose_state(const Value& content) {
  const std::vector<std::string> keys = tensors_outside(content);
  std::vector<std::pair<const std::string*, std::string_view>> states;
  for (const std::string& key : keys) {
    const std::string_view rest = behind_state(key);
    if (is_numbered_state(rest)) return key;
    if (!rest.empty()) states.emplace_back(&key, rest);
  }
  if (states.empty()) return std::nullopt;
  std::unordered_set<std::string_view> names;
  for (const std::string& key : keys) {
    if (!behind_state(key).empty()) continue;
    names.insert(key);
    for (std::size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', dot + 1))
      names.insert(std::string_view(key).substr(dot + 1));
  }
  for (const auto& [key, rest] : states) {
    if (is_named_state(rest, names)) return *key;
  }
  return std::nullopt;
}

void refuse_loose_states(const Checkpoint& source, const Value& content) {
  const auto key = loose_state(content);
  if (!key) return;
  const std::string front =
      key->substr(0, key->size() - behind_state(*key).size() - kStatePart.size());
  throw Error(ErrorCode::kUnsupported,
              cat(source.description().path, ": ", quote(*key, kStateKeyText),
                  " is a state of an optimizer whose param groups are missing, so what it belongs "
                  "to is unknown"),
              {Remedy::kExclude, (front.empty() ? std::string(kStatePart) : front) + "**"});
}

}  // namespace fsdp::formats
