// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::deepspeed {
namespace {

namespace fs = std::filesystem;

constexpr const char* kZero = "zero";
constexpr const char* kWeights = "fp32";
constexpr const char* kOptimizerState = "zero/optimizer_state.pt";
constexpr std::string_view kSuffix = ".pt";
// Adam's states come in Adam's order; others follow, by name.
constexpr std::string_view kStateOrder[] = {"step", "exp_avg", "exp_avg_sq"};

std::size_t place_of(const std::string& state) {
  return static_cast<std::size_t>(std::ranges::find(kStateOrder, state) - std::begin(kStateOrder));
}

class UniversalCheckpoint : public ModelFiles {
 public:
  explicit UniversalCheckpoint(std::shared_ptr<const Folder> opened)
      : ModelFiles(std::move(opened)) {
    add_model_files();
    read_parameters();
    read_states();
    add_model();
    add_optimizer();
    if (!models_.empty()) add_trainer_state();
    note_left_out();
    description_ = {escape(folder().path().native()), "deepspeed", "universal",
                    models_.empty() ? std::nullopt : version(), std::max<std::int64_t>(ranks_, 1)};
  }

 private:
  // One file of a parameter: a tensor, a number, or a dict that holds a tensor as 'param'.
  struct State {
    std::uint32_t file = 0;
    std::optional<TensorValue> tensor;
  };

  void add_model_files() {
    for (const StateFile& file : state_files(folder())) {
      if (file.other || file.optimizer || file.model_rank != 0) {
        left_out_.push_back(file.name);
        tensor_parallel_ = tensor_parallel_ || file.model_rank != 0;
        continue;
      }
      cut_ = cut_ || file.rank.has_value();
      add_model_file(file);
    }
    if (models_.empty()) {
      findings_.push_back({.code = ErrorCode::kShardMissing,
                           .message = "has no *_model_states.pt, where buffers and the order and "
                                      "shapes of the parameters are"});
      return;
    }
    const Value* ranks = member(model_root(), "dp_world_size");
    const auto said = ranks == nullptr ? std::nullopt : ranks->as_int();
    ranks_ = said.value_or(1);
    if (ranks_ < 1 || ranks_ > kMaxRanks || models_.rbegin()->first >= kMaxRanks)
      fail(ErrorCode::kRank, model_file(), cat("is of ", ranks_, " ranks, at most ", kMaxRanks));
    ranks_ = std::max(ranks_, models_.rbegin()->first + 1);
    const auto there = static_cast<std::int64_t>(models_.size());
    if (!cut_ || there == ranks_) return;
    // Only frozen parameters need these files; the holes of frozen parameters are reported as well.
    findings_.push_back(warning(ErrorCode::kShardMissing, cat("the checkpoint is of ", ranks_,
                                                              " ranks, but *_model_states.pt "
                                                              "exist only of ",
                                                              there)));
  }

  void read_parameters() {
    const Value* groups = models_.empty() ? nullptr : member(model_root(), "param_shapes");
    if (groups == nullptr) return;
    for (const Value& group : groups->items()) {
      group_names_.emplace_back();
      for (const auto& [key, value] :
           mapping_entries(group).value_or(std::span<const Value::Entry>())) {
        const auto shape = shape_of(value);
        if (key.as_string() == nullptr || !shape)
          fail(ErrorCode::kMetaType, model_file(), "'param_shapes' holds no names and shapes");
        if (shapes_.emplace(*key.as_string(), *shape).second)
          group_names_.back().push_back(*key.as_string());
      }
    }
  }

  void read_states() {
    const auto zero = folder_at(folder().path() / kZero);
    for (const std::string& name : zero->list()) {
      const std::string below = cat(kZero, "/", name);
      if (!zero->is_folder(name)) {
        if (below == kOptimizerState) {
          optimizer_state_ = add_file(below, std::nullopt);
        } else {
          left_out_.push_back(below);
        }
        continue;
      }
      const std::vector<std::string> inner = folder_at(zero->path() / name)->list();
      std::vector<std::string> paths;
      for (const std::string& file : inner) {
        if (file.ends_with(kSuffix)) paths.push_back(cat(below, "/", file));
      }
      expect_files(paths);
      for (const std::string& file : inner) {
        const std::string path = cat(below, "/", file);
        if (!file.ends_with(kSuffix) || file == kSuffix || is_folder(folder().path() / path)) {
          left_out_.push_back(path);
          continue;
        }
        states_[name].emplace(file.substr(0, file.size() - kSuffix.size()), read_state(path));
      }
    }
  }

