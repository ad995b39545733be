// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/comparing/export_search.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/changes/map/fitting.h"
#include "formats/families/hf/architecture_fit.h"
#include "formats/families/hf/completeness.h"
#include "formats/families/hf/flat_models.h"
#include "formats/families/hf/model_content.h"
#include "formats/state/content/content.h"
#include "formats/state/content/loose_states.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/rewrite/rename.h"
#include "tools/base/remedy.h"
#include "tools/verbs/models/configured_model.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Value;
using formats::hf::Companions;
using formats::hf::FoundModel;
using formats::map::Direction;
using formats::map::Mapped;

using Names = std::set<std::string, std::less<>>;
constexpr std::size_t kNameLength = 200;

const std::string& path_of(const DiffOptions& options, std::size_t side) {
  return side == 0 ? options.common.path : options.other;
}

const char* letter(std::size_t side) {
  return side == 0 ? "A" : "B";
}

// Returns whether the user named a model, or a map or its parameters.
bool asks(const DiffOptions& options) {
  const bool config = !options.choice.config.empty() && options.choice.config != kNoConfig;
  return !options.model.empty() || (!options.map.empty() && options.map != kNoMap) || config ||
         !options.choice.parameters.empty();
}

// Returns whether a code says that content is of another kind, not that it is damaged.
bool is_refusal(ErrorCode code) {
  constexpr std::array kRefusals = {
      ErrorCode::kKey,   ErrorCode::kUnsupported, ErrorCode::kRekeyCollision, ErrorCode::kName,
      ErrorCode::kUsage, ErrorCode::kLimitNodes,  ErrorCode::kPathEscape,     ErrorCode::kLimitSize,
      ErrorCode::kJson,  ErrorCode::kNotFound,    ErrorCode::kShape,          ErrorCode::kDtype};
  return std::ranges::find(kRefusals, code) != kRefusals.end();
}

// Returns whether config.json lies beside the tensors, as in a folder for from_pretrained.
bool has_config(const std::string& path) {
  const std::filesystem::path own(path);
  return formats::exists_at(own / formats::hf::kConfigFile) ||
         (formats::is_checkpoint_name(own.filename().native()) &&
          formats::exists_at(own.parent_path() / formats::hf::kConfigFile));
}

// A model of a side, under its names without wrappers such as _orig_mod.
struct Candidate {
  FoundModel model;
  std::vector<std::string> wrappers;
  std::vector<std::string> fronts;
  std::size_t beside = 0;

  Value without(const std::string& front) const {
    return formats::hf::renamed_tensors(
        model.tensors, [&](const std::string& name) { return name.substr(front.size()); });
  }
};

std::vector<Candidate> candidates_of(const formats::Checkpoint& checkpoint) {
  const Value content = formats::content_of(checkpoint);
  std::vector<Candidate> out;
  for (const bool apart : {true, false}) {
    for (FoundModel& model : formats::hf::find_models(content, apart)) {
      const bool known = std::ranges::any_of(
          out, [&](const Candidate& one) { return one.model.place == model.place; });
      if (known || formats::loose_state(model.tensors)) continue;
      Candidate candidate;
      candidate.beside =
          checkpoint.index().order.size() - formats::members_of(model.tensors).size();
      formats::NameRules rules;
      rules.strip_wrappers = true;
      formats::Renamed renamed =
          formats::rename_content(model.tensors, rules, [](const Value& value) { return value; });
      model.tensors = std::move(renamed.content);
      candidate.wrappers = std::move(renamed.wrappers);
      candidate.fronts = formats::hf::common_fronts(formats::hf::shapes_of(model.tensors));
      candidate.model = std::move(model);
      out.push_back(std::move(candidate));
    }
  }
  return out;
}

// How the names of one model, the origin, lie to those of another.
struct NameMatch {
  std::size_t both = 0;
  std::size_t only = 0;     // on one side
  bool head_alone = false;  // all names match but the origin's head
  std::string first;        // of those on one side
  bool first_is_origins = false;
};

