// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/state_parts.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

// Levels of containers that are searched for parts: {"app": {"model": ...}} is one level.
constexpr std::size_t kMaxLevels = 4;

// State that modules store beside tensors: get_extra_state may return any value.
bool is_extra_state(std::string_view name) {
  return name == "_extra_state" || name.ends_with("._extra_state");
}

// States of random number generators are tensors that trainers put at the top level.
bool is_generator_state(const std::string& name, const Value& value) {
  if (name.find("rng") == std::string::npos) return false;
  const auto tensor = dense_tensor(value);
  return tensor && tensor->dtype == DType::kUInt8;
}

const Value* member(std::span<const Value::Entry> entries, std::string_view name) {
  for (const auto& [key, value] : entries) {
    if (key.as_string() != nullptr && *key.as_string() == name) return &value;
  }
  return nullptr;
}

bool is_optimizer(std::span<const Value::Entry> entries) {
  const Value* groups = member(entries, "param_groups");
  if (groups == nullptr) return false;
  const Value* state = member(entries, "state");
  // An empty state that is one value of a folder was not read; it is a mapping too.
  const bool mapping = state != nullptr &&
                       (mapping_entries(*state).has_value() || state->kind() == ValueKind::kOpaque);
  // A folder of PyTorch before 2.4 holds the groups as one value, which has not been read.
  if (groups->kind() == ValueKind::kOpaque) return mapping;
  if (!is_sequence(*groups)) return false;
  const auto items = groups->items();
  // An empty state leaves no trace in a folder.
  if (state == nullptr && items.empty()) return false;
  return (state == nullptr || mapping) && std::ranges::all_of(items, [&](const Value& group) {
           const auto options = mapping_entries(group);
           return options && member(*options, "params") != nullptr;
         });
}

bool is_flattened_optimizer(std::span<const Value::Entry> entries) {
  bool options = false;
  for (const auto& [key, value] : entries) {
    const std::string* name = key.as_string();
    if (name == nullptr) return false;
    if (name->starts_with("param_groups.")) {
      options = true;
    } else if (!name->starts_with("state.")) {
      return false;
    }
  }
  return options;
}

bool is_model(std::span<const Value::Entry> entries) {
  bool tensors = false;
  for (const auto& [key, value] : entries) {
    if (key.as_string() == nullptr) return false;
    if (is_tensor(value)) {
      // States of generators alone are not weights.
      tensors = tensors || key.as_string()->find("rng") == std::string::npos;
    } else if (!is_extra_state(*key.as_string())) {
      return false;
    }
  }
  return tensors;
}

PartKind kind_of(std::span<const Value::Entry> entries) {
  if (is_optimizer(entries)) return PartKind::kOptimizer;
  if (is_flattened_optimizer(entries)) return PartKind::kFlattenedOptimizer;
  if (is_model(entries)) return PartKind::kModel;
  return PartKind::kOther;
}

std::optional<PathStep> step_of(const Value& key) {
  if (key.as_string() != nullptr) return *key.as_string();
  if (key.as_int()) return std::to_string(*key.as_int());
  return std::nullopt;
}

class Finder {
 public:
  std::vector<StatePart> run(const Value& root) {
    if (!add(root, 0)) out_.push_back({PartKind::kOther, {}});
    return std::move(out_);
  }

 private:
  // Adds the parts that `value` is or contains; returns false if there are none.
  bool add(const Value& value, std::size_t level) {
    if (level > kMaxLevels) return false;
    const auto entries = mapping_entries(value);
    if (entries) {
      const PartKind kind = kind_of(*entries);
      if (kind != PartKind::kOther) {
        out_.push_back({kind, at_});
        return true;
      }
    }
    const std::size_t first = out_.size();
    bool found = false;
    if (entries) {
      for (const auto& [key, child] : *entries) {
        if (const auto step = step_of(key)) found |= add_child(*step, child, level);
      }
      if (level == 0) found |= add_top_level_model(*entries, first);
    } else if (is_sequence(value)) {
      std::int64_t position = 0;
      for (const Value& child : value.items()) found |= add_child(position++, child, level);
    }
    // A value without any part stays undivided.
    if (!found) out_.resize(first);
    return found;
  }

  bool add_child(PathStep step, const Value& child, std::size_t level) {
    at_.push_back(std::move(step));
    const bool found = add(child, level + 1);
    if (!found) out_.push_back({PartKind::kOther, at_});
    at_.pop_back();
    return found;
  }

  // Adds the tensors at the top level as a model if no member is a model.
  bool add_top_level_model(std::span<const Value::Entry> entries, std::size_t first) {
    const auto parts = out_.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::any_of(parts, out_.end(), [](const auto& p) { return p.kind == PartKind::kModel; }))
      return false;
    std::vector<PathStep> names;
    for (const auto& [key, value] : entries) {
      if (key.as_string() == nullptr) continue;
      const std::string& name = *key.as_string();
      if ((is_tensor(value) && !is_generator_state(name, value)) || is_extra_state(name))
        names.emplace_back(name);
    }
    const bool tensors = std::ranges::any_of(
        names, [](const auto& n) { return !is_extra_state(std::get<std::string>(n)); });
    if (!tensors) return false;
    std::size_t next = 0;
    std::erase_if(out_, [&](const StatePart& part) {
      const bool taken = part.kind == PartKind::kOther && part.path.size() == 1 &&
                         next < names.size() && part.path[0] == names[next];
      if (taken) ++next;
      return taken;
    });
    out_.insert(out_.begin(), {PartKind::kModel, {}});
    return true;
  }

  KeyPath at_;
  std::vector<StatePart> out_;
};

}  // namespace

std::vector<StatePart> state_parts_of(const Value& root) {
  return Finder().run(root);
}

}  // namespace fsdp::formats