  State read_state(const std::string& path) {
    State state{add_file(path, std::nullopt), std::nullopt};
    const Value* param = member(root(state.file), "param");
    state.tensor = dense_tensor(param == nullptr ? root(state.file) : *param);
    return state;
  }

  const State* state_of(const std::string& name, const std::string& what) const {
    const auto states = states_.find(name);
    if (states == states_.end()) return nullptr;
    const auto found = states->second.find(what);
    return found == states->second.end() ? nullptr : &found->second;
  }

  // Adds the tensor of a parameter's file, whole or, from stage 3, flat.
  void add_state(const KeyPath& path, const std::string& name, const State& state) {
    const TensorValue& tensor = *state.tensor;
    std::vector<std::int64_t> shape = tensor.shape;
    const auto said = shapes_.find(name);
    // Slices of tensor parallel ranks are smaller than the merged tensor.
    if (said != shapes_.end() && said->second != shape && !tensor_parallel_) {
      if (shape.size() == 1 && numel_of(shape) == numel_of(said->second)) {
        shape = said->second;
      } else {
        findings_.push_back({.code = ErrorCode::kShape,
                             .message = cat("has shape ", shape_text(shape), ", expected ",
                                            shape_text(said->second), " as 'param_shapes' says"),
                             .file = index_.files[state.file].name,
                             .key = joined(path)});
      }
    }
    std::vector<Part> parts;
    if (shape == tensor.shape) {
      parts.push_back(part_of(whole_box(shape), state.file, tensor));
    } else {
      add_flat_parts(parts, shape, 0, static_cast<std::int64_t>(numel_of(shape)), state.file,
                     tensor, 0);
    }
    add_tensor(path, tensor.dtype, std::move(shape), std::move(parts));
  }

  void add_model() {
    const auto add = [&](const std::string& name, const std::string& source) {
      if (!shapes_.contains(source)) return false;
      const State* state = state_of(source, kWeights);
      if (state != nullptr && state->tensor) {
        add_state({"model", name}, source, *state);
      } else {
        add_hole({"model", name}, source, kWeights);
      }
      return true;
    };
    std::set<std::string> done;
    if (!models_.empty()) done = add_module(add);
    for (const auto& names : group_names_) {
      for (const std::string& name : names) {
        if (done.insert(name).second) add(name, name);
      }
    }
    for (const auto& [name, states] : states_) {
      const State* state = state_of(name, kWeights);
      if (state != nullptr && state->tensor && done.insert(name).second)
        add_state({"model", name}, name, *state);
    }
  }

  // Adds a tensor without data for a required state that is missing, so that no output looks
  // complete.
  void add_hole(const KeyPath& path, const std::string& name, const std::string& what) {
    const auto said = shapes_.find(name);
    note_missing(name, what, said == shapes_.end() ? "" : joined(path), Finding::Severity::kDamage);
    if (said != shapes_.end())
      add_tensor(path, DType::kFloat32, what == "step" ? std::vector<std::int64_t>() : said->second,
                 {});
  }

  void note_missing(const std::string& name, const std::string& what, const std::string& key,
                    Finding::Severity severity) {
    findings_.push_back(
        {.code = ErrorCode::kShardMissing,
         .message = state_of(name, what) == nullptr ? "is missing" : "holds no dense tensor",
         .file = cat(kZero, "/", name, "/", what, kSuffix),
         .key = key,
         .severity = severity});
  }

