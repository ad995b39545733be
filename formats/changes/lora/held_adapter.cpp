// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/held_adapter.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/lora/base_names.h"
#include "formats/changes/lora/peft_names.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

// Returns the part of the key before peft's prefix of names; empty if there is no such prefix.
std::string model_prefix(const std::string& key) {
  const std::size_t at = key.find(kPeftPrefix);
  const bool begins = at != key.npos && (at == 0 || key[at - 1] == '.');
  return begins ? key.substr(0, at) : "";
}

// Returns the prefix without wrappers of the whole model: "app.model._orig_mod." -> "app.model.".
std::string without_outer_wrappers(std::string prefix) {
  constexpr std::string_view kOuter[] = {"module.", "_orig_mod.", "_fsdp_wrapped_module.",
                                         "_checkpoint_wrapped_module.", "_forward_module."};
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view word : kOuter) {
      if (prefix != word && !prefix.ends_with("." + std::string(word))) continue;
      prefix.resize(prefix.size() - word.size());
      again = true;
    }
  }
  return prefix;
}

// Returns whether a key has words of an adapter, as keys of optimizer states may have.
bool mentions_adapter(std::string_view key) {
  constexpr std::string_view kWords[] = {"lora_", "modules_to_save.", ".adapter.linear_",
                                         ".adapter.weight_magnitude"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return key.find(word) != key.npos; });
}

// Returns the name that a tensor of the base has without peft.
std::string name_without_peft(std::string_view name) {
  std::string own = "." + without_wrappers(name);
  for (const std::string_view word :
       {".base_layer.", ".original_module.", ".token_adapter.", ".to_wrap."}) {
    for (std::size_t at = own.find(word); at != own.npos; at = own.find(word))
      own.replace(at, word.size(), ".");
  }
  return own.substr(1);
}

// Returns the modules with matrices of torchtune, which names DoRA's parameter "magnitude".
std::set<std::string> modules_of_torchtune(const std::vector<Leaf>& leaves) {
  constexpr std::string_view kEnd = ".lora_a.weight";
  std::set<std::string> modules;
  for (const Leaf& leaf : leaves) {
    if (leaf.key.ends_with(kEnd)) modules.insert(leaf.key.substr(0, leaf.key.size() - kEnd.size()));
  }
  return modules;
}

}  // namespace

bool holds_adapter(const Value& content) {
  for (const Leaf& leaf : leaves_of(content)) {
    if (tensor_number(leaf.value) && is_adapter_key(leaf.key)) return true;
  }
  return false;
}

HeldAdapter held_adapter(const std::string& path, const Value& content) {
  std::vector<Leaf> leaves = leaves_of(content);
  std::set<std::string> fronts;
  for (const Leaf& leaf : leaves) {
    if (tensor_number(leaf.value) && is_adapter_key(leaf.key))
      fronts.insert(model_prefix(leaf.key));
  }
  if (fronts.empty())
    throw Error(ErrorCode::kMismatch, path + ": holds no adapter: no key contains lora_A");
  if (fronts.size() > 1) {
    throw Error(ErrorCode::kMismatch,
                cat(path, ": holds adapters below ", quote(*fronts.begin(), 200), " and ",
                    quote(*fronts.rbegin(), 200)),
                {Remedy::kChooseOne, {}});
  }
  HeldAdapter held;
  held.prefix = *fronts.begin();
  const std::string outer = without_outer_wrappers(held.prefix);
  const std::set<std::string> of_torchtune = modules_of_torchtune(leaves);
  std::vector<Leaf> kept;
  std::set<std::string> names;
  for (Leaf& leaf : leaves) {
    const auto number = tensor_number(leaf.value);
    const bool inside = leaf.key.starts_with(held.prefix);
    if (number && inside && is_adapter_key(leaf.key)) {
      held.names.push_back({leaf.key.substr(held.prefix.size()), *number});
      continue;
    }
    constexpr std::string_view kMagnitude = ".magnitude";
    if (number && inside && leaf.key.ends_with(kMagnitude)) {
      const std::string module = leaf.key.substr(0, leaf.key.size() - kMagnitude.size());
      if (of_torchtune.contains(module)) {
        held.names.push_back(
            {module.substr(held.prefix.size()) + ".lora_magnitude_vector", *number});
        continue;
      }
    }
    if (mentions_adapter(leaf.key)) {
      ++held.dropped;
      continue;
    }
    if (number && inside) {
      const std::string name = name_without_peft(leaf.key.substr(held.prefix.size()));
      if (leaf.key != outer + name) leaf.path = path_beside(leaf, outer + name);
      leaf.key = outer + name;
      ++held.tensors;
      if (!names.insert(leaf.key).second) {
        throw Error(ErrorCode::kRekeyCollision,
                    cat(path, ": two tensors get the name ", quote(leaf.key, 200),
                        " when peft's prefixes are removed"));
      }
    }
    kept.push_back(std::move(leaf));
  }
  if (!kept.empty()) held.base = nested(kept);
  return held;
}

}  // namespace fsdp::formats
