// SPDX-License-Identifier: Apache-2.0
// Loading of training states from checkpoints of any layout.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/families/trainers/framework_content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/state_tree.h"
#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/grad_scaler.h"
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"
#include "libfsdp/internal/checkpoint/load_plan.h"
#include "libfsdp/internal/checkpoint/trainer_entries.h"
#include "libfsdp/internal/checkpoint/training_parts.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

using formats::PartKind;
using formats::StatePart;
using formats::Value;

bool is_optimizer(const StatePart& part) {
  return part.kind == PartKind::kOptimizer || part.kind == PartKind::kFlattenedOptimizer;
}

// Returns `content` without its optimizers.
Value without_optimizers(const Value& content, const std::vector<StatePart>& parts) {
  std::vector<std::string> keys;
  for (const StatePart& part : parts) {
    if (is_optimizer(part)) keys.push_back(formats::joined(part.path));
  }
  return formats::pruned(content, [&](const std::string& leaf) {
    return std::none_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return leaf == key || leaf.starts_with(key + ".");
    });
  });
}

// Returns the place of the model in `models`, which may also be averages of its weights, and other
// tensors by names.  If there are several, returns the one with a usual name of a model.
// Throws: c10::Error if none or several of them have such a name.
std::size_t chosen_model(const std::vector<StatePart>& models, const std::string& path) {
  if (models.size() == 1) return 0;
  std::vector<std::size_t> named;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::string key = formats::joined(models[i].path);
    if (key == "model" || key == "state_dict" || key == "module") named.push_back(i);
  }
  FSDP_CHECK(named.size() == 1, path, ": expected one model in the checkpoint, found ",
             models.size());
  return named[0];
}

// Returns whether a part belongs to the model of this name.  A part of the first model, whose name
// is empty, is under none of the names.
bool is_of(const StatePart& part, const std::string& name, const std::vector<TrainedModel>& all) {
  const auto is_under = [&](const std::string& other) {
    const std::string key = formats::joined(part.path);
    return key == other || key.starts_with(other + ".");
  };
  if (!name.empty()) return is_under(name);
  return std::none_of(all.begin(), all.end(), [&](const TrainedModel& trained) {
    return !trained.name.empty() && is_under(trained.name);
  });
}

std::string prefix_of(const StatePart& part) {
  return part.path.empty() ? "" : formats::joined(part.path) + ".";
}

// Returns the part of a file without nesting (safetensors) that belongs to {"model": {...}}: the
// names that begin with "model.", if no name in the model itself does.  Else returns nullopt.
std::optional<Value> unnested(const Value& part, const StateDict& model) {
  constexpr std::string_view kPrefix = "model.";
  const auto begins = [&](const auto& entry) { return text_of(entry.first).starts_with(kPrefix); };
  const auto entries = formats::mapping_entries(part);
  if (!entries || std::any_of(model.entries().begin(), model.entries().end(), begins)) return {};
  std::vector<Value::Entry> inner;
  for (const auto& [key, value] : *entries) {
    const std::string* const name = key.as_string();
    if (name == nullptr || !name->starts_with(kPrefix)) return {};
    inner.emplace_back(Value::string(name->substr(kPrefix.size())), value);
  }
  return Value::dict(std::move(inner));
}

constexpr const char* kMeta = "meta.pt";

// Returns whether save() wrote the folder, judging by the names of its parts, and meta.pt is
// missing.
bool has_lost_meta(const std::filesystem::path& path, const std::vector<StatePart>& parts) {
  std::error_code ignored;
  return std::any_of(
             parts.begin(), parts.end(),
             [](const StatePart& part) { return formats::joined(part.path) == "optimizer_0"; }) &&
         std::filesystem::is_regular_file(path / ".metadata", ignored) &&
         !std::filesystem::exists(path / kMeta, ignored);
}

class TrainingLoad {
 public:
  TrainingLoad(const std::filesystem::path& path, TrainingState& state,
               const TrainingLoadOptions& options)
      : state_(state),
        options_(options),
        reader_(path, options.allowed_globals),
        plan_(reader_, options) {
    const std::vector<StatePart> parts = formats::state_parts_of(reader_.content());
    const formats::TrainerState rest =
        formats::trainer_state(without_optimizers(reader_.content(), parts));
    std::vector<StatePart> models = parts;
    std::erase_if(models, [](const StatePart& part) { return part.kind != PartKind::kModel; });
    const std::vector<TrainedModel> wanted = models_of(state);
    std::set<std::size_t> taken;
    models_.reserve(wanted.size());  // the plan refers to them
    for (const TrainedModel& trained : wanted) {
      std::vector<std::size_t> places;
      std::vector<StatePart> own;
      for (std::size_t i = 0; i < models.size(); ++i) {
        if (!is_of(models[i], trained.name, wanted)) continue;
        places.push_back(i);
        own.push_back(models[i]);
      }
      const std::string what = path.native() + (trained.name.empty() ? "" : ", " + trained.name);
      const std::size_t model = places.empty() ? 0 : places[chosen_model(own, what)];
      FSDP_CHECK(!places.empty(), what, ": expected one model in the checkpoint, found 0");
      taken.insert(model);
      const Value& found = rest.models.at(model);
      Loaded& loaded = models_.emplace_back();
      loaded.trained = trained;
      const StateDictTypeScope scope(*trained.model, StateDictType::kSharded);
      loaded.state = trained.model->state_dict();
      const auto inner = unnested(found, loaded.state);
      plan_.match(loaded.state, inner ? *inner : found,
                  inner ? "model." : prefix_of(models[model]));
      if (!options.optimizers) continue;
      std::vector<StatePart> optimizers = parts;
      std::erase_if(optimizers, [&](const StatePart& part) {
        return !is_optimizer(part) || !is_of(part, trained.name, wanted);
      });
      plan_optimizers(what, optimizers, loaded);
    }
    lacks_meta_ = options.extra && has_lost_meta(path, parts);
    if (state.grad_scaler != nullptr) plan_scaler(path, rest);
    if (options.extra) {
      for (const auto& [key, value] : rest.rest) {
        const auto* const name = key.as_string();
        const bool is_known =
            name != nullptr && ((scaler_ && is_name_of_scaler(*name)) ||
                                std::any_of(wanted.begin(), wanted.end(),
                                            [&](const auto& each) { return each.name == *name; }));
        if (!is_known) read_extra(key, value);
      }
      for (std::size_t i = 0; i < models.size(); ++i) {
        if (taken.count(i) == 0)
          read_extra(Value::string(formats::joined(models[i].path)), rest.models[i]);
      }
    }
    plan_.check();
  }

