// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/dcp/output.h"
#include "formats/families/torch/torch.h"
#include "formats/families/torch/writer.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/families/trainers/framework_content.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

std::string top_of(const KeyPath& path) {
  const auto* const top = path.empty() ? nullptr : std::get_if<std::string>(&path[0]);
  return top == nullptr ? std::string() : *top;
}

// Several folders and files in one folder.
class ParentOutput : public Output {
 public:
  ParentOutput(const Checkpoint& source, std::filesystem::path destination, OutputOptions options)
      : Output(source, std::move(destination), std::move(options)) {
    plan_.format = "accelerate";
    plan_.folder = true;
  }

  // `value` is the only member of the folder's content.
  void add_folder(const std::string& name, const std::string& key, const Value& value,
                  std::int64_t world_size) {
    DcpOutputOptions dcp;
    dcp.world_size = world_size;
    dcp.folder = name + "/";
    dcp.meta = Value::dict({});
    folders_.push_back(plan_dcp_output(source_, Value::dict({{Value::string(key), value}}),
                                       destination_, options_, dcp));
    const OutputPlan& part = folders_.back()->plan();
    plan_.files.insert(plan_.files.end(), part.files.begin(), part.files.end());
    plan_.tensors += part.tensors;
    plan_.values += part.values;
    plan_.tensor_bytes += part.tensor_bytes;
    plan_.cut_tensors += part.cut_tensors;
    plan_.whole_tensors += part.whole_tensors;
  }

  void add_file(const std::string& name, const Value& content) {
    files_.emplace_back(name, TorchSaveWriter(source_, with_values(source_, content)));
    plan_.files.push_back({name, files_.back().second.file_bytes()});
    count_leaves(content);
  }

  void add_carried(CarriedFiles carried) {
    carried_ = std::move(carried);
    carried_.plan(plan_);
  }

  void drop_value() { ++plan_.dropped_values; }

 private:
  void write_files(AtomicFolder& parent, const CopyOptions& options, CopyResult& total) override {
    for (const auto& folder : folders_) folder->write_files(parent, options, total);
    for (auto& [name, writer] : files_) writer.write(parent.add_file(name), options);
    carried_.write(parent, options_.sync);
  }

  std::vector<std::unique_ptr<Output>> folders_;
  std::vector<std::pair<std::string, TorchSaveWriter>> files_;
  CarriedFiles carried_;
};

// Returns the key of the content that a file beside the model is; empty if it is none.
std::string key_of_file(const std::string& name) {
  return is_trainer_file(name) ? name.substr(0, name.rfind('.')) : std::string();
}

// Finds the files that go along from another of Accelerate's folders: not those whose content was
// left out on purpose.
CarriedFiles carried_beside(const Checkpoint& source, const TrainerState& state,
                            const FrameworkOptions& options) {
  const Listing listing(options.beside.value().folder);
  const std::vector<std::string> names = accelerate::names_beside(listing);
  std::set<std::string> left;  // keys that the source has
  for (const ValueEntry& value : source.index().values) left.insert(top_of(value.path));
  for (const TensorEntry& tensor : source.index().tensors) left.insert(top_of(tensor.path));
  for (const auto& [key, value] : state.rest) {
    if (key.as_string() != nullptr) left.erase(*key.as_string());
  }
  return carried_files(listing, {.from_ranks = source.description().ranks,
                                 .to_ranks = options.world_size,
                                 .allowed_globals = options.beside->allowed_globals,
                                 .wanted = [&](const std::string& name) {
                                   return std::ranges::find(names, name) != names.end() &&
                                          !left.contains(key_of_file(name));
                                 }});
}

}  // namespace

std::unique_ptr<Output> plan_accelerate(const Checkpoint& source, const Value& content,
                                        const std::filesystem::path& destination,
                                        const FrameworkOptions& options) {
  const TrainerState state = trainer_state_of(source, content, OptimizerForm::kNames);
  const bool carries = options.beside && source.description().format == "accelerate" &&
                       !options.drop_values && is_folder(options.beside->folder);
  OutputOptions how = options.output;
  if (carries) how.replaced = is_carried_name;
  auto output = std::make_unique<ParentOutput>(source, destination, std::move(how));
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    output->add_folder(cat("pytorch_model_fsdp_", i), "model", state.models[i], options.world_size);
  }
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    output->add_folder(cat("optimizer_", i), "optimizer", state.optimizers[i], options.world_size);
  }
  if (state.models.empty() && state.optimizers.empty()) {
    throw Error(ErrorCode::kUnsupported,
                source.description().path + ": has neither a model nor an optimizer");
  }
  std::set<std::string> carried;  // keys
  if (carries) {
    CarriedFiles files = carried_beside(source, state, options);
    for (const std::string& name : files.seen) carried.insert(key_of_file(name));
    output->add_carried(std::move(files));
  }
  for (const auto& [key, value] : state.rest) {
    const std::string name = key.as_string() == nullptr ? std::string() : *key.as_string();
    if (!name.empty() && carried.contains(name)) continue;
    if (name == "scheduler") {
      output->add_file("scheduler.bin", value);
    } else if (is_trainer_file(name + ".pkl")) {
      output->add_file(name + ".pkl", value);
    } else if (options.drop_values) {
      output->drop_value();
    } else {
      throw Error(ErrorCode::kUnsupported,
                  cat(source.description().path, ": ", quote(name),
                      ": Accelerate's folders have no place for it"),
                  {Remedy::kDropValues});
    }
  }
  return output;
}

std::unique_ptr<Output> plan_lightning_folder(const Checkpoint& source, const Value& content,
                                              const std::filesystem::path& destination,
                                              const FrameworkOptions& options) {
  const TrainerState state = trainer_state_of(source, content, OptimizerForm::kNames);
  // A folder with the key state_dict comes from ModelParallelStrategy, which requires that name.
  const bool of_lightning = source.description().layout == "lightning";
  const bool state_dict = of_lightning && content.find("state_dict") != nullptr;
  DcpOutputOptions dcp;
  dcp.world_size = options.world_size;
  dcp.meta = with_own_tensors(source, with_values(source, lightning_meta(state)));
  return plan_dcp_output(source, lightning_sharded(state, state_dict ? "state_dict" : "model"),
                         destination, options.output, dcp);
}

std::unique_ptr<Output> plan_lightning_file(const Checkpoint& source, const Value& content,
                                            const std::filesystem::path& destination,
                                            const FrameworkOptions& options) {
  const TrainerState state = trainer_state_of(source, content, OptimizerForm::kIds);
  return plan_torch_output(source, lightning_file(state), destination, options.output);
}

}  // namespace fsdp::formats
