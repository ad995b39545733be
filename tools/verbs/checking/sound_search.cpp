// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/sound_search.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/step_names.h"
#include "formats/front/open.h"
#include "tools/base/remedy.h"
#include "tools/base/runs.h"
#include "tools/verbs/checking/finding_report.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Finding;

// Returns whether the error means that there is no sound checkpoint at the path, not only that the
// path could not be read.
bool is_passed_over(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kUnknownFormat ||
         code == ErrorCode::kUnsupported || code == ErrorCode::kChanged;
}

// Returns the finding that makes a checkpoint unsound: damage before unknown.
PassedOver passed_over_for(const std::string& path, const formats::Findings& findings) {
  const auto worst =
      std::min_element(findings.begin(), findings.end(),
                       [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  PassedOver passed;
  passed.path = path;
  passed.code = code_name(worst->code);
  if (!worst->file.empty()) passed.message = formats::escape(worst->file) + ": ";
  passed.message += message_of(*worst);
  passed.more = findings.size() - 1;
  return passed;
}

// Throws: kUnsupported if a name does not tell its step clearly.
void check_names_of(const std::vector<formats::Step>& steps) {
  std::map<std::string, std::string> series;  // by the name, without names of parts
  for (const formats::Step& step : steps) {
    const std::string name = formats::name_of_place(step.path);
    if (formats::tells_step(name) && !formats::step_of(name)) {
      throw Error(ErrorCode::kUnsupported, formats::escape(step.path.native()) +
                                               ": the number in its name has more than 64 bits");
    }
    const std::string own = formats::series_of(step.path);
    const auto [known, added] = series.emplace(formats::without_part_names(own), own);
    if (!added && known->second != own) {
      throw Error(ErrorCode::kUnsupported,
                  cat(formats::escape(own), " and ", formats::escape(known->second),
                      ": look like parts of the same steps without a folder of their own; which of "
                      "them is the step is unknown"));
    }
  }
}

}  // namespace

std::vector<formats::Step> run_steps(const CommonOptions& common) {
  const std::string shown = formats::escape(common.path);
  formats::RunView view;
  if (formats::is_folder(common.path)) {
    view = formats::look_through(common.path);
  } else {
    formats::open_checkpoint(common.path, {common.allowed_globals});
    view.is_step = true;
  }
  if (view.is_step) {
    throw Error(ErrorCode::kUsage,
                shown +
                    ": is one checkpoint, not the folder of a run; fsdp-ckpt verify says whether "
                    "it is sound");
  }
  check_names_of(view.steps);
  return newest_first(std::move(view.steps));
}

SoundCheckpoints find_sound(const std::vector<formats::Step>& steps, std::size_t wanted,
                            const std::function<bool(const std::string& path)>& counts,
                            ExaminationOptions options, const std::string& verb,
                            const Streams& streams) {
  SoundCheckpoints found;
  for (const formats::Step& step : steps) {
    const std::string path = step.path;
    if (found.sound.size() == wanted) break;
    if (!counts(path)) continue;
    options.common.path = path;
    try {
      Examination examination = examine(options, verb, streams);
      throw_if_unread(examination.report.findings, examination.path, nullptr);
      std::string lost = lacking(step, steps);
      if (!judge(options, examination)) {
        found.passed.push_back(passed_over_for(path, examination.report.findings));
      } else if (!lost.empty()) {
        found.passed.push_back({path, std::string(code_name(ErrorCode::kShardMissing)), lost, 0});
      } else {
        found.sound.push_back(path);
      }
    } catch (const Error& error) {
      if (!is_passed_over(error.code())) throw;
      found.passed.push_back({path, std::string(code_name(error.code())), message_of(error), 0});
    }
  }
  return found;
}

void note_passed_over(const std::vector<PassedOver>& passed, const CommonOptions& common,
                      const Streams& streams) {
  if (common.quiet) return;
  for (const PassedOver& one : passed) {
    const std::string path = formats::escape(one.path);
    // Some errors begin with the path already.
    const bool named = one.message.starts_with(path + ": ");
    streams.err << "fsdp-ckpt: note: passed over: " << (named ? std::string() : path + ": ")
                << one.message << " [" << one.code << "]";
    if (one.more != 0) streams.err << cat(" and ", one.more, " more");
    streams.err << '\n';
  }
}

formats::Json step_json(const std::string& path) {
  const auto step = formats::step_of(path);
  return step ? formats::Json(*step) : formats::Json();
}

formats::Json passed_over_json(const std::vector<PassedOver>& passed) {
  formats::Json::Array all;
  for (const PassedOver& one : passed) {
    all.emplace_back(formats::Json::Object{{"path", one.path},
                                           {"step", step_json(one.path)},
                                           {"code", one.code},
                                           {"message", one.message}});
  }
  return all;
}

}  // namespace fsdp::cli
