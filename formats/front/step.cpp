// SPDX-License-Identifier: Apache-2.0
#include "formats/front/step.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/steps.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/front/create.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/rewrite/optimizer_ids.h"

namespace fsdp::formats {
namespace {

// A folder inside a folder that is written.
class InnerFolder : public AtomicFolder {
 public:
  InnerFolder(AtomicFolder& outer, std::string prefix)
      : outer_(outer), prefix_(std::move(prefix)) {}
  OutputFile& add_file(const std::string& name) override { return outer_.add_file(prefix_ + name); }
  Sharing link_file(const std::string& name, const File& source, SharingOptions options,
                    std::optional<std::uint32_t> crc) override {
    return outer_.link_file(prefix_ + name, source, std::move(options), crc);
  }
  void commit() override {}  // with the outer one

 private:
  AtomicFolder& outer_;
  std::string prefix_;
};

struct StepPart {
  std::string prefix;  // "actor/"
  std::unique_ptr<StoredCheckpoint> checkpoint;
  std::unique_ptr<Output> output;
};

class StepOutput : public Output {
 public:
  StepOutput(const Checkpoint& source, std::filesystem::path destination, OutputOptions options,
             std::vector<StepPart> parts, CarriedFiles carried)
      : Output(source, std::move(destination), std::move(options)),
        parts_(std::move(parts)),
        carried_(std::move(carried)) {
    plan_.format = "step";
    plan_.folder = true;
    for (const StepPart& part : parts_) {
      const OutputPlan& plan = part.output->plan();
      for (const PlannedFile& file : plan.files)
        plan_.files.push_back({part.prefix + file.name, file.bytes, file.linked});
      for (const std::string& name : plan.carried) plan_.carried.push_back(part.prefix + name);
      for (const FileNote& note : plan.notes)
        plan_.notes.push_back({part.prefix + note.name, note.note, note.hint});
      plan_.tensors += plan.tensors;
      plan_.values += plan.values;
      plan_.tensor_bytes += plan.tensor_bytes;
      plan_.cut_tensors += plan.cut_tensors;
      plan_.whole_tensors += plan.whole_tensors;
    }
    carried_.plan(plan_);
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    for (const StepPart& part : parts_) {
      InnerFolder inner(folder, part.prefix);
      part.output->write_files(inner, options, total);
      part.checkpoint->check_unchanged();
    }
    carried_.write(folder, options_.sync);
  }

 private:
  std::vector<StepPart> parts_;
  CarriedFiles carried_;
};

StepPart planned_part(const std::filesystem::path& path, const std::string& name,
                      std::unique_ptr<StoredCheckpoint> checkpoint, const std::string& word,
                      const std::filesystem::path& destination, CreateOptions options) {
  StepPart part{name + "/", std::move(checkpoint), nullptr};
  options.beside->folder = path;
  const Value content = with_integer_ids(
      *part.checkpoint, with_values(*part.checkpoint, content_of(*part.checkpoint)));
  part.output = plan_output(word, *part.checkpoint, content, destination / name, options);
  return part;
}

}  // namespace

std::unique_ptr<Output> plan_step(const Checkpoint& source,
                                  const std::filesystem::path& destination,
                                  const CreateOptions& options, const OpenOptions& open) {
  const std::filesystem::path& step = options.beside.value().folder;
  std::vector<StepPart> parts;
  std::set<std::string> folders;
  std::optional<Error> refused;
  for (const std::string& name : parts_of_step(step)) {
    if (!is_folder(step / name)) continue;
    folders.insert(name.substr(0, name.find('/')));
    auto checkpoint = open_checkpoint(step / name, open);
    const std::string word = kept_output_word(checkpoint->description());
    const bool deep = name.find('/') != name.npos;
    if (word.empty() || deep) {
      refused = Error(ErrorCode::kUnsupported,
                      cat(escape((step / name).native()), ": ",
                          deep ? "lies deeper in the step than its other parts"
                               : cat("is a ", label_of(checkpoint->description()),
                                     ", which is not laid out for other ranks like the other parts "
                                     "of the step; reshard them one by one")),
                      {Remedy::kOtherLayout});
      continue;
    }
    parts.push_back(
        planned_part(step / name, name, std::move(checkpoint), word, destination, options));
  }
  if (parts.empty()) return nullptr;
  if (refused) throw Error(*refused);
  CarriedFiles carried = carried_files(
      Listing(step), {.from_ranks = source.description().ranks,
                      .to_ranks = options.world_size,
                      .allowed_globals = options.beside->allowed_globals,
                      .wanted = [&](const std::string& name) { return !folders.contains(name); }});
  OutputOptions how = options.output;
  how.replaced = is_carried_name;
  return std::make_unique<StepOutput>(source, destination, std::move(how), std::move(parts),
                                      std::move(carried));
}

}  // namespace fsdp::formats
