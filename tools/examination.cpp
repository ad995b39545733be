// SPDX-License-Identifier: Apache-2.0
#include "tools/examination.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/checks/seal_check.h"
#include "formats/files/no_answer.h"
#include "formats/model/key_check.h"
#include "formats/open.h"
#include "formats/torch/program.h"
#include "tools/agreement.h"
#include "tools/progress.h"
#include "tools/selection.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Finding;
using Severity = Finding::Severity;

// Returns whether an error says nothing about the checkpoint itself.
bool is_no_finding(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnknownFormat:
    case ErrorCode::kUnsupported:
      return true;
    default:
      return formats::is_no_answer(code);
  }
}

}  // namespace

void declare_examination(OptionSet& options, ExaminationOptions& examination) {
  options.flag("--fast", examination.fast, "Metadata and sizes alone, no data");
  options.flag("--strict", examination.strict,
               "Warnings count as damage; what is unknown is not sound");
  options.flag("--require-checksums", examination.require_checksums,
               "Data without a checksum counts as damage");
  options.flag("--require-seal", examination.require_seal,
               "A checkpoint without a seal, or its producer's checksums, counts as damage");
}

Examination examine(const ExaminationOptions& wanted, const std::string& verb,
                    const Streams& streams) {
  Examination examination;
  examination.path = formats::escape(wanted.common.path);
  formats::FileCrcs crcs;
  formats::VerifyOptions options;
  options.fast = wanted.fast;
  options.threads = wanted.common.threads;
  options.allowed_globals = wanted.common.allowed_globals;
  options.cancelled = [] { return formats::interrupted(); };
  options.team = wanted.common.team;
  try {
    // Other verbs do not accept a program as a checkpoint.
    auto checkpoint = formats::open_torch_program(wanted.common.path);
    if (checkpoint == nullptr) {
      checkpoint = formats::open_checkpoint(wanted.common.path,
                                            {wanted.common.allowed_globals, options.team});
    }
    agree_on_source(wanted.common, wanted.common.path, *checkpoint);
    examination.format = checkpoint->description().format;
    if (!wanted.common.keys.everything()) {
      check_selection(wanted.common.keys, checkpoint->index(), examination.path);
      checkpoint->keep([&](const std::string& key) { return wanted.common.keys.selects(key); });
    }
    examination.files = checkpoint->index().files.size();
    formats::check_names(checkpoint->index(), examination.report.findings);
    std::uint64_t total = 0;
    for (const auto& file : checkpoint->index().files) total += file.bytes.value_or(0);
    Progress progress(streams.err, streams.show_progress, verb, total);
    options.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
    if (formats::find_seal(wanted.common.path)) options.crcs = &crcs;
    formats::VerifyReport report = checkpoint->verify(options);
    report.findings.insert(report.findings.end(), examination.report.findings.begin(),
                           examination.report.findings.end());
    examination.report = std::move(report);
    checkpoint->check_unchanged();
  } catch (const Error& error) {
    // That of another member of the team is no finding of this one.
    if (options.team != nullptr && options.team->failed()) throw;
    // A sealed path was a checkpoint once: its seal shows what has changed.
    const bool unreadable =
        error.code() == ErrorCode::kUnknownFormat || error.code() == ErrorCode::kUnsupported;
    const bool sealed = unreadable && formats::find_seal(wanted.common.path);
    if (is_no_finding(error.code()) && !sealed) throw;
    // It could not even be opened: that is the finding.
    examination.report.findings.push_back({.code = error.code(),
                                           .message = error.what(),
                                           .file = {},
                                           .key = {},
                                           .bytes = {},
                                           .severity = formats::severity_of(error.code()),
                                           .hint = error.hint()});
  }
  options.on_progress = {};
  // If only some keys are checked, most of the data are not needed.
  options.fast = wanted.fast || !wanted.common.keys.everything();
  examination.sealing =
      check_sealing(wanted.common.path, options, false, examination.report.findings);
  return examination;
}

bool judge(const ExaminationOptions& options, Examination& examination) {
  auto& findings = examination.report.findings;
  // A matching seal is a checksum of everything.
  if (options.require_checksums && examination.report.bytes_unchecked != 0 &&
      !matches_whole(examination.sealing)) {
    findings.push_back(
        {.code = ErrorCode::kUnchecked,
         .message = cat(examination.report.bytes_unchecked, " bytes carry no checksum"),
         .file = {},
         .key = {},
         .bytes = {}});
  }
  if (options.require_seal && !is_sealed(examination.sealing)) {
    findings.push_back({.code = ErrorCode::kUnsealed,
                        .message = "has no seal; fsdp-ckpt seal makes one",
                        .file = {},
                        .key = {},
                        .bytes = {}});
  }
  if (options.strict) {
    for (Finding& finding : findings) {
      if (finding.severity == Severity::kWarning) finding.severity = Severity::kDamage;
    }
  }
  return count(findings, Severity::kDamage) == 0 && count(findings, Severity::kUnsafe) == 0 &&
         (!options.strict || count(findings, Severity::kUnknown) == 0);
}

std::size_t count(const formats::Findings& findings, Severity severity) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(),
                    [&](const Finding& finding) { return finding.severity == severity; }));
}

}  // namespace fsdp::cli
