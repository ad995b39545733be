// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/wrap_policy.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
namespace {

using torch::nn::Module;

thread_local int open_wrap_scopes = 0;

// Records which modules are marked.  Modules do not report their end: the weak pointer of a mark
// shows it, and keeps other modules from getting the address.
class Marks {
 public:
  void add(const std::shared_ptr<Module>& module) {
    const std::lock_guard lock(mutex_);
    if (marks_.size() >= sweep_at_) {
      std::erase_if(marks_, [](const auto& mark) { return mark.second.expired(); });
      sweep_at_ = std::max(kFirstSweep, 2 * marks_.size());
    }
    marks_.insert_or_assign(module.get(), module);
  }

  bool contains(const Module& module) const {
    const std::lock_guard lock(mutex_);
    const auto mark = marks_.find(&module);
    return mark != marks_.end() && !mark->second.expired();
  }

 private:
  static constexpr std::size_t kFirstSweep = 64;

  mutable std::mutex mutex_;
  std::unordered_map<const Module*, std::weak_ptr<Module>> marks_;
  std::size_t sweep_at_ = kFirstSweep;
};

Marks& marks() {
  static Marks instance;
  return instance;
}

using TensorSet = std::unordered_set<const c10::TensorImpl*>;

// One walk over the tree, children before parents.
class UnitChooser {
 public:
  UnitChooser(const WrapPolicy& policy, const std::vector<const Module*>& ignored,
              const std::vector<at::Tensor>& ignored_parameters)
      : policy_(policy), ignored_(ignored.begin(), ignored.end()) {
    for (const auto& parameter : ignored_parameters) {
      ignored_parameters_.insert(parameter.unsafeGetTensorImpl());
    }
    for (const auto* module : ignored) {
      for (const auto& parameter : module->parameters()) {
        ignored_parameters_.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }

  // Returns how many elements the units at and below `module` have.  As in PyTorch, a parameter
  // that several of them share counts in each.
  std::int64_t choose(const Module& module, const std::string& name, bool is_root) {
    const auto numel = counted_numel(module);
    if (!policy_(module, /*recurse=*/true, numel)) return 0;
    // Inserts the module before those below it, in the order of named_modules().
    const auto place = static_cast<std::ptrdiff_t>(units_.size());
    std::int64_t wrapped_numel = 0;
    for (const auto& child : module.named_children()) {
      const auto& submodule = *child.value();
      if (ignored_.contains(&submodule) || !seen_.insert(&submodule).second) continue;
      const auto child_name = is_root ? child.key() : name + '.' + child.key();
      wrapped_numel += choose(submodule, child_name, /*is_root=*/false);
    }
    if (is_root || !policy_(module, /*recurse=*/false, numel - wrapped_numel)) {
      return wrapped_numel;
    }
    units_.insert(units_.begin() + place, name);
    return numel;
  }

  std::vector<std::string> units() && { return std::move(units_); }

 private:
  std::int64_t counted_numel(const Module& module) const {
    TensorSet counted = ignored_parameters_;
    std::int64_t numel = 0;
    for (const auto& parameter : module.parameters()) {
      if (counted.insert(parameter.unsafeGetTensorImpl()).second) numel += parameter.numel();
    }
    return numel;
  }

  const WrapPolicy& policy_;
  const std::unordered_set<const Module*> ignored_;
  TensorSet ignored_parameters_;
  std::unordered_set<const Module*> seen_;
  std::vector<std::string> units_;
};

}  // namespace

WrapPolicy custom_policy(ModulePredicate is_unit) {
  FSDP_CHECK(is_unit, "custom_policy: expected a function, found an empty one");
  return [is_unit = std::move(is_unit)](const Module& module, bool recurse, std::int64_t) {
    return recurse || is_unit(module);
  };
}

WrapPolicy size_based_auto_wrap_policy(std::int64_t min_num_params, ModulePredicate is_leaf,
                                       ModulePredicate is_excluded) {
  if (!is_leaf) is_leaf = instances_of<torch::nn::MultiheadAttention>();
  if (!is_excluded) is_excluded = instances_of<torch::nn::ModuleList, torch::nn::ModuleDict>();
  return [min_num_params, is_leaf = std::move(is_leaf), is_excluded = std::move(is_excluded)](
             const Module& module, bool recurse, std::int64_t nonwrapped_numel) {
    if (nonwrapped_numel < min_num_params) return false;
    return recurse ? !is_leaf(module) : !is_excluded(module);
  };
}

WrapPolicy always_wrap_policy() {
  return [](const Module&, bool, std::int64_t) { return true; };
}

WrapPolicy wrapped_policy() {
  return custom_policy([](const Module& module) { return marks().contains(module); });
}

WrapPolicy any_of(std::vector<WrapPolicy> policies) {
  for (const auto& policy : policies) {
    FSDP_CHECK(policy, "any_of: expected wrap policies, found an empty function among them");
  }
  return [policies = std::move(policies)](const Module& module, bool recurse,
                                          std::int64_t nonwrapped_numel) {
    return std::any_of(policies.begin(), policies.end(), [&](const WrapPolicy& policy) {
      return policy(module, recurse, nonwrapped_numel);
    });
  };
}

EnableWrap::EnableWrap() {
  ++open_wrap_scopes;
}

EnableWrap::~EnableWrap() {
  --open_wrap_scopes;
}

void mark_wrapped(const std::shared_ptr<Module>& module) {
  if (open_wrap_scopes == 0) return;
  FSDP_CHECK(module != nullptr, "wrap: expected a module, found an empty holder");
  marks().add(module);
}

std::vector<std::string> unit_names(const Module& root, const WrapPolicy& policy,
                                    const std::vector<const Module*>& ignored,
                                    const std::vector<at::Tensor>& ignored_parameters) {
  if (!policy || std::find(ignored.begin(), ignored.end(), &root) != ignored.end()) return {};
  UnitChooser chooser(policy, ignored, ignored_parameters);
  chooser.choose(root, "", /*is_root=*/true);
  return std::move(chooser).units();
}

}  // namespace fsdp
