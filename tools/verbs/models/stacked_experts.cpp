// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/stacked_experts.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/fitting.h"
#include "formats/changes/map/mapping.h"
#include "formats/families/hf/model_content.h"
#include "formats/state/content/content.h"
#include "tools/verbs/models/map_choice.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::map::Direction;

constexpr std::size_t kParameterText = 200;

// Returns the first of the parameters that is not a tensor of the content; nullptr if there is
// none.
const std::string* first_absent(const formats::Value& content,
                                const std::vector<std::string>& parameters) {
  const std::vector<formats::Leaf> leaves = formats::leaves_of(content);
  const auto there = [&](const std::string& parameter) {
    return std::any_of(leaves.begin(), leaves.end(), [&](const formats::Leaf& leaf) {
      return leaf.key == parameter || leaf.key.ends_with("." + parameter);
    });
  };
  const auto found = std::find_if_not(parameters.begin(), parameters.end(), there);
  return found == parameters.end() ? nullptr : &*found;
}

}  // namespace

std::optional<ExpertMap> find_expert_map(const formats::Checkpoint& base,
                                         const formats::Value& content,
                                         const std::vector<std::string>& parameters,
                                         const std::string& model_type, const std::string& config) {
  const std::string* const missing = first_absent(content, parameters);
  if (missing == nullptr) return std::nullopt;
  std::vector<ExpertMap> fitting;
  const auto models = formats::hf::find_models(content);
  if (models.size() == 1) {
    for (const formats::map::BuiltinMap& map : formats::map::fitting_maps(
             formats::hf::names_of(models[0].tensors), model_type, Direction::kReverse)) {
      const ExpertMap own{std::string(map.name), config};
      try {
        if (first_absent(own.mapped(base, content, Direction::kReverse).content, parameters) ==
            nullptr)
          fitting.push_back(own);
      } catch (const Error&) {
        // The map needs other shapes, or parameters that were not given.
      }
    }
  }
  if (fitting.size() == 1) return fitting.front();
  const std::string lacks =
      cat(base.description().path, ": lacks ", formats::quote(*missing, kParameterText),
          ", which target_parameters names");
  if (fitting.empty()) {
    throw Error(ErrorCode::kMismatch, cat(lacks,
                                          ", and no built-in map makes it from the present names; "
                                          "use fsdp-ckpt map --reverse with your own rules"));
  }
  std::string list;
  for (const ExpertMap& map : fitting) list += (list.empty() ? "" : ", ") + map.name;
  throw Error(ErrorCode::kUsage, cat(lacks, "; several maps lead to it: ", list,
                                     "; give the model's config.json with --config"));
}

Changed ExpertMap::mapped(const formats::Checkpoint& source, const formats::Value& content,
                          Direction direction) const {
  MapChoice choice;
  choice.config = config;
  formats::map::Mapped result =
      formats::map::map_content(source, content, choice.options(name, direction));
  return {std::move(result.checkpoint), std::move(result.content)};
}

}  // namespace fsdp::cli
