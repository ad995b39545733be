// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/named_model.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/averaged_weights.h"
#include "formats/changes/map/fitting.h"
#include "formats/families/hf/architecture_fit.h"
#include "formats/families/hf/flat_models.h"
#include "formats/families/hf/model_content.h"
#include "formats/state/content/loose_states.h"
#include "tools/verbs/models/configured_model.h"
#include "tools/verbs/models/held_lora.h"
#include "tools/verbs/models/map_report.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::Value;
using formats::hf::Architecture;
using formats::hf::ArchitectureFit;
using formats::hf::Companions;
using formats::hf::FoundModel;
using formats::hf::ModelDifferences;
using formats::map::BuiltinMap;

constexpr std::size_t kNameBytes = 200;

bool ties(const Companions& companions) {
  const Json* tied = companions.config ? companions.config->find("tie_word_embeddings") : nullptr;
  return tied != nullptr && tied->as_bool() != nullptr && *tied->as_bool();
}

// A built-in map that was chosen by names, and why: what stands behind its name in the report.
struct ChosenMap {
  std::string word;
  std::string why;
};

class Naming {
 public:
  Naming(const formats::Checkpoint& source, const Companions& companions,
         const ModelRequest& request, ReportExtras& extras)
      : source_(source),
        companions_(companions),
        request_(request),
        extras_(extras),
        model_(companions),
        architecture_(model_.architecture()) {}

  NamedModel run(const Value& content) {
    const FoundModel model = chosen(content);
    extras_.lines.push_back(
        cat("model: ", model.place.empty() ? "the top level" : formats::quote(model.place, 200)));
    if (model.values != 0)
      extras_.lines.push_back(cat("left out: ", model.values, " values that are not tensors"));
    extras_.members.emplace_back("model", model.place);
    extras_.members.emplace_back("left_out_values", model.values);
    NamedModel named = mapped(model.tensors);
    Changed& out = named.result;
    const formats::Checkpoint& own = out.checkpoint == nullptr ? source_ : *out.checkpoint;
    check_quantization(out.content);
    model_.require(source_.description().path, out.content, request_.incomplete, extras_);
    if (ties(companions_)) out.content = formats::hf::without_tied_head(own, out.content);
    return named;
  }

 private:
  ArchitectureFit fit(const Value& tensors) const {
    return formats::hf::fit_to(*architecture_, formats::hf::shapes_of(tensors));
  }

  // Returns, of several models, the one that has the tensors of the class; averages of weights only
  // on request.
  FoundModel chosen(const Value& content) const {
    if (!request_.model.empty()) return formats::hf::find_model(source_, content, request_.model);
    std::vector<FoundModel> models = formats::models_of(content, request_.average.asked);
    const std::vector<FoundModel> rest = formats::models_of(content, !request_.average.asked);
    std::string others;
    for (const FoundModel& model : rest)
      others += (others.empty() ? "" : ", ") + formats::quote(model.place, kNameBytes);
    if (models.empty() && (request_.average.asked || !others.empty())) throw no_model(others);
    if (architecture_ && models.size() > 1) {
      std::vector<FoundModel> fitting;
      for (const FoundModel& model : models) {
        if (fit(model.tensors).differences.empty()) fitting.push_back(model);
      }
      // Parts of one model may look like separate models.
      for (FoundModel& model : formats::hf::find_models(content, false)) {
        const std::size_t matching = fit(model.tensors).differences.matching;
        if (fitting.empty() && 2 * matching > formats::hf::names_of(model.tensors).size())
          fitting.push_back(std::move(model));
      }
      if (fitting.size() == 1) models = std::move(fitting);
    }
    if (models.size() != 1) return formats::hf::find_model(source_, content, "");
    if (request_.average.asked && rest.size() == 1) {
      std::vector<std::string> kept;
      models[0].tensors = in_context(source_.description().path, [&] {
        return formats::with_buffers_of(rest[0], models[0], kept);
      });
      note_kept_buffers(kept, extras_);
    }
    if (formats::loose_state(models[0].tensors)) formats::refuse_loose_states(source_, content);
    if (!others.empty()) {
      extras_.lines.push_back(cat("left out: ", others,
                                  request_.average.asked
                                      ? ": no averages of weights"
                                      : ": averages of weights, --ema takes them"));
    }
    return std::move(models[0]);
  }