NameMatch match_names(const Names& origin, const Names& made) {
  NameMatch found;
  const auto note = [&](const std::string& name, bool is_origins) {
    if (found.only++ != 0 && !formats::natural_less(name, found.first)) return;
    found.first = name;
    found.first_is_origins = is_origins;
  };
  for (const std::string& name : origin) {
    if (made.contains(name)) {
      ++found.both;
    } else {
      note(name, true);
    }
  }
  for (const std::string& name : made) {
    if (!origin.contains(name)) note(name, false);
  }
  found.head_alone = found.only == 1 && found.first_is_origins && found.first == formats::hf::kHead;
  return found;
}

Names set_of(const Value& tensors) {
  Names names;
  for (std::string& name : formats::hf::names_of(tensors)) names.insert(std::move(name));
  return names;
}

// A way that is tried.
struct Way {
  std::size_t origin = 0;
  std::array<const Candidate*, 2> models{};
  std::array<std::string, 2> fronts;
  std::string map;
  NameMatch match;

  std::size_t length(std::size_t side) const {
    return models[side]->model.place.size() + models[side]->wrappers.size() + fronts[side].size();
  }
};

class Search {
 public:
  Search(const DiffOptions& options, Sides& sides)
      : options_(options),
        sides_(sides),
        map_given_(!options.map.empty() && options.map != kNoMap),
        asked_(asks(options)) {}

  ExportSearch run() {
    for (std::size_t s = 0; s < 2; ++s) {
      candidates_[s] = candidates_of(*sides_[s].checkpoint);
      configs_[s] = companions_for("", path_of(options_, s));
    }
    if (!options_.choice.config.empty()) given_ = companions_for(options_.choice.config, "");
    choose_model();
    if (!map_given_) try_names();
    if (ways_.empty() && options_.map != kNoMap) try_maps();
    prefer();
    if (ways_.size() == 1) return {taken(ways_[0]), {}};
    const std::string why = ways_.empty() ? nearest_text() : several_text();
    if (!asked_) return {std::nullopt, why};
    if (!ways_.empty()) throw Error(ErrorCode::kUsage, why);
    if (refused_) throw *refused_;
    throw Error(ErrorCode::kKey, why);
  }

 private:
  // Keeps the model that --model names, on the sides that have it.
  void choose_model() {
    if (options_.model.empty()) return;
    bool found = false;
    for (auto& models : candidates_) {
      const auto named = [&](const Candidate& one) { return one.model.place == options_.model; };
      if (std::ranges::none_of(models, named)) continue;
      std::erase_if(models, std::not_fn(named));
      found = true;
    }
    if (!found) {
      throw Error(ErrorCode::kKey, cat("neither ", formats::escape(options_.common.path), " nor ",
                                       formats::escape(options_.other), " has a model at ",
                                       formats::quote(options_.model, kNameLength)));
    }
  }

  template <typename Try>
  void for_pairs(const Try& attempt) {
    for (const Candidate& a : candidates_[0]) {
      for (const Candidate& b : candidates_[1]) attempt(a, b);
    }
  }

  bool ties(std::size_t made) const {
    const auto& config = configs_[made].config;
    const formats::Json* tied = config ? config->find("tie_word_embeddings") : nullptr;
    return tied != nullptr && tied->as_bool() != nullptr && *tied->as_bool();
  }

  bool fits(const Way& way) const {
    const bool all = way.match.only == 0 || (way.match.head_alone && ties(1 - way.origin));
    return way.match.both != 0 && (all || map_given_) &&
           (asked_ || way.models[1 - way.origin]->beside == 0);
  }

  void consider(Way way) {
    if (!nearest_ || way.match.both > nearest_->match.both) nearest_ = way;
    if (fits(way)) ways_.push_back(std::move(way));
  }

