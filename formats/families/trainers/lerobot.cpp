// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/trainers/framework_content.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::lerobot {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = "training_state";
constexpr const char* kModel = "pretrained_model";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kOptimizer = "optimizer_state.safetensors";
constexpr const char* kGroups = "optimizer_param_groups.json";
constexpr const char* kRandom = "rng_state.safetensors";
constexpr char kSeparator = '/';  // between the keys of a state
// Groups list a number or a name for each parameter.
constexpr std::uint64_t kMostJsonBytes = 64U << 20U;

// A JSON file, and the top-level key that its content has.
struct JsonPart {
  const char* file;
  const char* key;
};
constexpr std::array<JsonPart, 2> kJsonParts = {
    {{"scheduler_state.json", "scheduler"}, {"training_step.json", "training_step"}}};

Value value_of(const Json& json) {
  struct Visitor {
    Value operator()(std::nullptr_t) const { return {}; }
    Value operator()(bool value) const { return Value::boolean(value); }
    Value operator()(std::int64_t value) const { return Value::integer(value); }
    Value operator()(std::uint64_t value) const {
      throw Error(ErrorCode::kJson, cat(value, " is not a number of 63 bits"));
    }
    Value operator()(double value) const { return Value::floating(value); }
    Value operator()(const std::string& value) const { return Value::string(value); }
    Value operator()(const Json::Array& items) const {
      std::vector<Value> values;
      for (const Json& item : items) values.push_back(value_of(item));
      return Value::list(std::move(values));
    }
    Value operator()(const Json::Object& members) const {
      std::vector<Value::Entry> entries;
      for (const auto& [key, value] : members)
        entries.emplace_back(Value::string(key), value_of(value));
      return Value::dict(std::move(entries));
    }
    Value operator()(const Unheld&) const { return {}; }
  };
  return std::visit(Visitor{}, json.storage());
}

// The content of a JSON file as values below a path.
class JsonFile : public StoredCheckpoint {
 public:
  JsonFile(const fs::path& path, const KeyPath& below) : file_(file_at(path)) {
    description_.path = escape(path.native());
    index_.files.push_back({.name = path.filename().native(), .bytes = file_->size()});
    content_ = in_context(description_.path,
                          [&] { return value_of(parse_json(read_text(*file_, kMostJsonBytes))); });
    for (Leaf& leaf : leaves_of(content_)) {
      KeyPath whole = below;
      whole.insert(whole.end(), leaf.path.begin(), leaf.path.end());
      add(whole, std::move(leaf.value));
    }
  }

  const Value& content() const { return content_; }
  // Adds a value that no file has.
  void add(const KeyPath& path, Value value) {
    index_.add(ValueEntry{joined(path), path, {0, 0, values_.size(), 0}});
    values_.push_back(std::move(value));
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t /*chunk*/) const override {
    throw Error(ErrorCode::kKey, cat(description_.path, ": holds no tensor ", quote(tensor.key)));
  }
  Value value(const ValueEntry& value) const override { return values_.at(value.location.offset); }
  ChunkData storage(const StorageRef& /*storage*/) const override {
    throw Error(ErrorCode::kKey, cat(description_.path, ": holds no storage"));
  }
  VerifyReport verify(const VerifyOptions& /*options*/) const override {
    return {.findings = {}, .items = 1, .bytes_checked = 0, .bytes_unchecked = file_->size()};
  }
  void check_unchanged() const override { file_->check_unchanged(); }

 private:
  std::shared_ptr<const File> file_;
  Value content_;
  std::vector<Value> values_;
};

// Returns the parameters that groups list.  Throws: kType.
std::set<std::string> listed_parameters(const Value& groups) {
  std::set<std::string> listed;
  std::size_t number = 0;
  if (groups.kind() != ValueKind::kList)
    throw Error(ErrorCode::kType, cat("is ", kind_name(groups.kind()), ", expected a list"));
  for (const Value& group : groups.items()) {
    const Value* params = member(group, "params");
    if (params == nullptr || params->kind() != ValueKind::kList)
      throw Error(ErrorCode::kType, cat("group ", number, " has no list 'params'"));
    for (const Value& one : params->items()) {
      if (one.as_string() == nullptr && !one.as_int())
        throw Error(ErrorCode::kType,
                    cat("group ", number, ": a parameter is neither a number nor a name"));
      listed.insert(one.as_string() != nullptr ? *one.as_string() : std::to_string(*one.as_int()));
    }
    ++number;
  }
  return listed;
}

