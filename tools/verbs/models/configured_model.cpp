// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/configured_model.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/hf/companions.h"
#include "formats/families/hf/completeness.h"
#include "formats/families/hf/flat_models.h"
#include "formats/families/hf/model_content.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::Value;
using formats::hf::Architecture;
using formats::hf::Companions;
using formats::hf::ModelDifferences;

constexpr std::size_t kNamesListed = 6;
constexpr std::size_t kMostNameBytes = 200;

std::string listed(const std::vector<std::string>& names, bool quoted) {
  std::string list;
  for (std::size_t i = 0; i < names.size() && i < kNamesListed; ++i)
    list += (i == 0 ? "" : ", ") + (quoted ? formats::quote(names[i], kMostNameBytes) : names[i]);
  if (names.size() > kNamesListed) list += cat(", and ", names.size() - kNamesListed, " more");
  return list;
}

// Returns a hint at resize-vocab if a table has another number of rows than the configuration.
Hint resize_hint(const std::string& contradiction, const Json& config) {
  if (contradiction.find(" rows, and vocab_size is ") == std::string::npos) return {};
  const Json* rows = config.find("vocab_size");
  if (rows == nullptr || rows->as_int() == nullptr) return {};
  return {Remedy::kResizeTables, std::to_string(*rows->as_int())};
}

// Returns the differences from the class of the model in `content` that differs least, without
// averages; nothing if there is no model.
std::optional<ModelDifferences> least_differences(const Architecture& architecture,
                                                  const Value& content) {
  std::optional<ModelDifferences> least;
  for (const formats::hf::FoundModel& model : formats::hf::find_models(content)) {
    if (formats::hf::is_average(model.place)) continue;
    ModelDifferences found =
        formats::hf::fit_to(architecture, formats::hf::shapes_of(model.tensors)).differences;
    if (!least || found.count() < least->count()) least = std::move(found);
  }
  return least;
}

std::string first_of(const ModelDifferences& found) {
  if (!found.shapes.empty()) return found.shapes[0];
  if (!found.missing.empty())
    return cat("it lacks ", formats::quote(found.missing[0], kMostNameBytes));
  return cat("it has ", formats::quote(found.unexpected[0], kMostNameBytes));
}

}  // namespace

Companions companions_for(const std::string& config, const std::string& checkpoint) {
  if (config == kNoConfig) return {};
  if (!config.empty() && !formats::exists_at(config)) {
    throw Error(ErrorCode::kNotFound,
                cat(formats::escape(config),
                    ": no such file or folder; --config takes a config.json, or the folder of the "
                    "published model"));
  }
  return config.empty() ? formats::hf::find_companions(checkpoint)
                        : formats::hf::open_companions(config);
}

std::string model_type_of(const formats::hf::Companions& companions) {
  const formats::Json* type = companions.config ? companions.config->find("model_type") : nullptr;
  return type == nullptr || type->as_string() == nullptr ? std::string() : *type->as_string();
}

ConfiguredModel::ConfiguredModel(const Companions& companions) : companions_(companions) {
  if (companions.config) {
    architecture_ = Architecture::of(*companions.config, unknown_);
  } else {
    unknown_ = "without a --config";
  }
}

Value ConfiguredModel::renamed(const Value& tensors, const formats::hf::ArchitectureFit& fit,
                               ReportExtras& extras) const {
  if (fit.same()) return tensors;
  std::string how;
  if (!fit.strip.empty())
    how = cat("without ", formats::quote(fit.strip, kMostNameBytes), " in front");
  if (!fit.add.empty()) how = cat("with ", formats::quote(fit.add, kMostNameBytes), " in front");
  if (fit.early) how += cat(how.empty() ? "" : ", ", ".gamma and .beta as .weight and .bias");
  extras.lines.push_back(cat("names: ", how, ", as ", architecture_->name(), " has them"));
  return formats::hf::renamed_tensors(tensors,
                                      [&](const std::string& name) { return fit.renamed(name); });
}

void ConfiguredModel::require_known(const std::string& path, const Value& tensors, bool incomplete,
                                    ReportExtras& extras) const {
  if (architecture_) {
    require(path, tensors, incomplete, extras);
  } else {
    extras.members.emplace_back("architecture", nullptr);
    extras.lines.push_back("compared: nothing, " + unknown_);
  }
}