  // Fronts alone.
  void try_names() {
    for_pairs([&](const Candidate& a, const Candidate& b) {
      for (const std::string& front_a : a.fronts) {
        const Names left = set_of(a.without(front_a));
        for (const std::string& front_b : b.fronts) {
          Way way{0, {&a, &b}, {front_a, front_b}, {}, {}};
          way.origin = origin_of(way);
          const Names right = set_of(b.without(front_b));
          way.match = way.origin == 0 ? match_names(left, right) : match_names(right, left);
          consider(std::move(way));
          // Longer fronts of both would be the same way.
          if (!ways_.empty() && ways_.back().models == std::array{&a, &b}) return;
        }
      }
    });
  }

  // Returns the side that has more than the model, or that is not a folder for from_pretrained, or
  // whose names are longer.
  std::size_t origin_of(const Way& way) const {
    const std::size_t a = way.models[0]->beside;
    const std::size_t b = way.models[1]->beside;
    if ((a == 0) != (b == 0)) return a == 0 ? 1 : 0;
    const std::array<bool, 2> config = {has_config(options_.common.path),
                                        has_config(options_.other)};
    if (config[0] != config[1]) return config[0] ? 1 : 0;
    return way.length(1) > way.length(0) ? 1 : 0;
  }

  // Returns the given configuration, else that of the export, else that of its source.
  const Companions& config_for(std::size_t origin) const {
    if (given_) return *given_;
    return configs_[configs_[1 - origin].config ? 1 - origin : origin];
  }

  MapChoice choice_for(std::size_t origin) const {
    MapChoice choice = options_.choice;
    choice.config = config_for(origin).config_name;
    return choice;
  }

  std::string model_type(std::size_t origin) const {
    const auto& config = config_for(origin).config;
    const formats::Json* type = config ? config->find("model_type") : nullptr;
    return type == nullptr || type->as_string() == nullptr ? std::string() : *type->as_string();
  }

  void try_maps() {
    for_pairs([&](const Candidate& a, const Candidate& b) {
      const std::array<const Candidate*, 2> models = {&a, &b};
      for (std::size_t origin = 0; origin < 2; ++origin) {
        const Names made = set_of(models[1 - origin]->model.tensors);
        for (const std::string& front : models[origin]->fronts) {
          const Value own = models[origin]->without(front);
          for (const std::string& word : words_for(own, origin)) {
            Way way{origin, models, {}, word, {}};
            way.fronts[origin] = front;
            try {
              way.match = match_names(set_of(forward(way, own).content), made);
            } catch (const Error& error) {
              if (!refused_) refused_ = error;
              continue;
            }
            consider(std::move(way));
          }
        }
      }
    });
    if (!map_given_ || ways_.empty()) return;
    // Of the ways by a map that the user names, the one that leaves the fewest names.
    const auto best = std::ranges::min_element(
        ways_, {}, [](const Way& way) { return std::pair(way.match.only, way.origin); });
    ways_ = {*best};
  }

  std::vector<std::string> words_for(const Value& own, std::size_t origin) const {
    if (map_given_) return {options_.map};
    std::vector<std::string> words;
    for (const auto& map : formats::map::fitting_maps(formats::hf::names_of(own),
                                                      model_type(origin), Direction::kForward))
      words.emplace_back(map.name);
    return words;
  }

  Mapped forward(const Way& way, const Value& own) const {
    return formats::map::map_content(*sides_[way.origin].checkpoint, own,
                                     choice_for(way.origin).options(way.map, Direction::kForward));
  }

  // Averages of weights count only where nothing else fits.
  void prefer() {
    const auto average = [](const Way& way) {
      return std::ranges::any_of(way.models, [](const Candidate* one) {
        return formats::hf::is_average(one->model.place);
      });
    };
    if (std::ranges::all_of(ways_, average)) return;
    std::erase_if(ways_, average);
  }

