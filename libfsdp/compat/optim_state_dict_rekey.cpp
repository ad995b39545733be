// SPDX-License-Identifier: Apache-2.0
// Replaces names of parameters by their numbers in an optimizer's state dict, and back.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "formats/bytes/base/text.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/state/load_problems.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

using formats::cat;

// Names in the order of the numbers.
class Numbering {
 public:
  Numbering(const torch::nn::Module& model, const torch::optim::Optimizer* optimizer) {
    std::unordered_map<const c10::TensorImpl*, std::vector<std::string>> names_of;
    std::vector<const c10::TensorImpl*> order;
    for (const auto& item : model.named_parameters()) {
      auto& names = names_of[item.value().unsafeGetTensorImpl()];
      if (names.empty()) order.push_back(item.value().unsafeGetTensorImpl());
      names.push_back(item.key());
    }
    if (optimizer != nullptr) {
      order.clear();
      for (const auto& group : optimizer->param_groups()) {
        for (const at::Tensor& tensor : group.params()) {
          FSDP_CHECK(names_of.contains(tensor.unsafeGetTensorImpl()), "parameter ", order.size(),
                     " of the optimizer is not in the model");
          order.push_back(tensor.unsafeGetTensorImpl());
        }
      }
    }
    for (const c10::TensorImpl* tensor : order) {
      const auto& names = names_of.at(tensor);
      for (const std::string& name : names)
        numbers_.emplace(name, static_cast<std::int64_t>(names_.size()));
      names_.push_back(names.front());
    }
  }

  // Returns the key of the other type; null if there is none.
  std::optional<StateKey> other(const StateKey& key) const {
    if (const auto* name = std::get_if<std::string>(&key)) {
      const auto found = numbers_.find(*name);
      if (found == numbers_.end()) return std::nullopt;
      return found->second;
    }
    const auto number = std::get<std::int64_t>(key);
    if (number < 0 || number >= static_cast<std::int64_t>(names_.size())) return std::nullopt;
    return names_[static_cast<std::size_t>(number)];
  }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int64_t> numbers_;
};

StateKey key_in(const StateValue& value) {
  if (const auto* name = value.as_string()) return *name;
  FSDP_CHECK(value.as_int() != nullptr, "expected a name or a number of a parameter, found ",
             value.kind_name());
  return *value.as_int();
}

class Rekey {
 public:
  Rekey(OptimStateKeyType wanted, Numbering numbering)
      : by_name_(wanted == OptimStateKeyType::kParamName), numbering_(std::move(numbering)) {}

  StateDict run(const StateDict& given) {
    StateDict states;
    for (const auto& [key, value] : given.at("state").dict().entries())
      states.set(converted(key), value);
    StateList groups;
    for (const StateValue& group : list_at(given, "param_groups")) {
      std::vector<StateKey> keys;
      for (const StateValue& value : list_at(group.dict(), "params"))
        keys.push_back(converted(key_in(value)));
      std::sort(keys.begin(), keys.end());
      StateList params;
      for (const StateKey& key : keys)
        std::visit([&](const auto& any) { params.emplace_back(any); }, key);
      StateDict converted_group = group.dict();
      converted_group.set("params", std::move(params));
      groups.emplace_back(std::move(converted_group));
    }
    problems_.check("the optimizer's state dict does not belong to this model");
    StateDict result = given;
    result.set("state", std::move(states));
    result.set("param_groups", std::move(groups));
    return result;
  }

 private:
  StateKey converted(const StateKey& key) {
    if (std::holds_alternative<std::string>(key) == by_name_) {
      add(key, " is not a key of the same type as the others");
      return key;
    }
    const std::optional<StateKey> other = numbering_.other(key);
    if (!other) add(key, " is not in the model");
    return other.value_or(key);
  }

  // Reports each key once: most occur in two places.
  void add(const StateKey& key, const char* what) {
    if (told_.insert(key).second) problems_.add("parameter " + formats::quote(text_of(key)) + what);
  }

  const bool by_name_;
  const Numbering numbering_;
  std::unordered_set<StateKey> told_;
  LoadProblems problems_;
};

}  // namespace

StateDict rekey_optim_state_dict(const StateDict& optim_state_dict, OptimStateKeyType key_type,
                                 const torch::nn::Module& model,
                                 const torch::optim::Optimizer* optimizer) {
  bool any_other = false;
  const auto look = [&](const StateKey& key) {
    const bool name = std::holds_alternative<std::string>(key);
    any_other = any_other || name != (key_type == OptimStateKeyType::kParamName);
  };
  for (const auto& [key, _] : optim_state_dict.at("state").dict().entries()) look(key);
  for (const StateValue& group : list_at(optim_state_dict, "param_groups")) {
    for (const StateValue& value : list_at(group.dict(), "params")) look(key_in(value));
  }
  if (!any_other) return optim_state_dict;
  return Rekey(key_type, Numbering(model, optimizer)).run(optim_state_dict);
}

}  // namespace fsdp