// Opens the folder's parts; a part that cannot be read becomes a finding.
class Reader {
 public:
  explicit Reader(const fs::path& folder)
      : folder_(folder), within_(folder_at(folder)->is_folder(kState) ? kState : "") {}

  std::unique_ptr<StoredCheckpoint> run() {
    if (!within_.empty()) {
      const Listing all(folder_);
      if (all.folder->is_folder(kModel)) add_model(Listing(folder_ / kModel));
    }
    const Listing state(within_.empty() ? folder_ : folder_ / within_);
    const std::string front = within_.empty() ? "" : within_ + "/";
    std::vector<std::string> left = state.names;
    add_optimizer(state, front, "optimizer", left);
    for (const std::string& name : state.names) {
      // Several optimizers have a folder each.
      if (!state.folder->is_folder(name)) continue;
      const Listing own(state.path() / name);
      if (!own.has(kOptimizer) && !own.has(kGroups)) continue;
      std::erase(left, name);
      std::vector<std::string> beside = own.names;
      add_optimizer(own, front + name + "/", "optimizer_" + name, beside);
    }
    for (const auto& [file, key] : kJsonParts) {
      if (!state.has(file)) continue;
      std::erase(left, file);
      guarded(front + file, [&] {
        parts_.push_back({.checkpoint = std::make_unique<JsonFile>(state.path() / file, KeyPath{}),
                          .name = key,
                          .folder = front});
      });
    }
    if (state.has(kRandom)) {
      std::erase(left, kRandom);
      guarded(front + kRandom, [&] {
        parts_.push_back({.checkpoint = safetensors::open_file(state.path() / kRandom),
                          .name = "rng_state",
                          .folder = front});
      });
    }
    note_left(left, front);
    return combine_checkpoints(std::move(parts_), {escape(folder_.native()), "trainer", "lerobot"},
                               std::move(findings_));
  }

 private:
  template <typename Work>
  void guarded(const std::string& file, const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      findings_.push_back(
          {.code = error.code(),
           .message = cat(error.what(), "; without this file, the rest can be used"),
           .file = file,
           .hint = error.hint()});
    }
  }

  void note_left(const std::vector<std::string>& names, const std::string& front) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(front + name);
    for (Finding& finding : left_out_finding(paths)) findings_.push_back(std::move(finding));
  }

  void add_model(const Listing& model) {
    std::vector<std::string> left = model.names;
    for (const char* const file : {kWeights, "adapter_model.safetensors"}) {
      if (!model.has(file)) continue;
      std::erase(left, file);
      guarded(cat(kModel, "/", file), [&] {
        parts_.push_back({.checkpoint = safetensors::open_file(model.path() / file),
                          .name = "model",
                          .folder = cat(kModel, "/")});
      });
      break;
    }
    note_left(left, cat(kModel, "/"));
  }

  void add_optimizer(const Listing& folder, const std::string& front, const std::string& name,
                     std::vector<std::string>& left) {
    for (const auto& [there, missing] :
         {std::pair(kOptimizer, kGroups), std::pair(kGroups, kOptimizer)}) {
      if (!folder.has(there)) continue;
      std::erase(left, there);
      if (folder.has(missing)) continue;
      findings_.push_back(
          {.code = ErrorCode::kShardMissing,
           .message = cat(front, missing, " is missing, and ", there, " alone is not an optimizer"),
           .file = front + missing});
    }
    std::optional<std::set<std::string>> listed;
    JsonFile* beside = nullptr;
    if (folder.has(kGroups)) {
      guarded(front + kGroups, [&] {
        auto groups = std::make_unique<JsonFile>(folder.path() / kGroups, KeyPath{"param_groups"});
        listed = in_context(groups->description().path,
                            [&] { return listed_parameters(groups->content()); });
        beside = groups.get();
        parts_.push_back({.checkpoint = std::move(groups), .name = name, .folder = front});
      });
    }
    if (!folder.has(kOptimizer)) return;
    guarded(front + kOptimizer, [&] {
      auto state = safetensors::open_file(folder.path() / kOptimizer);
      for (const TensorEntry& tensor : state->index().tensors) check_key(tensor.key, listed);
      // An optimizer without states has them all the same for PyTorch.
      if (state->index().tensors.empty() && beside != nullptr)
        beside->add(KeyPath{"state"}, Value::dict({}));
      parts_.push_back(
          {.checkpoint = std::move(state), .name = name, .folder = front, .separator = kSeparator});
    });
  }

  // Throws: kKey for a key that is not state/PARAMETER/NAME of a listed parameter.
  static void check_key(const std::string& key,
                        const std::optional<std::set<std::string>>& listed) {
    const std::size_t first = key.find(kSeparator);
    const std::size_t second = key.find(kSeparator, first + 1);
    if (first == key.npos || second == key.npos || key.substr(0, first) != "state" ||
        second == first + 1 || second + 1 == key.size())
      throw Error(ErrorCode::kKey, cat(kOptimizer, ": ", quote(key, 200),
                                       " is not of the form state/PARAMETER/NAME"));
    const std::string parameter = key.substr(first + 1, second - first - 1);
    if (listed && !listed->contains(parameter))
      throw Error(ErrorCode::kKey, cat(kOptimizer, ": holds state of ", quote(parameter, 200),
                                       ", which no group in ", kGroups, " lists"));
  }

  const fs::path folder_;
  const std::string within_;  // the folder of the state; empty: it is the whole
  std::vector<CheckpointPart> parts_;
  Findings findings_;
};