  std::string nearest_text() const {
    if (nearest_ && nearest_->match.both > nearest_->match.only) {
      const NameMatch& match = nearest_->match;
      if (match.only == 0) {
        return cat("the names are the same, but ", letter(1 - nearest_->origin),
                   " holds more than a model");
      }
      return cat("the nearest way, ", text_of(*nearest_), ", leaves ",
                 formats::quote(match.first, kNameLength), " to ",
                 letter(match.first_is_origins ? nearest_->origin : 1 - nearest_->origin),
                 " alone");
    }
    if (refused_) return message_of(*refused_);
    for (std::size_t s = 0; s < 2; ++s) {
      for (const Candidate& one : candidates_[s]) {
        const auto near = formats::map::nearest_map(formats::hf::names_of(one.model.tensors),
                                                    Direction::kForward);
        if (near)
          return cat("for ", letter(s), " the nearest map is ", near->name, ": ", near->why);
      }
    }
    return "no map takes the names of either";
  }

  static std::string text_of(const Way& way) {
    if (!way.map.empty()) return cat("by the map ", formats::escape(way.map));
    std::string text;
    for (std::size_t s = 0; s < 2; ++s) {
      if (way.fronts[s].empty()) continue;
      text += cat(text.empty() ? "" : ", ", letter(s), " without ",
                  formats::quote(way.fronts[s], kNameLength));
    }
    return text.empty() ? "by the names as they are" : text;
  }

  std::string several_text() const {
    const bool maps = ways_[0].map != ways_[1].map;
    formats::SomeNames names;
    for (const Way& way : ways_) {
      if (maps) {
        names.add(formats::escape(way.map));
      } else {
        names.add(formats::quote(way.models[way.origin]->model.place, kNameLength));
      }
    }
    return maps ? cat("several maps fit, ", names.text(), "; --map chooses one")
                : cat("several models of ", letter(ways_[0].origin), " fit, ", names.text(),
                      "; --model chooses one");
  }

  static void name_entries(Side& side, const Value& tensors) {
    side.keys.clear();
    for (const auto& [key, value] : formats::members_of(tensors)) {
      side.keys.emplace(EntryName{*key.as_string(), 0},
                        formats::Index::EntryRef{
                            true, static_cast<std::uint32_t>(*formats::tensor_number(value))});
    }
  }

  static void replace(Side& side, Mapped& mapped) {
    side.mapped = std::move(side.checkpoint);
    side.checkpoint = std::move(mapped.checkpoint);
    name_entries(side, mapped.content);
  }

  ExportWay taken(const Way& found) {
    const std::size_t origin = found.origin;
    const std::size_t made = 1 - origin;
    ExportWay way;
    way.origin = way.named_by = origin;
    way.map = found.map;
    std::array<Value, 2> tensors;
    for (std::size_t s = 0; s < 2; ++s) {
      const Candidate& one = *found.models[s];
      way.models[s] = one.model.place;
      way.prefixes[s] = one.wrappers;
      if (!found.fronts[s].empty()) way.prefixes[s].push_back(found.fronts[s]);
      way.beside[s] = one.beside;
      tensors[s] = one.without(found.fronts[s]);
    }
    std::optional<Mapped> mapped;
    if (!found.map.empty()) mapped = forward(found, tensors[origin]);
    if (found.match.head_alone && ties(made) &&
        (mapped ? is_tied(*mapped->checkpoint, mapped->content)
                : is_tied(*sides_[origin].checkpoint, tensors[origin])))
      way.tied = formats::hf::kHead;
    std::vector<std::string> heads = {way.tied};  // its names among the keys
    std::optional<Mapped> back;
    if (mapped) {
      back = choice_for(origin).undone(*sides_[made].checkpoint, tensors[made], found.map,
                                       mapped->steps);
      if (back) heads = sources_of(mapped->steps, way.tied);
    }
    for (std::size_t s = 0; s < 2; ++s) name_entries(sides_[s], tensors[s]);
    if (mapped) {
      Mapped& used = back ? *back : *mapped;
      way.named_by = back ? origin : made;
      for (const formats::map::MapStep& step : used.steps) note_names(step, way);
      replace(sides_[back ? made : origin], used);
    }
    for (const std::string& head : heads) sides_[origin].keys.erase(EntryName{head, 0});
    return way;
  }

