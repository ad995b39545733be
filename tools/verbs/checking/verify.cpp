// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"
#include "tools/base/runs.h"
#include "tools/base/verbs.h"
#include "tools/text/colour.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/checking/examination.h"
#include "tools/verbs/checking/finding_report.h"
#include "tools/verbs/checking/sealing.h"
#include "tools/verbs/contents/run_page.h"
#include "tools/verbs/models/model_finding.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Finding;
using Severity = formats::Finding::Severity;

struct VerifyCommand {
  ExaminationOptions examined;
  std::size_t limit = 20;  // the most findings listed for users
  std::string config;      // config.json of the model; empty: not compared
  std::string lost;        // what older steps of the run have and this one lacks; empty: nothing
  std::string html;        // file of the page; empty: none
  bool force = false;      // replace that file
};

// Of one checkpoint.
struct Verified {
  formats::Json::Object json;  // for --json
  Soundness soundness;         // for --html
};

// The worst of the findings; warnings leave a checkpoint sound.
struct Verdict {
  const char* word;      // as in --json
  Colour colour;         // of that word
  const char* sentence;  // the words before the counts
};

Verdict verdict_of(const formats::Findings& findings) {
  if (count(findings, Severity::kDamage) != 0) return {"damaged", Colour::kRed, "damaged"};
  if (count(findings, Severity::kUnsafe) != 0) return {"unsafe", Colour::kRed, "unsafe"};
  if (count(findings, Severity::kUnknown) != 0)
    return {"unknown", Colour::kYellow, "unknown to this tool in part"};
  return {"sound", Colour::kGreen, "sound"};
}

formats::Json::Object outcome_json(const Examination& outcome, bool answer) {
  formats::Json::Object object{{"schema", "fsdp-ckpt/verify/1"},
                               {"path", outcome.path},
                               {"format", text_or_null(outcome.format)},
                               {"sound", answer},
                               {"verdict", verdict_of(outcome.report.findings).word},
                               {"items", outcome.report.items},
                               {"bytes_checked", outcome.report.bytes_checked},
                               {"bytes_unchecked", outcome.report.bytes_unchecked},
                               {"seal", sealing_json(outcome.sealing.seal)},
                               {"integrity", sealing_json(outcome.sealing.integrity)}};
  formats::Json::Array parts;
  for (const std::string& part : outcome.parts) {
    parts.emplace_back(formats::Json::Object{
        {"path", part}, {"verdict", verdict_of(findings_of_part(outcome, part)).word}});
  }
  object.emplace_back("parts", std::move(parts));
  object.emplace_back("findings", findings_json(outcome.report.findings));
  if (!outcome.sealing.published.url.empty())
    object.emplace_back("against", published_json(outcome.sealing.published));
  if (outcome.quantization) object.emplace_back("quantization", outcome.quantization->json);
  return object;
}

void print_json(formats::Json::Object object, std::ostream& out) {
  out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
}

// Returns "2 findings, 1 unsafe, 3 unknown": those of the verdict first, then milder ones.
std::string counts_text(const formats::Findings& findings) {
  std::string text;
  for (const Severity severity : {Severity::kDamage, Severity::kUnsafe, Severity::kUnknown}) {
    const std::size_t found = count(findings, severity);
    if (found == 0) continue;
    if (text.empty()) {
      text = cat(found, found == 1 ? " finding" : " findings");
    } else {
      text += cat(", ", found, " ", formats::severity_name(severity));
    }
  }
  return text;
}

// Names the checksums that the bytes were compared with.
std::string checks_text(const VerifyCommand& command, const Examination& outcome) {
  if (command.examined.fast) return ", only metadata and sizes (--fast)";
  const auto& report = outcome.report;
  std::string text;
  if (report.bytes_checked != 0)
    text += cat(", ", formats::human_bytes(report.bytes_checked), " checked against CRC-32");
  if (report.bytes_unchecked != 0) {
    text += cat(", ", formats::human_bytes(report.bytes_unchecked),
                matches_whole(outcome.sealing) ? " have no checksum of their own"
                                               : " carry no checksum: structure only");
  }
  if (sealing_text(outcome.sealing).empty()) {
    text += report.bytes_unchecked != 0 ? "; no seal" : "; no seal: structure and checksums only";
    // Files of another save have the same names and sizes, and checksums of their own.  .metadata
    // is not counted.
    if (outcome.files > 1 || outcome.format == "dcp")
      text += ", not whether all files are of one save";
  }
  return text;
}

// Returns what was compared with what: ", matches its seal, 92 items in 2 files, ...".
std::string extent_text(const VerifyCommand& command, const Examination& outcome) {
  return cat(sealing_text(outcome.sealing), ", ", counted(outcome.report.items, "item"), " in ",
             outcome.files, outcome.files == 1 ? " file" : " files", checks_text(command, outcome));
}