  CheckpointReader& reader() { return reader_; }

  // Called after everything was read.
  LoadReport finish(const std::shared_ptr<ProcessGroup>& group, const std::string& what) {
    LoadReport report = plan_.finish();
    std::move(left_out_.begin(), left_out_.end(), std::back_inserter(report.unexpected));
    for (const Loaded& loaded : models_)
      loaded.trained.model->load_state_dict(loaded.state, /*strict=*/false);
    agree(group, what, [&] {
      for (const Loaded& loaded : models_) {
        for (std::size_t i = 0; i < loaded.optimizers.size(); ++i)
          optim_state_dict_to_load(*loaded.trained.model, *loaded.trained.optimizers[i],
                                   loaded.optimizers[i], true);
      }
    });
    for (auto& [key, value] : extra_) state_.extra.set(key, std::move(value));
    if (lacks_meta_) {
      report.missing.emplace_back(kMeta);
      if (group->rank() == 0) {
        TORCH_WARN(
            what, ": ", kMeta,
            " is missing: epoch, step and the rest of TrainingState::extra are not restored");
      }
    }
    if (scaler_)
      state_.grad_scaler->load_state(*scaler_);
    else if (state_.grad_scaler != nullptr)
      report.missing.emplace_back("FSDPPrecision");
    return report;
  }

 private:
  // What is read of one model.
  struct Loaded {
    TrainedModel trained;
    StateDict state;
    std::vector<StateDict> optimizers;
  };

  void plan_optimizers(const std::string& path, const std::vector<StatePart>& found,
                       Loaded& loaded) {
    const std::size_t wanted = loaded.trained.optimizers.size();
    FSDP_CHECK(found.size() >= wanted, path, ": expected ", wanted,
               " optimizers in the checkpoint, found ", found.size(),
               "; set TrainingLoadOptions::optimizers to false to load the rest");
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::string key = formats::joined(found[i].path);
      if (i >= wanted) {
        plan_.unexpected(key);
        continue;
      }
      loaded.optimizers.push_back(
          plan_optimizer(plan_, reader_, *loaded.trained.model, *loaded.trained.optimizers[i],
                         *formats::at_path(reader_.content(), found[i].path),
                         found[i].kind == PartKind::kFlattenedOptimizer, key, left_out_));
    }
  }

  void plan_scaler(const std::filesystem::path& path, const formats::TrainerState& rest) {
    for (const auto& [key, value] : rest.rest) {
      const auto* const name = key.as_string();
      if (name == nullptr || !is_name_of_scaler(*name)) continue;
      const StateValue read = reader_.value(value, *name, left_out_);
      if (const StateDict* const dict = read.as_dict()) scaler_ = scaler_state(*dict);
    }
    FSDP_CHECK(
        scaler_ || !options_.strict, path.native(),
        ": expected the state of a gradient scaler in the checkpoint (FSDPPrecision, scaler, ...), "
        "found none; set TrainingState::grad_scaler to null to keep the scaler as it is");
  }

  void read_extra(const Value& key, const Value& value) {
    StateKey own = state_key(key).value_or(StateKey());
    const std::size_t before = left_out_.size();
    StateValue read = reader_.value(value, text_of(own), left_out_);
    const bool nothing = read.is_none() && left_out_.size() != before;
    if (!nothing) extra_.emplace_back(std::move(own), std::move(read));
  }

  TrainingState& state_;
  const TrainingLoadOptions options_;
  CheckpointReader reader_;
  LoadPlan plan_;
  std::vector<Loaded> models_;
  bool lacks_meta_ = false;
  std::optional<GradScalerState> scaler_;
  std::vector<StateDict::Entry> extra_;
  std::vector<std::string> left_out_;
};

}  // namespace

LoadReport load(const std::filesystem::path& path, TrainingState& state,
                const TrainingLoadOptions& given) {
  const TrainingLoadOptions options = with_option_left_out(given);
  const auto group = group_of(state);
  const std::string what = "load " + path.native();
  std::optional<TrainingLoad> training;
  agree(group, what, [&] { training.emplace(path, state, options); });
  training->reader().read(group, what, options.verify);
  return training->finish(group, what);
}

}  // namespace fsdp
