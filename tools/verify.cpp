// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ostream>

#include "formats/base/interrupt.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/model/key_check.h"
#include "formats/open.h"
#include "tools/progress.h"
#include "tools/sealing.h"
#include "tools/selection.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Finding;

struct VerifyCommand {
  CommonOptions common;
  bool fast = false;               // metadata and sizes alone
  bool strict = false;             // warnings count as findings
  bool require_checksums = false;  // data without a checksum is a finding
  std::size_t limit = 20;          // findings that are listed for people
  bool require_seal = false;       // as is a checkpoint without a seal
};

// Errors that say nothing about the checkpoint itself.
bool is_no_finding(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnknownFormat:
    case ErrorCode::kUnsupported:
    case ErrorCode::kIo:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kInterrupted:
    case ErrorCode::kChanged:
    case ErrorCode::kNoSpace:
      return true;
    default:
      return false;
  }
}

struct Outcome {
  std::string path;
  std::string format;
  formats::VerifyReport report;
  Sealing sealing;
  std::size_t files = 0;
};

Outcome examine(const VerifyCommand& command, const Streams& streams) {
  Outcome outcome;
  outcome.path = formats::escape(command.common.path);
  formats::FileCrcs crcs;
  formats::VerifyOptions options;
  options.fast = command.fast;
  options.threads = command.common.threads;
  options.allowed_globals = command.common.allowed_globals;
  options.cancelled = [] { return formats::interrupted(); };
  try {
    const auto checkpoint =
        formats::open_checkpoint(command.common.path, {command.common.allowed_globals});
    outcome.format = checkpoint->description().format;
    if (!command.common.keys.everything()) {
      check_selection(command.common.keys, checkpoint->index(), outcome.path);
      checkpoint->keep([&](const std::string& key) { return command.common.keys.selects(key); });
    }
    outcome.files = checkpoint->index().files.size();
    formats::check_names(checkpoint->index(), outcome.report.findings);
    std::uint64_t total = 0;
    for (const auto& file : checkpoint->index().files) total += file.bytes.value_or(0);
    Progress progress(streams.err, streams.show_progress, "verify", total);
    options.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
    if (formats::find_seal(command.common.path)) options.crcs = &crcs;
    formats::VerifyReport report = checkpoint->verify(options);
    report.findings.insert(report.findings.end(), outcome.report.findings.begin(),
                           outcome.report.findings.end());
    outcome.report = std::move(report);
    checkpoint->check_unchanged();
  } catch (const Error& error) {
    if (is_no_finding(error.code())) throw;
    // It could not even be opened: that is what is wrong with it.
    outcome.report.findings.push_back(
        {.code = error.code(), .message = error.what(), .file = {}, .key = {}, .bytes = {}});
  }
  options.on_progress = {};
  // Of some keys alone, most of the data are not asked about.
  options.fast = command.fast || !command.common.keys.everything();
  outcome.sealing = check_sealing(command.common.path, options, false, outcome.report.findings);
  return outcome;
}

formats::Json finding_json(const Finding& finding) {
  formats::Json::Object object;
  object.emplace_back("severity",
                      finding.severity == Finding::Severity::kDamage ? "damage" : "warning");
  object.emplace_back("code", code_name(finding.code));
  object.emplace_back("file", finding.file.empty() ? formats::Json() : formats::Json(finding.file));
  object.emplace_back("key", finding.key.empty() ? formats::Json() : formats::Json(finding.key));
  object.emplace_back("begin",
                      finding.bytes ? formats::Json(finding.bytes->begin) : formats::Json());
  object.emplace_back("end", finding.bytes ? formats::Json(finding.bytes->end) : formats::Json());
  object.emplace_back("message", finding.message);
  return object;
}

void print_json(const Outcome& outcome, bool sound, std::ostream& out) {
  formats::Json::Array findings;
  for (const Finding& finding : outcome.report.findings) findings.push_back(finding_json(finding));
  formats::Json::Object object;
  object.emplace_back("schema", "fsdp-ckpt/verify/1");
  object.emplace_back("path", outcome.path);
  object.emplace_back("format",
                      outcome.format.empty() ? formats::Json() : formats::Json(outcome.format));
  object.emplace_back("sound", sound);
  object.emplace_back("items", outcome.report.items);
  object.emplace_back("bytes_checked", outcome.report.bytes_checked);
  object.emplace_back("bytes_unchecked", outcome.report.bytes_unchecked);
  object.emplace_back("seal", sealing_json(outcome.sealing.seal));
  object.emplace_back("integrity", sealing_json(outcome.sealing.integrity));
  object.emplace_back("findings", std::move(findings));
  out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
}

