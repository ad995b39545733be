// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/framework_content.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/rewrite/rekey.h"

namespace fsdp::formats {
namespace {

// The version of the output if the source is not a Lightning checkpoint: loading requires it, to
// migrate older files.
constexpr std::string_view kLightningVersion = "2.0.0";

std::string key_text(const Value& key) {
  if (key.as_string() != nullptr) return *key.as_string();
  return key.as_int() ? std::to_string(*key.as_int()) : std::string();
}

const Value& part_at(const Value& root, const KeyPath& path) {
  const Value* const part = at_path(root, path);
  if (part == nullptr)
    throw Error(ErrorCode::kKey, cat(quote(joined(path), 200), ": is not there"));
  return *part;
}

// Returns whether the member `top` consists of parts only, such as a list of optimizers.
bool holds_parts_alone(const Value& root, const std::string& top,
                       const std::vector<StatePart>& parts) {
  const Value member = part_at(root, {top});
  const std::size_t children =
      mapping_entries(member) ? mapping_entries(member)->size() : member.items().size();
  const auto within = std::ranges::count_if(parts, [&](const StatePart& part) {
    return part.path.size() == 2 && part.path[0] == PathStep(top) && part.kind != PartKind::kOther;
  });
  return static_cast<std::size_t>(within) == children;
}

void set_default(std::vector<Value::Entry>& entries, std::string_view key, Value value) {
  const bool there = std::ranges::any_of(
      entries, [&](const Value::Entry& entry) { return key_text(entry.first) == key; });
  if (!there) entries.emplace_back(Value::string(std::string(key)), std::move(value));
}

const Value& only_model(const TrainerState& state) {
  if (state.models.size() != 1) {
    throw Error(ErrorCode::kUnsupported,
                cat("Lightning's layout has one model, the checkpoint ", state.models.size()),
                {Remedy::kChooseOne});
  }
  return state.models[0];
}

}  // namespace

TrainerState trainer_state(const Value& root) {
  const std::vector<StatePart> parts = state_parts_of(root);
  TrainerState state;
  std::vector<std::string> taken;  // top-level keys that hold parts
  bool bare = false;               // model keys are at the top level
  for (const StatePart& part : parts) {
    if (part.kind == PartKind::kOther) continue;
    if (part.kind == PartKind::kFlattenedOptimizer) {
      throw Error(ErrorCode::kUnsupported,
                  cat(quote(joined(part.path), 200), ": is a flattened optimizer"));
    }
    if (part.path.empty()) {
      if (part.kind == PartKind::kOptimizer) {
        state.optimizers.push_back(root);
        return state;
      }
      bare = true;
      continue;
    }
    const std::string top = std::get<std::string>(part.path[0]);
    if (part.path.size() > 2 || (part.path.size() == 2 && !holds_parts_alone(root, top, parts))) {
      throw Error(ErrorCode::kUnsupported,
                  cat(quote(joined(part.path), 200),
                      ": lies beside other values, which have no place in the output"));
    }
    if (std::ranges::find(taken, top) == taken.end()) taken.push_back(top);
    (part.kind == PartKind::kModel ? state.models : state.optimizers)
        .push_back(part_at(root, part.path));
  }
  std::vector<Value::Entry> model;
  const auto entries = mapping_entries(root);
  if (!entries) return state;
  for (const auto& [key, value] : *entries) {
    const std::string name = key_text(key);
    if (std::ranges::find(taken, name) != taken.end()) continue;
    const bool of_model =
        bare && (parts.size() == 1 || is_tensor(value) || name.ends_with("_extra_state"));
    (of_model ? model : state.rest).emplace_back(key, value);
  }
  if (bare) state.models.insert(state.models.begin(), Value::dict(std::move(model)));
  return state;
}

TrainerState trainer_state_of(const Checkpoint& source, const Value& content, OptimizerForm form) {
  const std::vector<StatePart> parts = state_parts_of(content);
  const bool optimizers =
      std::ranges::any_of(parts, [](const StatePart& part) { return part.is_optimizer(); });
  if (!optimizers) return trainer_state(content);
  try {
    return trainer_state(rekey_content(source, content, {form, std::nullopt}).content);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kRekeyAmbiguous) throw;
    throw Error(error.code(), error.what(), {Remedy::kRekeyFirst});
  }
}

Value lightning_sharded(const TrainerState& state, const std::string& model_key) {
  std::vector<Value::Entry> entries;
  entries.emplace_back(Value::string(model_key), only_model(state));
  for (std::size_t i = 0; i < state.optimizers.size(); ++i)
    entries.emplace_back(Value::string(cat("optimizer_", i)), state.optimizers[i]);
  return Value::dict(std::move(entries));
}

Value lightning_meta(const TrainerState& state) {
  std::vector<Value::Entry> entries = state.rest;
  set_default(entries, "epoch", Value::integer(0));
  set_default(entries, "global_step", Value::integer(0));
  set_default(entries, "pytorch-lightning_version", Value::string(std::string(kLightningVersion)));
  return Value::dict(std::move(entries));
}

Value lightning_file(const TrainerState& state) {
  const Value meta = lightning_meta(state);
  std::vector<Value::Entry> entries(meta.entries().begin(), meta.entries().end());
  entries.emplace_back(Value::string("state_dict"), only_model(state));
  entries.emplace_back(Value::string("optimizer_states"), Value::list(state.optimizers));
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats
