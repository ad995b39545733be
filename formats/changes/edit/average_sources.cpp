// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/average_sources.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/lit_ema.h"
#include "formats/families/hf/flat_models.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/value_compare.h"

namespace fsdp::formats {
namespace {

// Levels of containers that are searched for lists of averages.
constexpr std::size_t kMaxLevels = 5;

// What AveragedModel keeps beside the module: https://github.com/pytorch/pytorch, swa_utils.py.
constexpr std::string_view kCount = "n_averaged";
constexpr const char* kModule = "module";
// What Lightning's WeightAveraging writes beside `state_dict`, which then has the averages.
constexpr const char* kCurrent = "current_model_state";
constexpr const char* kAveraging = "averaging_state";
constexpr const char* kLightningModel = "state_dict";

bool is_averaged_module(const Value& tensors) {
  const auto members = members_of(tensors);
  return member(tensors, kCount) != nullptr && members.size() > 1 &&
         std::ranges::all_of(members, [](const Value::Entry& entry) {
           return *entry.first.as_string() == kCount ||
                  entry.first.as_string()->starts_with(std::string(kModule) + '.');
         });
}

bool is_weight_averaging(const Value& content) {
  return member(content, kCurrent) != nullptr && member(content, kAveraging) != nullptr;
}

// Returns the averages of a list, with their positions as keys.
std::vector<KeptAverage> listed_averages(const Value& list, const std::string& place) {
  std::vector<KeptAverage> out;
  for (const Value& item : list.items()) {
    if (!dense_tensor(item)) {
      throw Error(ErrorCode::kType, cat(quote(place, 200), ": item ", out.size(),
                                        " is not a tensor, as averages of weights are"));
    }
    out.push_back({std::to_string(out.size()), {{item}}});
  }
  return out;
}

// Returns an optimizer of one group that holds each average as the state of a parameter, so that
// its ids can be compared with a model.
OptimizerState as_optimizer(const std::vector<KeptAverage>& averages) {
  OptimizerState out;
  out.groups.emplace_back();
  for (const KeptAverage& average : averages) {
    out.groups[0].params.push_back(average.key);
    out.state.emplace_back(average.key,
                           Value::dict({{Value::string("average"), *average.terms[0].tensor}}));
  }
  return out;
}

std::optional<double> number(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (const auto whole = value->as_int()) return static_cast<double>(*whole);
  return value->as_float();
}

// Returns an option of a group in either form of an optimizer.
const Value* option(const OptimizerState::Group& group, std::string_view name) {
  if (const Value* found = member(group.source, name)) return found;
  for (const auto& [key, value] : group.options) {
    if (key.as_string() != nullptr && *key.as_string() == name) return &value;
  }
  return nullptr;
}

constexpr const char* kScheduleFree = "averages of a schedule-free optimizer";

Error schedule_free_wrapper() {
  return {ErrorCode::kUnsupported,
          "a ScheduleFreeWrapper does not save its momentum, which the averages follow from: call "
          "its eval() before saving, then the weights are the averages, and --ema is not needed"};
}

// The averages that an optimizer's states give, group by group.
class OfStates {
 public:
  explicit OfStates(const OptimizerState& optimizer) {
    for (const auto& [key, state] : optimizer.state) states_.emplace_back(key, &state);
    std::ranges::sort(states_);
    for (const auto& group : optimizer.groups) look_at(group);
  }

  // Returns nothing if a group has no averages: nothing could take their place.
  std::optional<AverageSource> result() {
    if (!all_ || source_.averages.empty()) return std::nullopt;
    return std::move(source_);
  }

 private:
  const Value* state(const std::string& key) const {
    const auto at =
        std::ranges::lower_bound(states_, key, {}, [](const auto& s) { return s.first; });
    return at == states_.end() || at->first != key ? nullptr : at->second;
  }
  // Returns a tensor in the state of a parameter; nullptr if it has no state, because it was never
  // stepped.  Throws: kKey if it has one without that tensor.
  const Value* kept(const std::string& key, const char* name) const {
    const Value* own = state(key);
    const Value* found = own == nullptr ? nullptr : member(*own, name);
    if (own != nullptr && found == nullptr)
      throw Error(ErrorCode::kKey, cat("the state of ", quote(key, 200), " has no '", name, "'"));
    return found;
  }
  bool any_state(const OptimizerState::Group& group, std::string_view name) const {
    return std::ranges::any_of(group.params, [&](const std::string& key) {
      const Value* own = state(key);
      return own != nullptr && member(*own, name) != nullptr;
    });
  }