void print_text(const VerifyCommand& command, const Outcome& outcome, bool sound,
                std::size_t damage, const Streams& streams) {
  const char* green = streams.color ? "\x1b[32m" : "";
  const char* red = streams.color ? "\x1b[31m" : "";
  const char* plain = streams.color ? "\x1b[0m" : "";
  std::size_t shown = 0;
  std::size_t more = 0;
  for (const Finding& finding : outcome.report.findings) {
    const bool warning = finding.severity == Finding::Severity::kWarning;
    if (warning && command.common.quiet) continue;
    if (shown++ >= command.limit) {
      ++more;
      continue;
    }
    streams.out << (warning ? "warning[" : "damage[") << code_name(finding.code)
                << "]: " << formats::finding_text(finding);
    // Most messages name the place themselves.
    if (finding.bytes && finding.message.find("byte") == std::string::npos) {
      streams.out << " (bytes " << finding.bytes->begin << " to " << finding.bytes->end << ')';
    }
    streams.out << '\n';
  }
  if (more != 0)
    streams.out << "and " << formats::group_digits(more) << " more; --limit shows more\n";
  if (!sound) {
    streams.out << outcome.path << ": " << red << "damaged" << plain << ", " << damage
                << (damage == 1 ? " finding" : " findings") << '\n';
    return;
  }
  if (command.common.quiet) return;
  const auto& report = outcome.report;
  streams.out << outcome.path << ": " << green << "sound" << plain << sealing_text(outcome.sealing)
              << ", " << formats::group_digits(report.items)
              << (report.items == 1 ? " item in " : " items in ") << outcome.files
              << (outcome.files == 1 ? " file" : " files");
  if (command.fast) {
    streams.out << ", metadata and sizes alone (--fast)\n";
    return;
  }
  if (report.bytes_checked != 0)
    streams.out << ", " << formats::human_bytes(report.bytes_checked) << " checked against CRC-32";
  if (report.bytes_unchecked != 0) {
    streams.out << ", " << formats::human_bytes(report.bytes_unchecked)
                << (matches_whole(outcome.sealing) ? " have no checksum of their own"
                                                   : " carry no checksum: structure only");
  }
  if (sealing_text(outcome.sealing).empty())
    streams.out << (report.bytes_unchecked != 0 ? "; no seal"
                                                : "; no seal: structure and checksums only");
  streams.out << '\n';
}

// Returns 0 where the checkpoint is sound, 1 where it is not.
int verify(const VerifyCommand& command, const Streams& streams) {
  Outcome outcome = examine(command, streams);
  auto& findings = outcome.report.findings;
  // A seal that matched is a checksum of everything.
  if (command.require_checksums && outcome.report.bytes_unchecked != 0 &&
      !matches_whole(outcome.sealing)) {
    findings.push_back({.code = ErrorCode::kUnchecked,
                        .message = cat(outcome.report.bytes_unchecked, " bytes carry no checksum"),
                        .file = {},
                        .key = {},
                        .bytes = {}});
  }
  if (command.require_seal && !is_sealed(outcome.sealing)) {
    findings.push_back({.code = ErrorCode::kUnsealed,
                        .message = "has no seal; fsdp-ckpt seal makes one",
                        .file = {},
                        .key = {},
                        .bytes = {}});
  }
  if (command.strict) {
    for (Finding& finding : findings) finding.severity = Finding::Severity::kDamage;
  }
  const auto damage = static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [](const Finding& f) { return f.severity == Finding::Severity::kDamage; }));
  if (command.common.json) {
    print_json(outcome, damage == 0, streams.out);
  } else {
    print_text(command, outcome, damage == 0, damage, streams);
  }
  return damage == 0 ? 0 : 1;
}

class VerifyVerb : public Verb {
 public:
  std::string name() const override { return "verify"; }
  std::string description() const override {
    return "Name every damage: holes, missing files, wrong checksums, unsafe pickles";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt verify step-400", "fsdp-ckpt verify step-400 --fast --json"};
  }
  void declare(OptionSet& options) override {
    options.flag("--fast", command_.fast, "Metadata and sizes alone, no data");
    options.flag("--strict", command_.strict, "Warnings count as damage");
    options.flag("--require-checksums", command_.require_checksums,
                 "Data without a checksum counts as damage");
    options.integer("--limit", limit_, 0, INT32_MAX, "N",
                    "Findings to list for people; 20 if not given");
    options.flag("--require-seal", command_.require_seal,
                 "A checkpoint without a seal, or its producer's checksums, counts as damage");
  }
  int run(const CommonOptions& common, const Streams& streams) override {
    command_.common = common;
    if (limit_) command_.limit = static_cast<std::size_t>(*limit_);
    return verify(command_, streams);
  }

 private:
  VerifyCommand command_;
  std::optional<std::int64_t> limit_;
};

}  // namespace

std::unique_ptr<Verb> make_verify() {
  return std::make_unique<VerifyVerb>();
}

}  // namespace fsdp::cli
