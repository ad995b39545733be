// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rekey.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/rewrite/option_equality.h"

namespace fsdp::formats {
namespace {

std::string step_text(const PathStep& step) {
  return joined({step});
}

class Rekeying {
 public:
  Rekeying(const Checkpoint& checkpoint, const Value& content, const RekeyOptions& options)
      : checkpoint_(checkpoint),
        content_(content),
        options_(options),
        same_(checkpoint),
        model_(model_order(checkpoint, content, "the model in the checkpoint")),
        ordered_(keeps_order(checkpoint)) {}

  Rekeyed run() {
    std::vector<StatePart> parts = state_parts_of(content_);
    std::erase_if(parts, [](const StatePart& part) { return !part.is_optimizer(); });
    if (parts.empty()) {
      throw Error(ErrorCode::kKey, checkpoint_.description().path +
                                       ": holds no optimizer state; a state is a dict "
                                       "of 'state' and 'param_groups'");
    }
    if (options_.order && options_.order->for_ids && parts.size() > 1) {
      throw Error(ErrorCode::kKey,
                  cat(checkpoint_.description().path, ": holds ", parts.size(),
                      " optimizers, but a list of names fits only one"),
                  {Remedy::kChooseOne});
    }
    Rekeyed out;
    out.content = content_;
    for (const StatePart& part : parts) {
      try {
        const Value value = rekeyed(part, out);
        out.content = with_value_at(out.content, part.path, value);
      } catch (const Error& error) {
        const std::string key = joined(part.path);
        throw error.in(checkpoint_.description().path + (key.empty() ? "" : ": " + quote(key)));
      }
    }
    return out;
  }

 private:
  Value rekeyed(const StatePart& part, Rekeyed& out) {
    const Value& source = *at_path(content_, part.path);
    OptimizerState optimizer = read_optimizer(
        source, part.kind == PartKind::kFlattenedOptimizer,
        [&](const Value& value) { return resolved(checkpoint_, value); }, std::ref(same_));
    RekeyedOptimizer report;
    report.key = joined(part.path);
    report.from = optimizer.form;
    report.groups = optimizer.groups.size();
    report.parameters = optimizer.parameter_count();
    report.without_state = report.parameters - optimizer.state.size();
    Value result = optimizer.form == options_.to ? source : converted(optimizer, report);
    out.optimizers.push_back(std::move(report));
    return result;
  }

  Value converted(OptimizerState& optimizer, RekeyedOptimizer& report) {
    if (optimizer.form == OptimizerForm::kFlattened && !ordered_) sort_groups(optimizer);
    std::map<std::string, std::string> names;  // names of the keys
    if (optimizer.form == OptimizerForm::kIds) {
      const auto& order = options_.order ? options_.order : model_;
      if (options_.order && !model_) check_order(optimizer, *options_.order);
      names = names_of_ids(optimizer, order);
      const bool own = !optimizer.groups.empty() && !optimizer.groups[0].param_names.empty();
      report.order = own ? "param_names" : order ? order->origin : "";
    } else {
      for (const auto& group : optimizer.groups) {
        for (const std::string& name : group.params) names.emplace(name, name);
      }
    }
    check(optimizer, names, report);
    if (options_.to != OptimizerForm::kIds) {
      note_keys(optimizer, names, report);
      return write_optimizer(optimizer, options_.to, names);
    }
    const bool in_place = ordered_ || optimizer.form != OptimizerForm::kFlattened;
    const auto ids = ids_of_names(optimizer, options_.order, model_, in_place);
    report.order = options_.order ? options_.order->origin : "the groups of the optimizer";
    note_keys(optimizer, ids, report);
    return write_optimizer(optimizer, options_.to, ids);
  }

  // PyTorch counts ids across groups, so parameter i of the model is id i only with one group.
  // Throws: kRekeyAmbiguous if neither names nor shapes can confirm the order.
  static void check_order(const OptimizerState& optimizer, const ParameterOrder& order) {
    const bool named = !optimizer.groups.empty() && !optimizer.groups[0].param_names.empty();
    const bool shapes = std::ranges::any_of(
        order.parameters, [](const ModelParameter& one) { return one.shape.has_value(); });
    std::uint64_t next = 0;
    bool counted = true;
    for (const auto& group : optimizer.groups) {
      for (const std::string& id : group.params) counted = counted && id == std::to_string(next++);
    }
    if (named || shapes || !counted || optimizer.groups.size() < 2) return;
    throw Error(ErrorCode::kRekeyAmbiguous,
                cat("its ids count across ", optimizer.groups.size(),
                    " groups, whose order may differ from ", order.origin,
                    ", and there are no shapes to compare"),
                {Remedy::kModelForOrder});
  }

  static void note_keys(const OptimizerState& optimizer,
                        const std::map<std::string, std::string>& keys, RekeyedOptimizer& report) {
    for (const auto& group : optimizer.groups) {
      for (const std::string& key : group.params) report.keys.emplace_back(key, keys.at(key));
    }
  }

  // Sorts the lists: a sorted list shows that its order is lost.
  static void sort_groups(OptimizerState& optimizer) {
    for (auto& group : optimizer.groups) std::ranges::sort(group.params);
  }

  void check(const OptimizerState& optimizer, const std::map<std::string, std::string>& names,
             RekeyedOptimizer& report) const {
    const auto has_shape = [](const ModelParameter& parameter) {
      return parameter.shape.has_value();
    };
    const bool shapes =
        options_.order && std::ranges::any_of(options_.order->parameters, has_shape);
    if (shapes) check_shapes(optimizer, names, *options_.order);
    if (model_) check_shapes(optimizer, names, *model_);
    report.shapes_checked = shapes || model_.has_value();
  }

  const Checkpoint& checkpoint_;
  const Value& content_;
  const RekeyOptions& options_;
  OptionEquality same_;
  std::optional<ParameterOrder> model_;
  bool ordered_;
};

}  // namespace

bool keeps_order(const Checkpoint& checkpoint) {
  const CheckpointDescription& description = checkpoint.description();
  // Writers of safetensors sort names; each rank saves only its own parts.
  return description.format != "safetensors" && description.ranks == 1;
}

std::optional<Value> model_of(const Value& content) {
  std::vector<StatePart> parts = state_parts_of(content);
  std::erase_if(parts, [](const StatePart& part) { return part.kind != PartKind::kModel; });
  const auto named = [](const StatePart& part) {
    const std::string name = part.path.empty() ? "" : step_text(part.path.back());
    return name == "model" || name == "state_dict" || name == "module";
  };
  // A checkpoint may also hold averages of the weights, and models for distillation.
  if (parts.size() > 1 && std::ranges::count_if(parts, named) == 1)
    std::erase_if(parts, [&](const StatePart& part) { return !named(part); });
  if (parts.size() != 1) return std::nullopt;
  Value model = *at_path(content, parts[0].path);
  if (parts[0].path.empty()) {
    // torchtitan's model lies among other members, which hold no tensors at this level.
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : members_of(model)) {
      if (tensor_number(value)) entries.emplace_back(key, value);
    }
    model = Value::dict(std::move(entries));
  }
  return model;
}

std::optional<ParameterOrder> model_order(const Checkpoint& checkpoint, const Value& content,
                                          const std::string& origin) {
  const auto model = model_of(content);
  if (!model) return std::nullopt;
  return order_of_model(*model, origin, keeps_order(checkpoint));
}

Rekeyed rekey_content(const Checkpoint& checkpoint, const Value& content,
                      const RekeyOptions& options) {
  return Rekeying(checkpoint, content, options).run();
}

}  // namespace fsdp::formats
