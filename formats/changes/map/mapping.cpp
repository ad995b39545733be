// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/mapping.h"

#include <algorithm>
#include <map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/map/map_optimizer.h"
#include "formats/changes/map/scaling.h"
#include "formats/state/content/content.h"
#include "formats/state/content/loose_states.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;

class Mapper {
 public:
  Mapper(const Checkpoint& source, const Value& content, const MapOptions& options)
      : source_(source),
        content_(content),
        options_(options),
        rules_(options.rules),
        parts_(state_parts_of(content)),
        made_(std::make_unique<arrays::ComputedTensors>(source)) {}

  Mapped run() {
    refuse_loose_states(source_, content_);
    const bool model = std::ranges::any_of(
        parts_, [](const StatePart& part) { return part.kind == PartKind::kModel; });
    if (!model)
      throw Error(ErrorCode::kKey, source_.description().path + ": holds no model's state dict");
    out_.content = rest();
    for (const StatePart& part : parts_) {
      if (part.kind == PartKind::kModel) map_model(part);
    }
    for (const StatePart& part : parts_) {
      if (part.is_optimizer()) map_optimizer(part);
    }
    out_.checkpoint = std::move(made_);
    return std::move(out_);
  }

 private:
  // Returns the content with references to the new checkpoint, except in models and optimizers.
  Value rest() {
    return with_leaves(content_, [&](const Leaf& leaf) -> std::optional<Value> {
      const StatePart* part = part_of(leaf.path);
      if (part != nullptr && part->is_optimizer() && options_.drop_optimizer) return std::nullopt;
      const auto number = tensor_number(leaf.value);
      if (!number || (part != nullptr && part->kind != PartKind::kOther)) return leaf.value;
      return made_->shared(leaf.path, made_->source_array(*number));
    });
  }

  // Returns the innermost part that a path lies in; nullptr if there is none.  A part at the top
  // level, whose path is empty, has what lies in no other part.
  const StatePart* part_of(const KeyPath& path) const {
    const StatePart* found = nullptr;
    for (const StatePart& part : parts_) {
      if (part.holds(path) && (found == nullptr || part.path.size() > found->path.size()))
        found = &part;
    }
    return found;
  }

  void map_model(const StatePart& part) {
    const Value model = part.path.empty() ? content_ : *at_path(content_, part.path);
    Names names;
    std::vector<Value::Entry> others;  // of the top level: other parts
    for (const auto& [key, value] : members_of(model)) {
      KeyPath path = part.path;
      path.emplace_back(*key.as_string());
      if (part_of(path)->path != part.path) {
        others.emplace_back(key, value);
      } else {
        names.all.push_back(*key.as_string());
        names.values.emplace(*key.as_string(), value);
      }
    }
    ParameterValues::Shapes shapes;
    for (const std::string& name : names.all) {
      if (const auto number = tensor_number(names.values.at(name)))
        shapes.emplace_back(name, source_.index().tensors[*number].shape);
    }
    ParameterValues parameters(rules_, options_.given, shapes);
    rules_.set_offsets(std::ref(parameters));
    auto uses = rule_uses(rules_, names.all);
    TargetNames targets(rules_);
    std::vector<Value::Entry> entries;
    for (RuleUse& use : uses) {
      try {
        map_use(part, names, parameters, use, entries);
      } catch (const Error& error) {
        throw failed(error, use, names);
      }
      for (const std::string& name : use.targets) targets.add(name, use);
    }
    for (const auto& [name, value] : parameters.known()) out_.parameters.emplace_back(name, value);
    if (part.path.empty()) {
      // rest() renewed the references of these parts.
      for (const auto& [key, value] : others) {
        if (const Value* renewed = member(out_.content, *key.as_string()))
          entries.emplace_back(key, *renewed);
      }
    }
    out_.content = with_value_at(out_.content, part.path, Value::dict(std::move(entries)));
    models_.push_back({std::move(uses), {shapes.begin(), shapes.end()}});
  }

  struct Names {
    std::vector<std::string> all;  // in the checkpoint's order
    std::map<std::string, Value> values;
  };