  std::vector<std::string> state_names() const {
    std::set<std::string> all;
    for (const auto& [name, states] : states_) {
      for (const auto& [what, state] : states) {
        if (what != kWeights) all.insert(what);
      }
    }
    std::vector<std::string> names(all.begin(), all.end());
    std::ranges::stable_sort(
        names, [](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
    return names;
  }

  void add_optimizer() {
    const std::vector<std::string> kinds = state_names();
    std::vector<std::string> names;
    for (const auto& group : group_names_) names.insert(names.end(), group.begin(), group.end());
    for (const auto& [name, states] : states_) {
      if (!shapes_.contains(name) && (states.size() > 1 || !states.contains(kWeights)))
        names.push_back(name);
    }
    const Value* own =
        optimizer_state_ ? member(root(*optimizer_state_), "optimizer_state_dict") : nullptr;
    for (const std::string& name : names) {
      add_step(name, own);
      for (const std::string& kind : kinds) {
        const State* state = state_of(name, kind);
        const KeyPath path = {"optimizer", "state", name, kind};
        if (state == nullptr && has_state(name)) {
          add_hole(path, name, kind);
        } else if (state == nullptr) {
          note_missing(name, kind, {}, Finding::Severity::kWarning);
        } else if (!state->tensor) {
          add_value(path, root(state->file), state->file);
        } else if (state->tensor->shape.empty()) {
          add_tensor(path, state->tensor->dtype, {},
                     {part_of(whole_box({}), state->file, *state->tensor)});
        } else {
          add_state(path, name, *state);
        }
      }
    }
    if (!optimizer_state_) {
      findings_.push_back(warning(ErrorCode::kShardMissing,
                                  "is missing: the options of the parameter groups",
                                  kOptimizerState));
      return;
    }
    add_param_groups(member(root(*optimizer_state_), "param_groups"), *optimizer_state_,
                     group_names_);
  }

  // Returns whether a parameter has state; a parameter that never had a gradient has none.
  bool has_state(const std::string& name) const {
    const auto states = states_.find(name);
    return states != states_.end() &&
           states->second.size() > (states->second.contains(kWeights) ? 1U : 0U);
  }

  // Stage 3 keeps the step count with the state of rank 0's flat groups, all at the same step.
  void add_step(const std::string& name, const Value* own) {
    const Value* states = own == nullptr ? nullptr : member(*own, "state");
    const auto groups = states == nullptr ? std::nullopt : mapping_entries(*states);
    if (!groups || groups->empty() || state_of(name, "step") != nullptr || !has_state(name)) return;
    const Value* step = member(groups->front().second, "step");
    if (step == nullptr) return;
    const KeyPath path = {"optimizer", "state", name, "step"};
    const auto tensor = dense_tensor(*step);
    if (!tensor) {
      add_value(path, *step, *optimizer_state_);
    } else if (tensor->shape.empty()) {
      add_tensor(path, tensor->dtype, {}, {part_of(whole_box({}), *optimizer_state_, *tensor)});
    }
  }

  void note_left_out() {
    for (const std::string& name : folder().list()) {
      if (name != kZero && !state_file(name)) left_out_.push_back(name);
    }
    for (Finding& finding : left_out_finding(left_out_, true))
      findings_.push_back(std::move(finding));
  }

  std::map<std::string, std::map<std::string, State>> states_;  // by parameter, by file
  std::map<std::string, std::vector<std::int64_t>> shapes_;     // of trained parameters
  std::vector<std::vector<std::string>> group_names_;
  std::optional<std::uint32_t> optimizer_state_;
  std::vector<std::string> left_out_;
  bool tensor_parallel_ = false;
};

bool has_parameter_folders(const fs::path& folder) {
  const fs::path zero = folder / kZero;
  if (!is_folder(zero)) return false;
  for (const std::string& name : folder_at(zero)->list()) {
    if (is_regular(zero / name / cat(kWeights, kSuffix))) return true;
  }
  return false;
}

}  // namespace

std::optional<fs::path> universal_folder(const Listing& folder) {
  if (has_parameter_folders(folder.path())) return folder.path();
  if (folder.has("latest")) return std::nullopt;
  const auto tag = named_folder(*folder.folder, "latest_universal");
  if (!tag || !has_parameter_folders(folder.path() / *tag)) return std::nullopt;
  return folder.path() / *tag;
}

bool is_universal_folder(const Listing& folder) {
  return universal_folder(folder).has_value();
}

std::unique_ptr<StoredCheckpoint> open_universal(const fs::path& path) {
  const fs::path folder = universal_folder(Listing(path)).value_or(path);
  auto checkpoint = std::make_unique<UniversalCheckpoint>(folder_at(folder));
  if (folder == path) return checkpoint;
  return with_trainer_files(std::move(checkpoint), path);
}

}  // namespace fsdp::formats::deepspeed