  void look_at(const OptimizerState::Group& group) {
    const Value* mode = option(group, "train_mode");
    const auto training = mode == nullptr ? std::nullopt : mode->as_bool();
    if (any_state(group, "z") && any_state(group, "x")) {
      schedule_free_reference(group);
    } else if (!training && any_state(group, "z") && option(group, "weight_sum") != nullptr) {
      throw schedule_free_wrapper();
    } else if (training && any_state(group, "z")) {
      schedule_free(group, *training);
    } else if (const auto rate = number(option(group, "ema_rate"));
               rate && any_state(group, "ema")) {
      splus(group, *rate, training.value_or(true));
    } else {
      all_ = all_ && group.params.empty();
    }
  }

  // Adds x, which follows from the stored y = beta x + (1 - beta) z.  In the mode of evaluation, x
  // itself is stored.
  void schedule_free(const OptimizerState::Group& group, bool training) {
    const Value* betas = option(group, "betas");
    const auto beta = betas != nullptr && !betas->items().empty()
                          ? number(&betas->items()[0])
                          : number(option(group, "momentum"));
    if (training && (!beta || !(*beta > 0 && *beta <= 1)))
      throw Error(ErrorCode::kType,
                  "a schedule-free group has 'train_mode', but no beta from 0 to 1");
    add(group, kScheduleFree, [&](const std::string& key) -> Terms {
      const Value* z = kept(key, "z");
      if (z == nullptr || !training || *beta == 1) return {{}};
      return {{std::nullopt, 1 / *beta}, {*z, 1 - 1 / *beta}};
    });
  }

  // Adds x, which the reference versions of schedule-free optimizers keep.
  void schedule_free_reference(const OptimizerState::Group& group) {
    add(group, kScheduleFree, [&](const std::string& key) -> Terms {
      const Value* x = kept(key, "x");
      return {x == nullptr ? AverageTerm{} : AverageTerm{*x}};
    });
  }

  // Adds the averages that SPlus begins at zero, and divides as Adam does its moments.
  void splus(const OptimizerState::Group& group, double rate, bool training) {
    add(group, "averages of SPlus", [&](const std::string& key) -> Terms {
      const Value* average = kept(key, "ema");
      if (average == nullptr || !training) return {{}};
      const Value* own = member(*state(key), "step");
      const auto step = number(own != nullptr ? own : option(group, "step"));
      if (!step || *step < 1 || !(rate >= 0 && rate < 1))
        throw Error(ErrorCode::kType,
                    "a group of SPlus has no count of steps, or a wrong 'ema_rate'");
      return {{*average, 1 / (1 - std::pow(rate, *step))}};
    });
  }

  using Terms = std::vector<AverageTerm>;
  template <typename TermsOf>
  void add(const OptimizerState::Group& group, const char* what, const TermsOf& terms_of) {
    if (!source_.what.empty() && source_.what != what) all_ = false;
    source_.what = what;
    for (const std::string& key : group.params) source_.averages.push_back({key, terms_of(key)});
  }

  std::vector<std::pair<std::string, const Value*>> states_;  // sorted
  AverageSource source_;
  bool all_ = true;
};

std::string place_in(const hf::FoundModel& model, const std::string& name) {
  return model.place.empty() ? name : cat(model.place, ".", name);
}

class Search {
 public:
  explicit Search(const Value& content) : content_(content) {}

  std::vector<AverageSource> run() {
    for (const hf::FoundModel& model : models_of(content_, true)) add_model(model);
    for (const hf::FoundModel& model : hf::find_models(content_, false)) {
      for (const LitEma& ema : lit_emas(model.tensors)) {
        if (!ema.problem.empty())
          throw Error(ErrorCode::kKey,
                      cat(quote(place_in(model, ema.front), 200), ": ", ema.problem));
      }
    }
    for (const StatePart& part : state_parts_of(content_)) {
      if (part.is_optimizer()) add_optimizer(part);
    }
    add_lists(content_, 0);
    return std::move(out_);
  }

 private:
  void add_model(const hf::FoundModel& model) {
    AverageSource source;
    source.place = model.place;
    source.what = model.part ? "averages of LitEma" : "averages of weights";
    source.part = model.part.value_or("");
    source.model = true;
    for (const auto& [key, value] : members_of(model.tensors))
      source.averages.push_back({*key.as_string(), {{value}}});
    out_.push_back(std::move(source));
  }

  void add_optimizer(const StatePart& part) {
    const Value& value = *at_path(content_, part.path);
    OptimizerState optimizer = read_optimizer(
        value, part.kind == PartKind::kFlattenedOptimizer, [](const Value& own) { return own; },
        [](const Value& a, const Value& b) { return compare_values(a, b).same; });
    if (auto source = OfStates(optimizer).result()) {
      source->place = joined(part.path);
      if (optimizer.form == OptimizerForm::kIds) source->optimizer = std::move(optimizer);
      out_.push_back(std::move(*source));
    } else {
      add_nemo(part, std::move(optimizer));
    }
  }

  // Adds NeMo's averages: EMAOptimizer writes {"opt": the optimizer, "ema": one for each of its
  // parameters, in the order of its groups}.
  void add_nemo(const StatePart& part, OptimizerState optimizer) {
    const auto* own = part.path.empty() ? nullptr : std::get_if<std::string>(&part.path.back());
    if (own == nullptr || *own != "opt") return;
    KeyPath path = part.path;
    path.back() = std::string("ema");
    const Value* list = at_path(content_, path);
    if (list == nullptr || !is_sequence(*list)) return;
    AverageSource source;
    source.place = joined(path);
    source.what = "averages of NeMo's EMAOptimizer";
    source.averages = listed_averages(*list, source.place);
    if (source.averages.size() != optimizer.parameter_count()) {
      throw Error(ErrorCode::kKey, cat(quote(source.place, 200), ": has ", source.averages.size(),
                                       " averages, the optimizer beside it ",
                                       optimizer.parameter_count(), " parameters"));
    }
    auto average = source.averages.begin();
    for (const auto& group : optimizer.groups) {
      for (const std::string& key : group.params) (average++)->key = key;
    }
    if (optimizer.form == OptimizerForm::kIds) source.optimizer = std::move(optimizer);
    out_.push_back(std::move(source));
  }

  void add_lists(const Value& value, std::size_t level) {
    if (level > kMaxLevels) return;
    if (member(value, "schedulefree_state") != nullptr) throw schedule_free_wrapper();
    if (const Value* list = member(value, "shadow_params"); list != nullptr && is_sequence(*list)) {
      KeyPath path = at_;
      path.emplace_back("shadow_params");
      AverageSource source;
      source.place = joined(path);
      source.what = "averages in a list";
      source.averages = listed_averages(*list, source.place);
      source.optimizer = as_optimizer(source.averages);
      source.listed = true;
      if (!source.averages.empty()) out_.push_back(std::move(source));
      return;
    }
    std::int64_t position = 0;
    for (const Value& item : is_sequence(value) ? value.items() : std::span<const Value>()) {
      at_.emplace_back(position++);
      add_lists(item, level + 1);
      at_.pop_back();
    }
    for (const auto& [key, item] : members_of(value)) {
      if (key.as_string() == nullptr && !key.as_int()) continue;
      at_.emplace_back(key.as_string() != nullptr ? *key.as_string()
                                                  : std::to_string(*key.as_int()));
      add_lists(item, level + 1);
      at_.pop_back();
    }
  }

  const Value& content_;
  KeyPath at_;
  std::vector<AverageSource> out_;
};

// Adds what LitEma keeps in models, or takes it out of them.
void add_lit_emas(const Value& content, bool averages, std::vector<hf::FoundModel>& models) {
  for (const hf::FoundModel& model : hf::find_models(content, false)) {
    std::vector<std::string> fronts;
    for (LitEma& ema : lit_emas(model.tensors)) {
      if (!ema.problem.empty()) continue;
      fronts.push_back(ema.front);
      if (averages)
        models.push_back({place_in(model, ema.front), std::move(ema.averages), 0, ema.part});
    }
    const auto own = std::ranges::find(models, model.place, &hf::FoundModel::place);
    if (!averages && !fronts.empty() && own != models.end())
      own->tensors = without_fronts(own->tensors, fronts);
  }
}

// Takes the name of a wrapper, as timm's ModelEmaV3 is, from averages whose model is not wrapped.
void strip_module(const Value& content, std::vector<hf::FoundModel>& averages) {
  const std::string front = cat(kModule, ".");
  const std::vector<hf::FoundModel> models = models_of(content, false);
  for (hf::FoundModel& average : averages) {
    const std::vector<std::string> names = hf::names_of(average.tensors);
    const bool wrapped = !names.empty() && std::ranges::all_of(names, [&](const std::string& name) {
      return name.starts_with(front) &&
             std::ranges::any_of(models, [&](const hf::FoundModel& model) {
               return member(model.tensors, name.substr(front.size())) != nullptr &&
                      member(model.tensors, name) == nullptr;
             });
    });
    if (wrapped) average.tensors = hf::tensors_below(average.tensors, kModule);
  }
}

}  // namespace

std::vector<hf::FoundModel> models_of(const Value& content, bool averages) {
  const bool lightning = is_weight_averaging(content);
  std::vector<hf::FoundModel> models = hf::find_models(content);
  std::erase_if(models, [&](hf::FoundModel& model) {
    const bool module = is_averaged_module(model.tensors);
    const bool holds =
        module || hf::is_average(model.place) || (lightning && model.place == kLightningModel);
    if (module && holds == averages) model.tensors = hf::tensors_below(model.tensors, kModule);
    return holds != averages || (lightning && model.place == kAveraging);
  });
  add_lit_emas(content, averages, models);
  if (averages) strip_module(content, models);
  return models;
}

std::vector<AverageSource> average_sources(const Value& content) {
  return Search(content).run();
}

}  // namespace fsdp::formats