  static void note_names(const formats::map::MapStep& step, ExportWay& way) {
    std::vector<std::string> sources;
    for (const formats::map::NamedShape& source : step.sources) sources.push_back(source.name);
    for (const formats::map::NamedShape& target : step.targets)
      way.names.emplace(target.name, sources);
  }

  static std::vector<std::string> sources_of(const std::vector<formats::map::MapStep>& steps,
                                             const std::string& target) {
    std::vector<std::string> names;
    for (const formats::map::MapStep& step : steps) {
      if (std::ranges::find(step.targets, target, &formats::map::NamedShape::name) ==
          step.targets.end())
        continue;
      for (const formats::map::NamedShape& source : step.sources) names.push_back(source.name);
    }
    return names;
  }

  static bool is_tied(const formats::Checkpoint& own, const Value& tensors) {
    try {
      const Value rest = formats::hf::without_tied_head(own, tensors);
      return formats::members_of(rest).size() != formats::members_of(tensors).size();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kMismatch) throw;
      return false;
    }
  }

  const DiffOptions& options_;
  Sides& sides_;
  const bool map_given_;
  const bool asked_;  // the user named what there has to be
  std::array<std::vector<Candidate>, 2> candidates_;
  std::array<Companions, 2> configs_;  // beside the sides
  std::optional<Companions> given_;    // by --config
  std::vector<Way> ways_;
  std::optional<Way> nearest_;
  std::optional<Error> refused_;  // the first refusal of a map that takes the names
};

// What the names and dtypes say before anything is looked for.
struct FirstLook {
  bool mostly_shared = false;
  bool worth_looking = false;
};

FirstLook first_look(const DiffOptions& options, const Sides& sides) {
  FirstLook found;
  std::array<std::size_t, 2> only{};
  std::size_t shared = 0;
  bool dtypes = false;
  for (std::size_t s = 0; s < 2; ++s) {
    for (const auto& [name, ref] : sides[s].keys) {
      if (!ref.is_tensor) continue;
      const auto other = sides[1 - s].keys.find(name);
      if (other == sides[1 - s].keys.end() || !other->second.is_tensor) {
        ++only[s];
        continue;
      }
      shared += s;
      dtypes = dtypes || sides[s].index().tensors[ref.position].dtype !=
                             sides[1 - s].index().tensors[other->second.position].dtype;
    }
  }
  found.mostly_shared = shared >= std::min(only[0], only[1]);
  found.worth_looking = (only[0] != 0 && only[1] != 0) ||
                        ((only[0] != 0 || only[1] != 0 || dtypes) &&
                         has_config(options.common.path) != has_config(options.other));
  return found;
}

}  // namespace

ExportSearch find_export(const DiffOptions& options, Sides& sides) {
  const bool asked = asks(options);
  const bool whole = options.common.keys.everything() && options.strip_prefix[0].empty() &&
                     options.strip_prefix[1].empty();
  if (asked && !whole) {
    throw Error(
        ErrorCode::kUsage,
        "--map, --set, --config and --model compare whole models and find prefixes: leave --keys, "
        "--exclude, --strip-prefix-a and -b out");
  }
  if (!asked && (!whole || options.map == kNoMap)) return {};
  const FirstLook names = first_look(options, sides);
  if (!asked && !names.worth_looking) return {};
  ExportSearch found;
  try {
    found = Search(options, sides).run();
  } catch (const Error& error) {
    // A guess that cannot be made is none; damage, and what the user asked for, is an error.
    if (asked || !is_refusal(error.code())) throw;
    found.why = message_of(error);
  }
  // Checkpoints that share their names are no export and source: why would not help.
  if (names.mostly_shared) found.why.clear();
  return found;
}

}  // namespace fsdp::cli