std::string summary(const VerifyCommand& command, const Examination& outcome, bool color) {
  const auto& report = outcome.report;
  const Verdict verdict = verdict_of(report.findings);
  std::string text = cat(outcome.path, ": ", coloured(verdict.sentence, verdict.colour, color));
  const std::string counts = counts_text(report.findings);
  if (!counts.empty()) text += ", " + counts;
  if (count(report.findings, Severity::kDamage) + count(report.findings, Severity::kUnsafe) != 0)
    return text;
  return cat(text, counts.empty() ? "" : "; otherwise sound", extent_text(command, outcome));
}

void print_text(const VerifyCommand& command, const Examination& outcome, bool answer,
                const Streams& streams) {
  const auto& report = outcome.report;
  std::size_t shown = 0;
  std::size_t more = 0;
  for (const Finding& finding : report.findings) {
    const bool note = answer && finding.severity >= Severity::kUnknown;
    if (command.examined.common.quiet && (note || finding.severity == Severity::kWarning)) continue;
    if (shown++ < command.limit) {
      print_finding(finding, streams);
    } else {
      ++more;
    }
  }
  if (more != 0)
    streams.out << "and " << formats::group_digits(more) << " more; --limit shows more\n";
  if (answer && command.examined.common.quiet) return;
  if (!outcome.sealing.published.url.empty()) {
    for (const std::string& line : published_lines(outcome.sealing.published, command.limit))
      streams.out << wrapped(line, streams.columns) << '\n';
  }
  if (outcome.quantization) {
    for (const std::string& line : outcome.quantization->lines)
      streams.out << wrapped(line, streams.columns) << '\n';
  }
  for (const std::string& part : outcome.parts) {
    const Verdict verdict = verdict_of(findings_of_part(outcome, part));
    streams.out << "part " << (part.empty() ? "." : formats::escape(part)) << ": "
                << coloured(verdict.sentence, verdict.colour, streams.color) << '\n';
  }
  streams.out << wrapped(summary(command, outcome, streams.color), streams.columns) << '\n';
}

// Returns 0 if nothing is damaged or unsafe (--strict: or unknown), 1 otherwise.
// `verified` receives the output of --json, instead of standard output, and what a page says.
int verify(const VerifyCommand& command, const Streams& streams, Verified& verified) {
  Examination outcome = examine(command.examined, "verify", streams);
  throw_if_unread(outcome.report.findings, outcome.path,
                  command.examined.common.json ? nullptr : &streams);
  if (!command.lost.empty()) {
    outcome.report.findings.push_back({.code = ErrorCode::kShardMissing,
                                       .message = command.lost,
                                       .severity = Severity::kWarning});
  }
  ModelFinding model;
  // A damaged checkpoint is not compared as a model.
  const bool compared =
      !command.config.empty() && count(outcome.report.findings, Severity::kDamage) == 0;
  if (compared) model = find_in_model(command.examined.common, streams, command.config);
  if (model.finding) outcome.report.findings.push_back(*model.finding);
  const bool answer = judge(command.examined, outcome);
  const bool whole = command.examined.common.keys.everything();
  verified.soundness = {
      verdict_of(outcome.report.findings).word,
      (whole ? "" : "only the keys selected: ") +
          extent_text(command, outcome).substr(std::string_view(", ").size()),
      outcome.report.findings,
      command.examined.fast || !whole ||
          (outcome.report.bytes_unchecked != 0 && !matches_whole(outcome.sealing))};
  if (command.examined.common.json) {
    formats::Json::Object& json = verified.json;
    json = outcome_json(outcome, answer);
    if (!command.config.empty()) {
      json.emplace_back("compared", compared);
      json.emplace_back("architecture", model.architecture);
    }
  } else {
    if (!command.examined.common.quiet) {
      for (const std::string& line : model.lines)
        streams.out << formats::cat(wrapped(line, streams.columns), "\n");
    }
    print_text(command, outcome, answer, streams);
  }
  return answer ? 0 : 1;
}

// Returns the --json object for a checkpoint of a run that could not be verified.
formats::Json::Object unverified_json(const std::string& path, const Error& error) {
  return formats::Json::Object{{"path", formats::escape(path)},
                               {"sound", false},
                               {"code", code_name(error.code())},
                               {"message", message_of(error)}};
}

