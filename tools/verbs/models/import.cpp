// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt import: a published model as the checkpoint that a trainer loads.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/changes/map/builtin.h"
#include "formats/changes/map/fitting.h"
#include "formats/families/hf/companions.h"
#include "formats/families/hf/model_content.h"
#include "formats/front/create.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/configured_model.h"
#include "tools/verbs/models/map_choice.h"
#include "tools/verbs/models/map_report.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::OutputGroup;
using formats::Value;
using formats::map::Direction;

// Returns `value` inside mappings with the dotted names of `place`.
Value nested(const std::string& place, Value value) {
  for (std::size_t end = place.size(); end != 0;) {
    const std::size_t dot = place.rfind('.', end - 1);
    const std::size_t begin = dot == std::string::npos ? 0 : dot + 1;
    value = Value::dict({{Value::string(place.substr(begin, end - begin)), std::move(value)}});
    end = begin == 0 ? 0 : begin - 1;
  }
  return value;
}

class ImportVerb : public Verb {
 public:
  ImportVerb()
      : Verb("import", "Start a trainer from published weights: as its checkpoint of N ranks",
             {"fsdp-ckpt import Llama-3.1-8B step-0 --map torchtitan-llama3-hf -w 8",
              "fsdp-ckpt import Qwen3-8B start --map none --under model -w 16"}) {}
  void declare(OptionSet& options) override {
    declare_conversion(
        options, conversion_,
        formats::output_words({OutputGroup::kSharded, OutputGroup::kMegatron, OutputGroup::kFull}));
    OptionRecord& source = options.add("--source", &source_);
    source.choices = {"hf"};
    source.old_names = {"--from"};
    options.add("--map", &map_, ", applied backwards");
    options.add("--set", &choice_.parameters);
    options.add("--config", &choice_.config, "; that of PATH if not given; or none");
    options.add("--model", &model_);
    options.add("--under", &under_);
    options.add("--incomplete", &incomplete_);
    declare_world_size(options, conversion_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const std::filesystem::path out = conversion_.writing.destination;
    if (conversion_.format.empty() && !out.has_extension()) conversion_.format = "dcp";
    if (under_.starts_with('.') || under_.ends_with('.') || under_.find("..") != std::string::npos)
      throw Error(ErrorCode::kUsage, cat("--under ", formats::quote(under_), " is not a key"));
    find_config(common.path);
    const auto change = [&](const formats::Checkpoint& source, const Value& content,
                            ReportExtras& extras) { return imported(source, content, extras); };
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  void find_config(const std::string& path) {
    if (choice_.config == kNoConfig) {
      choice_.config.clear();
      return;
    }
    if (!choice_.config.empty()) return;
    const std::filesystem::path config = std::filesystem::path(path) / "config.json";
    if (formats::exists_at(config)) choice_.config = config.native();
  }

  Changed imported(const formats::Checkpoint& source, const Value& content,
                   ReportExtras& extras) const {
    formats::hf::FoundModel model = formats::hf::find_model(source, content, model_);
    formats::hf::Companions companions;
    if (!choice_.config.empty()) companions = formats::hf::open_companions(choice_.config);
    if (map_.empty()) throw no_map(model.tensors, model_type_of(companions));
    extras.members.emplace_back("under", under_);
    const ConfiguredModel configured(companions);
    if (configured.architecture()) {
      const auto fit =
          formats::hf::fit_to(*configured.architecture(), formats::hf::shapes_of(model.tensors));
      model.tensors = configured.renamed(model.tensors, fit, extras);
    }
    configured.require_known(source.description().path, model.tensors, incomplete_, extras);
    if (map_ == kNoMap) {
      extras.members.emplace_back("map", nullptr);
      return {nullptr, nested(under_, as_modules(source, configured, model_type_of(companions),
                                                 model.tensors, extras))};
    }
    const formats::map::MapOptions options = choice_.options(map_, Direction::kReverse);
    formats::map::Mapped wide = dequantized(source, model.tensors, options.rules, extras);
    const bool same = wide.checkpoint == nullptr;
    formats::map::Mapped mapped = formats::map::map_content(
        same ? source : *wide.checkpoint, same ? model.tensors : wide.content, options);
    mapped.checkpoint->own(std::move(wide.checkpoint));
    add_map_report(mapped, options, conversion_.writing.dry_run, extras);
    return {std::move(mapped.checkpoint), nested(under_, std::move(mapped.content)),
            options.rules.layers_apart};
  }

  // Returns the tensors under the names of the class's modules.
  Value as_modules(const formats::Checkpoint& source, const ConfiguredModel& configured,
                   const std::string& model_type, const Value& tensors,
                   ReportExtras& extras) const {
    formats::Json& report = extras.members.emplace_back("renamed", nullptr).second;
    if (!configured.architecture()) return tensors;
    const formats::hf::Architecture& own = *configured.architecture();
    const formats::hf::ModuleNames names = own.module_names(formats::hf::shapes_of(tensors));
    if (!names.known) {
      const std::string map = map_of_modules(source, own, model_type, tensors);
      extras.lines.push_back(cat("names: those of files; the modules of ", own.name(), " (",
                                 own.producer(), ") have other tensors",
                                 map.empty() ? "" : ", which --map " + map + " makes"));
      return tensors;
    }
    formats::Json::Object renamed(names.renamed.begin(), names.renamed.end());
    report = std::move(renamed);
    if (names.renamed.empty()) return tensors;
    const auto& [first, to] = *names.renamed.begin();
    extras.lines.push_back(cat("names: ", names.renamed.size(), " are those of the modules of ",
                               own.name(), ": ", formats::quote(first, 200), " becomes ",
                               formats::quote(to, 200)));
    return formats::hf::renamed_tensors(tensors, [&](const std::string& name) {
      const auto found = names.renamed.find(name);
      return found == names.renamed.end() ? name : found->second;
    });
  }

  // Returns the built-in map whose result has the tensors of the class's modules; empty: there is
  // none.
  std::string map_of_modules(const formats::Checkpoint& source,
                             const formats::hf::Architecture& own, const std::string& model_type,
                             const Value& tensors) const {
    for (const auto& map : formats::map::fitting_maps(formats::hf::names_of(tensors), model_type,
                                                      Direction::kReverse)) {
      try {
        std::string word(map.name);
        const formats::map::Mapped made =
            formats::map::map_content(source, tensors, choice_.options(word, Direction::kReverse));
        const formats::hf::ModelDifferences found =
            own.differences(formats::hf::shapes_of(made.content));
        if (found.empty() && !found.as_files) return word;
      } catch (const Error&) {
        // The map needs other shapes, or parameters that were not given.
      }
    }
    return {};
  }

  // Returns a quantized model in bfloat16, by another map, if the rules do not handle scales;
  // otherwise nothing.
  static formats::map::Mapped dequantized(const formats::Checkpoint& source, const Value& tensors,
                                          const formats::map::Rules& rules, ReportExtras& extras) {
    const std::string scales = formats::hf::quantized_name(tensors);
    if (scales.empty() || takes(rules, scales)) return {};
    const char* const name = scales.ends_with("_blocks") ? "mxfp4-to-bf16" : "fp8-to-bf16";
    for (const auto& map : formats::map::builtin_maps()) {
      if (map.name != name) continue;
      formats::map::MapOptions options;
      options.rules = formats::map::parse_rules(map.text, name, Direction::kForward);
      formats::map::Mapped wide = formats::map::map_content(source, tensors, options);
      extras.lines.push_back(cat("first ", name, ": ", wide.steps.size(), " tensors"));
      return wide;
    }
    return {};
  }

  static bool takes(const formats::map::Rules& rules, const std::string& name) {
    for (const formats::map::Rule& rule : rules.rules) {
      for (const formats::map::Pattern& pattern : rule.from) {
        if (pattern.match(name)) return true;
      }
    }
    return false;
  }

  // Returns an error that lists the maps: models of several trainers have the same published form.
  static Error no_map(const Value& tensors, const std::string& model_type) {
    std::vector<std::string> names = formats::hf::names_of(tensors);
    // Maps that do not handle scales fit the model without them.
    std::erase_if(names, [](const std::string& name) { return name.ends_with("_scale_inv"); });
    std::string list;
    for (const auto& map : formats::map::fitting_maps(names, model_type, Direction::kReverse))
      list += cat(list.empty() ? "" : ", ", map.name);
    return Error(ErrorCode::kUsage, cat("--map is needed: none, or the map of the trainer's model",
                                        list.empty() ? "" : "; these take the names: " + list));
  }

  ConversionOptions conversion_;
  MapChoice choice_;
  bool incomplete_ = false;
  std::string source_ = "hf";
  std::string map_;
  std::string model_;
  std::string under_;
};

}  // namespace

std::unique_ptr<Verb> make_import() {
  return std::make_unique<ImportVerb>();
}

}  // namespace fsdp::cli