  Error no_model(const std::string& others) const {
    const std::string where = cat(source_.description().path, ": ");
    if (request_.average.asked) {
      return Error(ErrorCode::kKey,
                   cat(where, "no model's key marks averages of weights",
                       others.empty() ? "" : "; there are " + others, "; --model names one"));
    }
    return Error(ErrorCode::kKey,
                 cat(where, "holds only averages of weights, ", others, "; --ema takes them"));
  }

  NamedModel mapped(const Value& tensors) {
    std::string word = request_.map;
    const bool guessed = word.empty();
    Value own = tensors;
    std::string why;
    ChosenMap chosen;
    if (architecture_) {
      const ArchitectureFit found = fit(tensors);
      // Corrects the front of names where that helps, unless the map takes the names as they are.
      if (word == kNoMap || (guessed && !takes_only(tensors, found)))
        own = model_.renamed(tensors, found, extras_);
      if (guessed && found.differences.empty()) {
        why = cat(", the names are those of ", architecture_->name());
        const bool trained = !found.differences.as_files || found.differences.as_modules;
        chosen = trained ? chosen_of(own) : ChosenMap{kNoMap, {}};
        word = chosen.word;
        if (word == kNoMap) why += chosen.why;
      }
    }
    if (word.empty() && nearly(own)) {
      why = cat(", most names are those of ", architecture_->name());
      word = kNoMap;
    }
    if (word.empty()) {
      chosen = guessed_map(own);
      word = chosen.word;
      why = ", no built-in map fits these names" + near_map_text(own) + by_config_text(own);
    }
    if (word == kNoMap) {
      extras_.lines.push_back(guessed ? "map: none" + why : "map: none");
      extras_.members.emplace_back("map", nullptr);
      extras_.members.emplace_back("guessed", guessed);
      return {{nullptr, own}, &source_, own, kNoMap, {}};
    }
    formats::map::MapOptions options =
        request_.choice.options(word, formats::map::Direction::kForward);
    try {
      formats::map::Mapped result = formats::map::map_content(source_, own, options);
      extras_.lines.push_back(cat("map: ", formats::escape(word), chosen.why));
      add_map_report(result, options, request_.dry_run, extras_);
      extras_.members.emplace_back("guessed", guessed);
      return {{std::move(result.checkpoint), std::move(result.content)},
              &source_,
              own,
              word,
              std::move(result.steps)};
    } catch (const Error& error) {
      if (!guessed || error.code() != ErrorCode::kShape) throw;
      throw Error(error.code(), cat(error.what(),
                                    "; the map was chosen by names alone, --map none "
                                    "keeps them as they are"));
    }
  }

  // Returns whether no map seems to be needed for a model that does not fit: most names are those
  // of the class, and no map gives everything that the class has.
  bool nearly(const Value& tensors) const {
    if (!architecture_) return false;
    const formats::hf::NamedShapes shapes = formats::hf::shapes_of(tensors);
    if (2 * architecture_->differences(shapes).matching < shapes.size()) return false;
    return proven_maps(tensors, fitting_words(tensors)).empty();
  }

  std::vector<std::string> fitting_words(const Value& tensors) const {
    std::vector<std::string> words;
    for (const BuiltinMap& map :
         formats::map::fitting_maps(formats::hf::names_of(tensors), model_type_of(companions_),
                                    formats::map::Direction::kForward))
      words.emplace_back(map.name);
    return words;
  }

  // Returns whether a map takes the names as they are, and none takes them with a corrected front.
  bool takes_only(const Value& tensors, const ArchitectureFit& found) const {
    if (found.differences.empty() || fitting_words(tensors).empty()) return false;
    ReportExtras unused;
    return fitting_words(model_.renamed(tensors, found, unused)).empty();
  }

  // Returns the maps whose result has the tensors of the class.
  std::vector<std::string> proven_maps(const Value& tensors,
                                       const std::vector<std::string>& words) const {
    std::vector<std::string> proven;
    for (const std::string& word : words) {
      try {
        const auto result = formats::map::map_content(
            source_, tensors, request_.choice.options(word, formats::map::Direction::kForward));
        const ModelDifferences found =
            architecture_->differences(formats::hf::shapes_of(result.content));
        if (found.empty()) proven.push_back(word);
      } catch (const Error&) {
        // The map needs other shapes, or parameters that were not given.
      }
    }
    return proven;
  }

