// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/map_report.h"

#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "tools/base/reading.h"
#include "tools/verbs/writing/name_report.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::map::MapStep;
using formats::map::NamedShape;

// A step on stacked experts has many tensors.
constexpr std::size_t kMaxSideNames = 4;

std::string side_text(const std::vector<NamedShape>& side) {
  std::string text;
  for (std::size_t i = 0; i < side.size() && i < kMaxSideNames; ++i) {
    text += cat(i == 0 ? "" : " + ", formats::escape(side[i].name), " ",
                formats::shape_text(side[i].shape));
  }
  if (side.size() > kMaxSideNames) text += cat(" + ", side.size() - kMaxSideNames, " more");
  return text;
}

std::string step_text(const MapStep& step) {
  std::string text = side_text(step.sources) + " -> " + side_text(step.targets);
  for (std::size_t i = 0; i < step.operations.size(); ++i)
    text += (i == 0 ? "  (" : ", ") + step.operations[i];
  return step.operations.empty() ? text : text + ")";
}

Json side_json(const std::vector<NamedShape>& side) {
  Json::Array tensors;
  for (const NamedShape& tensor : side) {
    tensors.push_back(
        Json::Object{{"key", tensor.name},
                     {"dtype", formats::torch_name(tensor.dtype)},
                     {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())}});
  }
  return tensors;
}

}  // namespace

void add_map_report(const formats::map::Mapped& mapped, const formats::map::MapOptions& options,
                    bool all, ReportExtras& extras) {
  std::size_t sources = 0;
  std::size_t targets = 0;
  std::vector<const MapStep*> steps;
  std::vector<const MapStep*> dropped;
  Json::Array rows;
  for (const MapStep& step : mapped.steps) {
    (step.targets.empty() ? dropped : steps).push_back(&step);
    if (!step.targets.empty()) sources += step.sources.size();
    targets += step.targets.size();
    rows.push_back(
        Json::Object{{"line", step.line},
                     {"from", side_json(step.sources)},
                     {"to", side_json(step.targets)},
                     {"do", Json::Array(step.operations.begin(), step.operations.end())}});
  }
  std::string used;
  Json::Object parameters;
  for (const auto& [name, value] : mapped.parameters) {
    used += cat(used.empty() ? " with " : ", ", name, "=", value);
    parameters.emplace_back(name, value);
  }
  extras.lines.push_back(cat(options.rules.file, ": ", counted(sources, "tensor"), " -> ",
                             counted(targets, "tensor"), used));
  if (all)
    list_names(
        steps.size(), [&](std::size_t i) { return step_text(*steps[i]); }, extras.lines);
  if (!dropped.empty()) {
    extras.lines.push_back("dropped: " + counted(dropped.size(), "tensor"));
    list_names(
        dropped.size(), [&](std::size_t i) { return side_text(dropped[i]->sources); },
        extras.lines);
  }
  const auto optimizers = [&](std::uint64_t count, const char* what) {
    if (count != 0)
      extras.lines.push_back(cat(what, ": ", count, count == 1 ? " optimizer" : " optimizers"));
  };
  optimizers(mapped.optimizers, "moved along");
  optimizers(mapped.dropped_optimizers, "left out");
  extras.members.emplace_back("map", options.rules.file);
  extras.members.emplace_back("parameters", std::move(parameters));
  extras.members.emplace_back("steps", std::move(rows));
  extras.members.emplace_back("optimizers", mapped.optimizers);
  extras.members.emplace_back("dropped_optimizers", mapped.dropped_optimizers);
}

}  // namespace fsdp::cli
