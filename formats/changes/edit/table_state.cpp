// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/table_state.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/rewrite/option_equality.h"
#include "formats/state/rewrite/parameter_order.h"
#include "formats/state/rewrite/rekey.h"

namespace fsdp::formats {
namespace {

class StateSearch {
 public:
  StateSearch(const Checkpoint& checkpoint, const Value& content)
      : checkpoint_(checkpoint), content_(content), parts_(state_parts_of(content)) {}

  std::vector<ParameterTensor> run(const std::vector<Leaf>& leaves,
                                   const std::vector<Leaf>& parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      positions_.emplace(name_of(parameters[i]), i);
    for (const StatePart& part : parts_) {
      if (!part.is_optimizer()) continue;
      try {
        add(part, leaves);
      } catch (const Error& error) {
        const std::string key = joined(part.path);
        throw error.in(checkpoint_.description().path + (key.empty() ? "" : ": " + quote(key)));
      }
    }
    return std::move(out_);
  }

 private:
  // Returns the name of a parameter in the model: its key below the model's part.
  std::string name_of(const Leaf& leaf) const {
    std::size_t levels = 0;
    for (const StatePart& part : parts_) {
      if (!part.is_optimizer() && part.holds(leaf.path) && part.path != leaf.path)
        levels = std::max(levels, part.path.size());
    }
    return joined({leaf.path.begin() + static_cast<std::ptrdiff_t>(levels), leaf.path.end()});
  }

  void add(const StatePart& part, const std::vector<Leaf>& leaves) {
    const bool flattened = part.kind == PartKind::kFlattenedOptimizer;
    OptionEquality same(checkpoint_);
    const OptimizerState optimizer = read_optimizer(
        *at_path(content_, part.path), flattened,
        [&](const Value& value) { return resolved(checkpoint_, value); }, std::ref(same));
    const auto model = model_order(checkpoint_, content_, "the model in the checkpoint");
    std::map<std::string, std::string> names;
    if (optimizer.form == OptimizerForm::kIds) {
      names = names_of_ids(optimizer, model);
    } else {
      for (const auto& group : optimizer.groups) {
        for (const std::string& name : group.params) names.emplace(name, name);
      }
    }
    if (model) check_shapes(optimizer, names, *model);
    for (const Leaf& leaf : leaves) {
      if (!part.holds(leaf.path) || part.path == leaf.path || !tensor_number(leaf.value)) continue;
      const auto key = state_key(leaf.path, part.path.size(), flattened);
      const auto name = key ? names.find(*key) : names.end();
      if (name == names.end()) continue;
      const auto at = positions_.find(name->second);
      if (at != positions_.end()) out_.push_back({leaf, at->second});
    }
  }

  // Returns the name or id that a leaf of an optimizer is state of; nothing for options.
  static std::optional<std::string> state_key(const KeyPath& path, std::size_t levels,
                                              bool flattened) {
    constexpr std::string_view kState = "state.";
    const auto* first = std::get_if<std::string>(&path[levels]);
    if (first == nullptr) return std::nullopt;
    if (!flattened) {
      if (*first != "state" || path.size() < levels + 3) return std::nullopt;
      return joined({path[levels + 1]});
    }
    const std::size_t dot = first->rfind('.');
    if (!first->starts_with(kState) || dot <= kState.size()) return std::nullopt;
    return first->substr(kState.size(), dot - kState.size());
  }

  const Checkpoint& checkpoint_;
  const Value& content_;
  std::vector<StatePart> parts_;
  std::map<std::string, std::size_t> positions_;  // of parameters, by their names
  std::vector<ParameterTensor> out_;
};

}  // namespace

std::vector<StatePart> optimizer_parts(const Value& content) {
  std::vector<StatePart> parts = state_parts_of(content);
  std::erase_if(parts, [](const StatePart& part) { return !part.is_optimizer(); });
  return parts;
}

bool lies_in(const Leaf& leaf, const std::vector<StatePart>& parts) {
  return std::ranges::any_of(parts, [&](const StatePart& part) { return part.holds(leaf.path); });
}

std::vector<ParameterTensor> states_of(const Checkpoint& checkpoint, const Value& content,
                                       const std::vector<Leaf>& leaves,
                                       const std::vector<Leaf>& parameters) {
  return StateSearch(checkpoint, content).run(leaves, parameters);
}

}  // namespace fsdp::formats