  // Names the nearest map and what keeps it from fitting.
  static std::string near_map_text(const Value& tensors) {
    const auto near = formats::map::nearest_map(formats::hf::names_of(tensors),
                                                formats::map::Direction::kForward);
    return near ? cat("; the nearest is ", near->name, ": ", near->why) : std::string();
  }

  // Names the maps that a configuration could choose, if none says which model it is.
  std::string by_config_text(const Value& tensors) const {
    if (!model_type_of(companions_).empty()) return {};
    std::vector<std::string> words;
    for (const BuiltinMap& map : formats::map::maps_by_config(formats::hf::names_of(tensors),
                                                              formats::map::Direction::kForward))
      words.emplace_back(map.name);
    return words.empty() ? std::string()
                         : cat(" without a --config; models with the same names have ",
                               formats::joined(words, ", "));
  }

  // Returns the map that takes the names; of several, the one whose result has the tensors of the
  // class.  Returns kNoMap if there is none, and with all of them if several are left.
  ChosenMap chosen_of(const Value& tensors) const {
    const std::vector<std::string> words = fitting_words(tensors);
    if (words.empty()) return {kNoMap, {}};
    if (words.size() == 1) return {words[0], ", the only one that takes these names"};
    const std::string all = formats::joined(words, ", ");
    if (architecture_) {
      const std::vector<std::string> proven = proven_maps(tensors, words);
      if (proven.size() == 1) {
        return {proven[0], cat(", the only one that gives the tensors of ", architecture_->name(),
                               ", of those that take these names: ", all)};
      }
    }
    return {kNoMap, cat(", several maps take these names: ", all, "; --map chooses one")};
  }

  ChosenMap guessed_map(const Value& tensors) const {
    ChosenMap chosen = chosen_of(tensors);
    if (chosen.word == kNoMap && !chosen.why.empty())
      throw Error(ErrorCode::kUsage, chosen.why.substr(2));
    return chosen;
  }

  void check_quantization(const Value& tensors) const {
    const std::string quantized = formats::hf::quantized_name(tensors);
    if (quantized.empty() || !companions_.config ||
        companions_.config->find("quantization_config") != nullptr)
      return;
    throw Error(ErrorCode::kUnsupported,
                cat(companions_.config_name, ": has no quantization_config, and ",
                    formats::quote(quantized, kNameBytes), " belongs to quantized weights"));
  }

  const formats::Checkpoint& source_;
  const Companions& companions_;
  const ModelRequest& request_;
  ReportExtras& extras_;
  const ConfiguredModel model_;
  const std::optional<Architecture>& architecture_;
};

}  // namespace

NamedModel named_model(const formats::Checkpoint& source, const Value& content,
                       const std::string& path, Companions& companions, const ModelRequest& request,
                       ReportExtras& extras) {
  if (request.average.asked) {
    const auto sources =
        in_context(source.description().path, [&] { return formats::average_sources(content); });
    // A model of averages is exported as it is, with the buffers that it lacks.
    if (!std::ranges::all_of(sources, &formats::AverageSource::model)) {
      ModelRequest weights = request;
      weights.average = {};
      Changed taken = averaged_change(source, content, request.average, extras);
      const formats::Checkpoint& own = taken.checkpoint ? *taken.checkpoint : source;
      NamedModel out = named_model(own, taken.content, path, companions, weights, extras);
      out.averaged = taken.checkpoint;
      if (out.result.checkpoint == nullptr) out.result.checkpoint = out.averaged;
      return out;
    }
    if (!request.average.names.empty() && !sources.empty())
      throw names_are_stored(source, sources[0].place);
  }
  const auto merge = merged_held_adapter(source, content, path, companions, extras);
  extras.members.emplace_back("merged", merge ? merge->merged : 0);
  NamedModel out = Naming(merge ? *merge->checkpoint : source, companions, request, extras)
                       .run(merge ? merge->content : content);
  if (merge) out.merged = merge->checkpoint;
  if (out.result.checkpoint == nullptr) out.result.checkpoint = out.merged;
  refuse_adapter_names(source.description().path, formats::hf::names_of(out.result.content));
  return out;
}

}  // namespace fsdp::cli