// Returns a value as Python's json.dump writes it.  Throws: kUnsupported naming what JSON lacks.
Json json_of(const Value& value, const std::string& where) {
  const auto refuse = [&](const std::string& what) -> Error {
    return {ErrorCode::kUnsupported,
            cat(quote(where, 200), " is ", what, ", which LeRobot's JSON files cannot hold")};
  };
  if (value.kind() == ValueKind::kNone) return nullptr;
  if (const auto flag = value.as_bool()) return *flag;
  if (const auto number = value.as_int()) return *number;
  if (const auto number = value.as_float()) {
    if (!std::isfinite(*number)) throw refuse("not finite");
    return *number;
  }
  if (value.as_string() != nullptr) return *value.as_string();
  if (is_sequence(value)) {
    Json::Array items;
    for (const Value& item : value.items())
      items.push_back(json_of(item, cat(where, ".", items.size())));
    return items;
  }
  const auto entries = mapping_entries(value);
  if (!entries) throw refuse(tensor_number(value) ? "a tensor" : "an object");
  Json::Object members;
  for (const auto& [key, item] : *entries) {
    if (key.as_string() == nullptr) throw refuse("a mapping with keys that are not text");
    members.emplace_back(*key.as_string(), json_of(item, cat(where, ".", *key.as_string())));
  }
  return members;
}

// Adds the tensors of a nested state under keys joined by slashes.  Throws: kUnsupported.
void add_state(const Value& value, const std::string& front, std::vector<Value::Entry>& out) {
  if (tensor_number(value)) {
    out.emplace_back(Value::string(front), value);
    return;
  }
  const auto entries = mapping_entries(value);
  if (!entries) {
    throw Error(ErrorCode::kUnsupported,
                cat(quote(front, 200),
                    " is not a tensor, and LeRobot's file of states holds only "
                    "tensors"));
  }
  for (const auto& [key, item] : *entries) {
    const std::string step = key.as_string() != nullptr ? *key.as_string()
                             : key.as_int()             ? std::to_string(*key.as_int())
                                                        : std::string();
    if (step.empty() || step.find(kSeparator) != step.npos) {
      throw Error(ErrorCode::kUnsupported, cat(quote(front, 200), ": the key ", quote(step, 200),
                                               " cannot be part of a path with slashes"));
    }
    add_state(item, cat(front, kSeparator, step), out);
  }
}

class LeRobotOutput : public Output {
 public:
  LeRobotOutput(const Checkpoint& source, fs::path destination, OutputOptions options)
      : Output(source, std::move(destination), std::move(options)) {
    plan_.format = "lerobot";
    plan_.folder = true;
  }

  void add_tensors(const std::string& name, const Value& content) {
    count_leaves(content);
    tensors_.emplace_back(name, safetensors::Writer(source_, content, {}));
    const safetensors::Writer& writer = tensors_.back().second;
    plan_.tied.insert(plan_.tied.end(), writer.tied().begin(), writer.tied().end());
    plan_.tensors -= writer.tied().size();
    plan_.files.push_back({name, writer.files()[0].bytes});
  }
  void add_json(const std::string& name, const Json& json) {
    texts_.emplace_back(name, to_text(json, 4));
    plan_.files.push_back({name, texts_.back().second.size()});
    ++plan_.values;
  }
  void drop_value() { ++plan_.dropped_values; }
  void note_missing(const std::string& name, const std::string& why) {
    plan_.notes.push_back({name, why});
  }