// Verifies one checkpoint after another, and reports which are sound.  A checkpoint that cannot be
// verified is an error; the others are still checked.  Returns the worst result of `verify`; 2 if
// one could not be verified.
// `soundness` receives what a page says of each path.
int verify_run(VerifyCommand command, const std::vector<formats::Step>& steps,
               const Streams& streams, std::map<std::string, Soundness>& soundness) {
  const std::string named = command.examined.common.path;
  std::array<std::size_t, 3> counts{};  // by exit status
  int worst = 0;
  std::vector<formats::Step> sound;
  formats::Json::Array checkpoints;
  for (const formats::Step& step : steps) {
    const std::string path = step.path;
    command.examined.common.path = path;
    command.lost = lacking(step, steps);
    Verified verified;
    int status = 2;
    try {
      status = verify(command, streams, verified);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted || command.examined.common.team->failed()) throw;
      verified = {unverified_json(path, error), {"", message_of(error), {}, true}};
      if (!command.examined.common.json)
        streams.err << "fsdp-ckpt: error[" << code_name(error.code()) << "]: " << message_of(error)
                    << '\n';
    }
    worst = std::max(worst, status);
    ++counts.at(static_cast<std::size_t>(status));
    sound.insert(sound.end(), status == 0 ? 1 : 0, step);
    checkpoints.emplace_back(std::move(verified.json));
    soundness[path] = std::move(verified.soundness);
  }
  const std::string newest =
      sound.empty() ? std::string() : newest_first(std::move(sound)).front().path.native();
  if (command.examined.common.json) {
    formats::Json::Object object{{"schema", "fsdp-ckpt/verify-run/1"},
                                 {"path", named},
                                 {"sound", worst == 0},
                                 {"newest_sound", text_or_null(newest)}};
    object.emplace_back("checkpoints", std::move(checkpoints));
    print_json(std::move(object), streams.out);
  } else if (!command.examined.common.quiet || worst != 0) {
    std::string text = cat(counts[0], " of ", steps.size(), " checkpoints sound");
    if (counts[1] != 0) text += cat(", ", counts[1], " not sound");
    if (counts[2] != 0) text += cat(", ", counts[2], " not verified");
    if (!newest.empty()) text += "; the newest sound one is " + formats::escape(newest);
    streams.out << wrapped(text, streams.columns) << '\n';
  }
  return worst;
}

class VerifyVerb : public Verb {
 public:
  VerifyVerb()
      : Verb("verify", "Report all damage: holes, missing files, wrong checksums, unsafe pickles",
             {"fsdp-ckpt verify step-400", "fsdp-ckpt verify step-400 --fast --json"}) {}
  void declare(OptionSet& options) override {
    options.more("MORE", more_, "More checkpoints; those in the folder of a run are found there");
    declare_examination(options, command_.examined);
    options.add("--against", &command_.examined.against);
    options.add("--config", &command_.config,
                " that the model is compared with: names, shapes, ties");
    options.add("--limit", &limit_, "; 20 if not given");
    options.add("--html", &command_.html, ": steps, sizes, what changed, and what is sound");
    options.add("--force", &command_.force);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    command_.examined.common = common;
    if (limit_) command_.limit = static_cast<std::size_t>(*limit_);
    auto steps = listed_steps(common.path, more_);
    if (!command_.examined.against.empty()) check_compared(common.path);
    // The files of a hub's folder are compared as a whole.
    const bool one =
        steps.empty() || !command_.examined.against.empty() || formats::find_seal(common.path);
    if (one) steps = {{common.path, {}, {}}};
    std::optional<RunPage> page;
    if (!command_.html.empty() && common.team->leads()) {
      std::vector<std::string> paths = {common.path};
      paths.insert(paths.end(), more_.begin(), more_.end());
      InspectOptions shown;
      shown.common = common;
      shown.html = command_.html;
      shown.force = command_.force;
      page.emplace(std::move(shown), paths, steps);
    }
    std::map<std::string, Soundness> soundness;
    int status = 0;
    if (one) {
      Verified verified;
      status = verify(command_, streams, verified);
      if (common.json) print_json(std::move(verified.json), streams.out);
      soundness[common.path] = std::move(verified.soundness);
    } else {
      status = verify_run(command_, steps, streams, soundness);
    }
    if (page) {
      // What could not be read for the page alone is an error, too.
      for (const Error& error : page->write(soundness)) {
        if (status != 2 && is_no_answer(error.code())) throw error;
      }
    }
    return status;
  }

 private:
  // Refuses what is not one folder.
  void check_compared(const std::string& path) const {
    if (!more_.empty()) {
      throw Error(ErrorCode::kUsage, "--against compares one folder, but ", more_.size() + 1,
                  " paths are given");
    }
    const formats::PlaceKind kind = formats::kind_of_place(path);
    if (kind == formats::PlaceKind::kFolder) return;
    const bool missing = kind == formats::PlaceKind::kNothing;
    throw Error(missing ? ErrorCode::kNotFound : ErrorCode::kUsage, formats::escape(path),
                missing ? ": no such folder" : ": is a file; --against compares a folder");
  }

  VerifyCommand command_;
  std::vector<std::string> more_;
  std::optional<std::int64_t> limit_;
};

}  // namespace

std::unique_ptr<Verb> make_verify() {
  return std::make_unique<VerifyVerb>();
}

}  // namespace fsdp::cli