std::string ConfiguredModel::what() const {
  return cat(architecture_->name(), " (", architecture_->producer(), ")");
}

void ConfiguredModel::require(const std::string& path, const Value& tensors, bool incomplete,
                              ReportExtras& extras) const {
  if (!architecture_) return compare_alone(path, tensors, incomplete, extras);
  const ModelDifferences found = architecture_->differences(formats::hf::shapes_of(tensors));
  const std::string where = path + ": ";
  if (!found.unexpected.empty()) {
    const std::string near = formats::nearest(found.unexpected[0], found.missing);
    const std::string hint =
        near.empty() ? "" : cat("; missing is ", formats::quote(near, kMostNameBytes));
    throw Error(
        ErrorCode::kKey,
        cat(where, what(), ", which ", companions_.config_name, " names, has no ",
            listed(found.unexpected, true), hint,
            "; --exclude leaves tensors out, --map renames, --config none compares with nothing"));
  }
  if (!found.shapes.empty()) {
    throw Error(ErrorCode::kShape,
                cat(where, listed(found.shapes, false), ", says ", companions_.config_name, " for ",
                    what()),
                resize_hint(formats::hf::embedding_contradiction(formats::hf::shapes_of(tensors),
                                                                 *companions_.config),
                            *companions_.config));
  }
  if (!found.missing.empty() && !incomplete) refuse_incomplete(path, found.missing);
  extras.lines.push_back(
      cat("compared: ", found.matching, " tensors with those of ", what(),
          architecture_->assumed() ? ", assumed: config.json has no class" : "",
          found.missing.empty() ? "" : cat(", ", found.missing.size(), " missing")));
  extras.members.emplace_back("architecture", architecture_->name());
}

void ConfiguredModel::compare_alone(const std::string& path, const Value& tensors, bool incomplete,
                                    ReportExtras& extras) const {
  const Json* const config = companions_.config ? &*companions_.config : nullptr;
  const std::vector<std::string> names = formats::hf::names_of(tensors);
  const auto missing = formats::hf::missing_names(names, config);
  if (!missing.empty() && !incomplete) refuse_incomplete(path, missing);
  extras.members.emplace_back("architecture", nullptr);
  if (config != nullptr) {
    const std::string wrong =
        formats::hf::embedding_contradiction(formats::hf::shapes_of(tensors), *config);
    if (!wrong.empty())
      throw Error(ErrorCode::kShape, cat(path, ": ", wrong, " (", companions_.config_name, ")"));
  }
  extras.lines.push_back(cat("compared: only layers with each other, ", unknown_));
}

void ConfiguredModel::refuse_incomplete(const std::string& path,
                                        const std::vector<std::string>& missing) const {
  throw Error(ErrorCode::kKey,
              cat(path, ": the model is incomplete, it lacks ", listed(missing, true),
                  architecture_ ? cat(" of ", what()) : "", "; --incomplete writes it anyway"));
}

void require_still(const std::string& path, const Value& before, const Companions& config_before,
                   const Value& after, const Companions& config_after, ReportExtras& extras) {
  const ConfiguredModel old(config_before);
  const ConfiguredModel changed(config_after);
  extras.members.emplace_back("architecture", nullptr);
  if (!old.architecture() || !changed.architecture()) {
    extras.lines.push_back("compared: nothing, " + old.unknown());
    return;
  }
  const auto was = least_differences(*old.architecture(), before);
  const auto is = least_differences(*changed.architecture(), after);
  const Architecture& own = *changed.architecture();
  const std::string name = cat(own.name(), " (", own.producer(), ")");
  if (is && is->empty()) {
    extras.members.back().second = own.name();
    extras.lines.push_back(cat("compared: ", is->matching, " tensors with those of ", name));
    return;
  }
  if (was && was->empty() && is) {
    throw Error(
        is->shapes.empty() ? ErrorCode::kKey : ErrorCode::kShape,
        cat(path, ": the model would not be ", name, " any more, as ", config_before.config_name,
            " says: ", first_of(*is), "; --config none compares with nothing"));
  }
  extras.lines.push_back(cat("compared: nothing, the tensors are not those of ", name, ", as ",
                             config_before.config_name, " says",
                             was ? ": " + first_of(*was) : std::string()));
}

}  // namespace fsdp::cli