 private:
  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    for (const auto& [name, writer] : tensors_) {
      const PlannedFile file{name, writer.files()[0].bytes};
      writer.write_files(folder, std::span(&file, 1), options, total);
    }
    for (const auto& [name, text] : texts_)
      folder.add_file(name).write_at(0, std::as_bytes(std::span(text)));
  }

  std::vector<std::pair<std::string, safetensors::Writer>> tensors_;
  std::vector<std::pair<std::string, std::string>> texts_;
};

std::string in_state(const std::string& file) {
  return cat(kState, "/", file);
}

void add_rest(LeRobotOutput& output, const Value::Entry& entry, const Checkpoint& source,
              bool drop_values, std::set<std::string>& written) {
  const std::string key = entry.first.as_string() == nullptr ? "" : *entry.first.as_string();
  const auto part = std::ranges::find(kJsonParts, key, &JsonPart::key);
  if (part != kJsonParts.end()) {
    output.add_json(in_state(part->file), json_of(with_values(source, entry.second), key));
    written.insert(key);
  } else if (key == "rng_state" && !leaves_of(entry.second).empty() &&
             std::ranges::all_of(leaves_of(entry.second), [](const Leaf& leaf) {
               return tensor_number(leaf.value).has_value();
             })) {
    output.add_tensors(in_state(kRandom), entry.second);
    written.insert(key);
  } else if (drop_values) {
    output.drop_value();
  } else {
    throw Error(ErrorCode::kUnsupported,
                cat(quote(key), ": LeRobot's folders have no place for it"), {Remedy::kDropValues});
  }
}

std::unique_ptr<Output> plan(const Checkpoint& source, const Value& content,
                             const fs::path& destination, const FrameworkOptions& options,
                             OptimizerForm form) {
  return in_context(source.description().path, [&] {
    const TrainerState state = trainer_state_of(source, content, form);
    if (state.models.size() > 1 || state.optimizers.size() != 1) {
      throw Error(ErrorCode::kUnsupported,
                  cat("LeRobot's folders are written of one optimizer and at most one model; the "
                      "checkpoint has ",
                      state.optimizers.size(), " and ", state.models.size()),
                  {Remedy::kChooseOne});
    }
    auto output = std::make_unique<LeRobotOutput>(source, destination, options.output);
    const Value& optimizer = state.optimizers[0];
    std::vector<Value::Entry> tensors;
    if (const Value* states = member(optimizer, "state")) add_state(*states, "state", tensors);
    for (const auto& model : state.models) output->add_tensors(cat(kModel, "/", kWeights), model);
    output->add_tensors(in_state(kOptimizer), Value::dict(std::move(tensors)));
    output->add_json(
        in_state(kGroups),
        json_of(with_values(source, *member(optimizer, "param_groups")), "param_groups"));
    std::set<std::string> written;
    for (const Value::Entry& entry : state.rest)
      add_rest(*output, entry, source, options.drop_values, written);
    for (const auto& [key, file] :
         {std::pair("training_step", "training_step.json"), std::pair("rng_state", kRandom)}) {
      if (!written.contains(key))
        output->note_missing(in_state(file),
                             cat("is not written, because the source has no '", key,
                                 "'; load_training_state needs it, load_optimizer_state does not"));
    }
    return output;
  });
}

}  // namespace

bool is_lerobot_folder(const Listing& folder) {
  constexpr const char* kStep = "training_step.json";
  if (folder.has(kOptimizer) || folder.has(kGroups) || (folder.has(kStep) && folder.has(kRandom)))
    return true;
  if (!folder.has(kState) || !folder.folder->is_folder(kState)) return false;
  const Listing state(folder.path() / kState);
  return state.has(kOptimizer) || state.has(kGroups) || state.has(kStep);
}

std::unique_ptr<StoredCheckpoint> open_lerobot(const fs::path& folder) {
  return Reader(folder).run();
}

std::unique_ptr<Output> plan_by_id(const Checkpoint& source, const Value& content,
                                   const fs::path& destination, const FrameworkOptions& options) {
  return plan(source, content, destination, options, OptimizerForm::kIds);
}

std::unique_ptr<Output> plan_by_name(const Checkpoint& source, const Value& content,
                                     const fs::path& destination, const FrameworkOptions& options) {
  return plan(source, content, destination, options, OptimizerForm::kNames);
}

}  // namespace fsdp::formats::lerobot
