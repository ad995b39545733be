// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt latest: the checkpoint from which a run can resume.
#include <ostream>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/runs/step_names.h"
#include "tools/base/verbs.h"
#include "tools/verbs/checking/sound_search.h"

namespace fsdp::cli {
namespace {

class LatestVerb : public Verb {
 public:
  LatestVerb()
      : Verb("latest",
             "Print the newest sound checkpoint: of a run's folder, and why newer ones are not",
             {"fsdp-ckpt latest runs", "cp -r \"$(fsdp-ckpt latest runs --fast)\" start"}) {}
  std::string path_help() const override { return "Folder of a run, which holds its checkpoints"; }
  void declare(OptionSet& options) override { declare_examination(options, examined_); }

  int run(const CommonOptions& common, const Streams& streams) override {
    examined_.common = common;
    const auto steps = run_steps(common);
    const SoundCheckpoints found = find_sound(
        steps, 1, [](const std::string&) { return true; }, examined_, name(), streams);
    note_passed_over(found.passed, common, streams);
    const bool any = !found.sound.empty();
    if (any && steps.size() > 1 && !formats::certain_step_of(found.sound.front())) {
      throw Error(ErrorCode::kUnsupported, formats::escape(found.sound.front()) +
                                               ": is sound, but its name does not tell its step "
                                               "for certain, so the newest is unknown");
    }
    if (common.json) {
      formats::Json::Object object{
          {"schema", "fsdp-ckpt/latest/1"},
          {"path", common.path},
          {"newest_sound", any ? formats::Json(found.sound.front()) : formats::Json()},
          {"step", any ? step_json(found.sound.front()) : formats::Json()},
          {"passed_over", passed_over_json(found.passed)}};
      streams.out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
    } else if (any) {
      // Scripts get the bytes of the name; for a terminal, control characters are escaped.
      const std::string& path = found.sound.front();
      streams.out << (streams.columns == 0 ? path : formats::escape(path)) << '\n';
    } else if (!common.quiet) {
      streams.err << "fsdp-ckpt: note: " << formats::escape(common.path)
                  << (steps.empty() ? ": holds no checkpoint" : ": no checkpoint is sound") << '\n';
    }
    return any ? 0 : 1;
  }

 private:
  ExaminationOptions examined_;
};

}  // namespace

std::unique_ptr<Verb> make_latest() {
  return std::make_unique<LatestVerb>();
}

}  // namespace fsdp::cli