  // Sets the targets if the rule spreads.
  void map_use(const StatePart& part, const Names& names, ParameterValues& parameters, RuleUse& use,
               std::vector<Value::Entry>& entries) {
    const Rule& rule = rules_.rules[use.rule];
    std::vector<Array> arrays;
    MapStep step;
    step.line = rule.line;
    for (const Operation& operation : rule.operations)
      step.operations.emplace_back(operation_name(operation.kind));
    for (const std::string& name : use.sources) {
      const Value& value = names.values.at(name);
      const auto number = tensor_number(value);
      if (!number) {
        move_value(rule, use, value, entries);
        return;
      }
      arrays.push_back(made_->source_array(*number));
      step.sources.push_back({name, arrays.back().dtype, arrays.back().shape});
    }
    if (!rule.to.empty()) {
      arrays = apply_rule(rule, std::move(arrays), std::ref(parameters));
      use.targets = target_names(rules_, use, arrays.size());
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        KeyPath path = part.path;
        path.emplace_back(use.targets[i]);
        entries.emplace_back(Value::string(use.targets[i]),
                             made_->shared(std::move(path), arrays[i]));
        step.targets.push_back({use.targets[i], arrays[i].dtype, arrays[i].shape});
      }
    }
    out_.steps.push_back(std::move(step));
  }

  static void move_value(const Rule& rule, const RuleUse& use, const Value& value,
                         std::vector<Value::Entry>& entries) {
    if (rule.to.empty()) return;
    if (!rule.operations.empty())
      throw Error(ErrorCode::kType, "is a value, and only tensors go through operations");
    entries.emplace_back(Value::string(use.targets.at(0)), value);
  }

  // Returns the error of a rule's operations, with its place and its tensors.
  Error failed(const Error& error, const RuleUse& use, const Names& names) const {
    const Rule& rule = rules_.rules[use.rule];
    std::string sources;
    constexpr std::size_t kMaxListed = 4;
    for (std::size_t i = 0; i < use.sources.size() && i < kMaxListed; ++i) {
      const auto number = tensor_number(names.values.at(use.sources[i]));
      sources += cat(i == 0 ? "" : ", ", quote(use.sources[i], 200),
                     number ? " " + shape_text(source_.index().tensors[*number].shape) : "");
    }
    if (use.sources.size() > kMaxListed) sources += ", ...";
    return error.in(place_of(rules_, rule) + ": " + sources);
  }

  void map_optimizer(const StatePart& part) {
    if (options_.drop_optimizer) {
      ++out_.dropped_optimizers;
      return;
    }
    if (models_.size() != 1) {
      throw Error(ErrorCode::kUnsupported,
                  cat(source_.description().path, ": ", quote(joined(part.path)),
                      ": the optimizer may belong to any of ", models_.size(), " models"),
                  {Remedy::kChooseOne});
    }
    const ParameterValues::Shapes shapes(models_[0].shapes.begin(), models_[0].shapes.end());
    try {
      ParameterValues parameters(rules_, options_.given, shapes);
      const Value mapped = map_optimizer_state(source_, part, *at_path(content_, part.path), rules_,
                                               models_[0], std::ref(parameters), *made_);
      out_.content = with_value_at(out_.content, part.path, mapped);
    } catch (const Error& error) {
      throw error.in(cat(source_.description().path, ": ", quote(joined(part.path))));
    }
    ++out_.optimizers;
  }

  const Checkpoint& source_;
  const Value& content_;
  const MapOptions& options_;
  Rules rules_;  // with the offsets of the model
  std::vector<StatePart> parts_;
  std::unique_ptr<arrays::ComputedTensors> made_;
  std::vector<MappedModel> models_;
  Mapped out_;
};

// Applies an operation to each of `parts` equal runs of the arrays.
std::vector<Array> applied_in_parts(const Operation& operation, std::vector<Array> arrays,
                                    std::size_t parts, std::size_t results,
                                    const ParameterValue& parameter) {
  if (parts <= 1) return applied(operation, std::move(arrays), results, parameter);
  if (arrays.empty() || arrays.size() % parts != 0) {
    throw Error(ErrorCode::kShape, cat(operation_name(operation.kind), " takes ", parts,
                                       " times as many tensors, not ", arrays.size()));
  }
  const auto size = static_cast<std::ptrdiff_t>(arrays.size() / parts);
  std::vector<Array> out;
  for (auto at = arrays.begin(); at != arrays.end(); at += size) {
    for (Array& array : applied(operation, {at, at + size}, results, parameter))
      out.push_back(std::move(array));
  }
  return out;
}

}  // namespace

std::vector<Array> apply_rule(const Rule& rule, std::vector<Array> arrays,
                              const ParameterValue& parameter) {
  // The tensors of each pattern are gathered, or made, separately.
  std::size_t groups = rule.collects() ? rule.from.size() : 1;
  for (const Operation& operation : rule.operations) {
    const bool gathers =
        operation.kind == OperationKind::kStack || operation.kind == OperationKind::kConcatenate;
    std::size_t parts = 1;
    if (gathers) parts = std::exchange(groups, 1);
    if (rule.spreads() && operation.kind == OperationKind::kUnstack) parts = arrays.size();
    // A weight has several patterns, of which one is left.
    if (operation.kind == OperationKind::kDequantize && groups > 1)
      groups = std::max<std::size_t>(1, groups / tensors_of_weight(operation));
    arrays = applied_in_parts(operation, std::move(arrays), parts, rule.to.size(), parameter);
  }
  return arrays;
}

Mapped map_content(const Checkpoint& source, const Value& content, const MapOptions& options) {
  return Mapper(source, content, options).run();
}

}  // namespace fsdp::formats::map
