// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/trainers/carried_files.h"
#include "formats/families/trainers/deepspeed_model.h"
#include "formats/families/trainers/deepspeed_outputs.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/model/shard_spec.h"

namespace fsdp::formats::deepspeed {
namespace {

namespace fs = std::filesystem;

// A universal checkpoint, which is the same for any number of ranks: DeepSpeed cuts it while it
// loads.
class UniversalOutput : public Output {
 public:
  UniversalOutput(const Checkpoint& source, fs::path destination, OutputOptions options,
                  const FrameworkOptions& how, const fs::path& universal)
      : Output(source, std::move(destination), std::move(options)),
        folder_(how.beside.value().folder) {
    check_world_size(how.world_size);
    plan_.format = "deepspeed";
    plan_.folder = true;
    plan_.tensors = plan_.whole_tensors = source.index().tensors.size();
    plan_.values = source.index().values.size();
    for (const TensorEntry& tensor : source.index().tensors) plan_.tensor_bytes += tensor.bytes();
    const Listing listing(folder_);
    const bool inside = universal != listing.path();
    const std::string top = inside ? name_of_place(universal) : std::string();
    std::set<std::string> wanted(listing.names.begin(), listing.names.end());
    if (inside) {
      const std::vector<std::string> beside = beside_tags(*listing.folder);
      wanted = {beside.begin(), beside.end()};
      wanted.insert({top, "latest_universal", kProgram});
    }
    carried_ = carried_files(
        listing, {.from_ranks = source.description().ranks,
                  .to_ranks = how.world_size,
                  .allowed_globals = how.beside->allowed_globals,
                  .programs = {kProgram},
                  .wanted = [&](const std::string& name) { return wanted.contains(name); }});
    check_complete(inside ? top + "/" : top);
    carried_.plan(plan_);
    std::erase_if(plan_.carried, [&](const std::string& name) {
      return name.starts_with(inside ? top + "/zero/" : "zero/");
    });
    plan_.notes.push_back({inside ? top : ".",
                           "is as before: a universal checkpoint is the same for any number of "
                           "ranks, and DeepSpeed cuts it while it loads"});
  }

 private:
  // Throws: kGlobal if a file of the model or the optimizer is left out.
  void check_complete(const std::string& prefix) const {
    std::set<std::string> taken;
    for (const CarriedFile& file : carried_.files) taken.insert(file.source);
    for (const FileEntry& file : source_.index().files) {
      if (taken.contains(file.name) || taken.contains(prefix + file.name)) continue;
      for (const FileNote& note : carried_.notes) {
        if (note.name != file.name && note.name != prefix + file.name) continue;
        throw Error(ErrorCode::kGlobal,
                    cat(escape((folder_ / note.name).native()), ": ", note.note), note.hint);
      }
    }
  }

  void write_files(AtomicFolder& folder, const CopyOptions& options, CopyResult& total) override {
    VerifyOptions how;
    how.threads = options.threads;
    how.cancelled = options.cancelled;
    const VerifyReport report = open_universal(folder_)->verify(how);
    for (const Finding& finding : report.findings) {
      if (finding.severity != Finding::Severity::kDamage) continue;
      throw Error(finding.code, cat(source_.description().path, ": ", escape(finding.file), ": ",
                                    finding.message));
    }
    carried_.write(folder, options_.sync);
    for (const CarriedFile& file : carried_.files) total.bytes += file.bytes;
  }

  fs::path folder_;
  CarriedFiles carried_;
};

}  // namespace

std::unique_ptr<Output> plan_universal_output(const Checkpoint& source, const fs::path& destination,
                                              OutputOptions options, const FrameworkOptions& how,
                                              const fs::path& universal) {
  return std::make_unique<UniversalOutput>(source, destination, std::move(options), how, universal);
}

}  // namespace fsdp::formats::deepspeed
