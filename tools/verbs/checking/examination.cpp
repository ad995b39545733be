// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/examination.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/place.h"
#include "formats/families/checks/seal_check.h"
#include "formats/families/checks/step_counts.h"
#include "formats/families/runs/steps.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"
#include "formats/state/model/check.h"
#include "tools/base/agreement.h"
#include "tools/base/progress.h"
#include "tools/base/selection.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Finding;
using Severity = Finding::Severity;

// Returns whether an error says nothing about the checkpoint itself.
bool is_no_finding(ErrorCode code) {
  return code == ErrorCode::kUsage || code == ErrorCode::kNotFound ||
         code == ErrorCode::kUnknownFormat || code == ErrorCode::kUnsupported || is_no_answer(code);
}

class Examiner {
 public:
  Examiner(const ExaminationOptions& wanted, const std::string& verb, const Streams& streams)
      : wanted_(wanted), verb_(verb), streams_(streams) {
    examination_.path = formats::escape(wanted.common.path);
    options_.fast = wanted.fast;
    options_.threads = wanted.common.threads;
    options_.allowed_globals = wanted.common.allowed_globals;
    options_.cancelled = [] { return formats::interrupted(); };
    options_.team = wanted.common.team;
    whole_ = wanted.common.keys.everything();  // selected keys are of the whole, not of a part
  }

  Examination run() {
    const std::string& path = wanted_.common.path;
    // The hub is asked first: an error of it is told before hours of reading.
    std::optional<formats::PublishedComparison> comparison;
    if (!wanted_.against.empty()) comparison.emplace(wanted_.against, *options_.team);
    if (whole_) {
      for (const std::string& part : formats::parts_of_step(path)) read_part(part);
    }
    if (examination_.parts.empty()) {
      // If the checkpoint could not be opened, its own files are unknown.
      const auto files = read(path, "");
      if (whole_ && files) read_beside(*files);
      if (!examination_.parts.empty()) examination_.parts.insert(examination_.parts.begin(), "");
    } else {
      examination_.format = "step";
      add(formats::missing_model(examination_.parts), "");
    }
    options_.on_progress = {};
    // If only some keys are checked, most data need not be read for the seal.
    options_.fast = wanted_.fast || !whole_;
    examination_.sealing = check_sealing(path, options_, false, examination_.report.findings);
    if (comparison) compare(*comparison);
    return std::move(examination_);
  }

  formats::Findings beside(const std::vector<std::string>& files) {
    read_beside(files);
    return std::move(examination_.report.findings);
  }

 private:
  void compare(const formats::PublishedComparison& comparison) {
    std::optional<Progress> progress;
    formats::PublishedReport report = comparison.compare(
        wanted_.common.path, options_, [&](std::uint64_t bytes, std::uint64_t total) {
          if (!progress) progress.emplace(streams_.err, streams_.show_progress, verb_, total);
          progress->update(bytes);
        });
    add(std::exchange(report.findings, {}), "");
    examination_.sealing.published = std::move(report);
  }

  void read_beside(const std::vector<std::string>& files) {
    for (const std::string& part : unread_beside(files)) read_part(part);
  }

  // Returns the checkpoints in the folder to which none of `files` belongs.
  std::vector<std::string> unread_beside(const std::vector<std::string>& files) {
    try {
      return formats::unread_checkpoints(wanted_.common.path, files);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kLimitEntries) throw;
      Finding finding = finding_of(error);
      finding.severity = Severity::kWarning;
      add({std::move(finding)}, "");
      return {};
    }
  }

  // Reads a checkpoint in the folder.
  void read_part(const std::string& part) {
    const std::string& folder = wanted_.common.path;
    try {
      read((std::filesystem::path(folder) / part).native(), part);
      examination_.parts.push_back(part);
    } catch (const Error& error) {
      // The file has the name of a checkpoint, but is not one.
      if (error.code() != ErrorCode::kUnknownFormat && error.code() != ErrorCode::kUnsupported)
        throw;
      Finding finding = finding_of(error);
      finding.severity = Severity::kUnknown;
      examination_.parts.push_back(part);
      add({std::move(finding)}, part);
    }
  }

  // Reads one checkpoint.  Returns the paths of its files, relative to `path`; nothing if it could
  // not be opened.
  std::optional<std::vector<std::string>> read(const std::string& path, const std::string& part) {
    std::optional<std::vector<std::string>> files;
    formats::VerifyReport report;
    try {
      // Other verbs do not accept a program as a checkpoint.
      auto checkpoint = formats::open_torch_program(path);
      if (checkpoint == nullptr) {
        checkpoint =
            formats::open_checkpoint(path, {wanted_.common.allowed_globals, options_.team});
      }
      agree_on_source(wanted_.common, path, *checkpoint);
      if (part.empty()) examination_.format = checkpoint->description().format;
      if (!wanted_.common.keys.everything()) {
        check_selection(wanted_.common.keys, checkpoint->index(), examination_.path);
        checkpoint->keep([&](const std::string& key) { return wanted_.common.keys.selects(key); });
      }
      files = formats::files_below(path, *checkpoint);
      examination_.files += files->size();
      formats::Findings named;
      formats::check_names(checkpoint->index(), named);
      std::uint64_t total = 0;
      for (const auto& file : checkpoint->index().files) total += file.bytes.value_or(0);
      Progress progress(streams_.err, streams_.show_progress, verb_, total);
      options_.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
      options_.crcs = formats::find_seal(wanted_.common.path) ? &crcs_ : nullptr;
      report = checkpoint->verify(options_);
      if (!options_.fast && is_whole(report.findings))
        formats::check_step_counts(*checkpoint, report.findings, options_.cancelled);
      if (whole_ && is_whole(report.findings)) check_weights(*checkpoint, path, report);
      add(std::move(report.findings), part);
      add(std::move(named), part);
      checkpoint->check_unchanged();
    } catch (const Error& error) {
      // Another member's error is not a finding of this member.
      if (options_.team->failed()) throw;
      // A sealed path was a checkpoint: the seal shows what has changed.
      const bool unreadable =
          error.code() == ErrorCode::kUnknownFormat || error.code() == ErrorCode::kUnsupported;
      const bool sealed = unreadable && formats::find_seal(wanted_.common.path);
      const bool compared = unreadable && !wanted_.against.empty();
      if (is_no_finding(error.code()) && !sealed && !compared) throw;
      // The error of opening is itself the finding.
      Finding finding = finding_of(error);
      if (compared && !sealed) finding.severity = Severity::kUnknown;
      add({std::move(finding)}, part);
    }
    examination_.report.items += report.items;
    examination_.report.bytes_checked += report.bytes_checked;
    examination_.report.bytes_unchecked += report.bytes_unchecked;
    return files;
  }

  // Compares quantized weights with their configuration.
  void check_weights(const formats::Checkpoint& checkpoint, const std::string& path,
                     formats::VerifyReport& report) {
    const std::string& format = checkpoint.description().format;
    if (format != "safetensors" && format != "torch") return;
    // Numbers are looked at where they are read anyway.
    const bool read = report.bytes_checked != 0 || formats::find_seal(wanted_.common.path);
    auto found = check_quantization(checkpoint, path, !options_.fast, read, wanted_.common);
    if (!found) return;
    for (Finding& finding : found->findings) report.findings.push_back(std::move(finding));
    found->findings.clear();
    examination_.quantization = std::move(found);
  }

  static bool is_whole(const formats::Findings& findings) {
    return std::all_of(findings.begin(), findings.end(), [](const Finding& finding) {
      return finding.severity == Severity::kWarning;
    });
  }

  static Finding finding_of(const Error& error) {
    return {.code = error.code(),
            .message = error.what(),
            .severity = formats::severity_of(error.code()),
            .hint = error.hint()};
  }

  // Adds findings, with the part in front of their files.
  void add(formats::Findings findings, const std::string& part) {
    const bool folder =
        !part.empty() && formats::is_folder(std::filesystem::path(wanted_.common.path) / part);
    for (Finding& finding : findings) {
      if (!part.empty())
        finding.file = folder && !finding.file.empty() ? part + "/" + finding.file : part;
      examination_.report.findings.push_back(std::move(finding));
    }
  }

  const ExaminationOptions& wanted_;
  const std::string& verb_;
  const Streams& streams_;
  formats::VerifyOptions options_;
  formats::FileCrcs crcs_;
  bool whole_ = true;
  Examination examination_;
};

}  // namespace

void declare_examination(OptionSet& options, ExaminationOptions& examination) {
  options.add("--fast", &examination.fast);
  options.add("--strict", &examination.strict);
  options.add("--require-checksums", &examination.require_checksums);
  options.add("--require-seal", &examination.require_seal);
}

Examination examine(const ExaminationOptions& wanted, const std::string& verb,
                    const Streams& streams) {
  return Examiner(wanted, verb, streams).run();
}

formats::Findings examine_beside(const ExaminationOptions& wanted,
                                 const std::vector<std::string>& files, const std::string& verb,
                                 const Streams& streams) {
  return Examiner(wanted, verb, streams).beside(files);
}

formats::Findings findings_of_part(const Examination& examination, const std::string& part) {
  const auto is_of = [](const Finding& finding, const std::string& one) {
    return finding.file == one || finding.file.starts_with(one + "/");
  };
  formats::Findings found;
  for (const Finding& finding : examination.report.findings) {
    // A finding about the folder's own files belongs to no other part.
    const bool of_it = part.empty()
                           ? std::none_of(examination.parts.begin(), examination.parts.end(),
                                          [&](const std::string& other) {
                                            return !other.empty() && is_of(finding, other);
                                          })
                           : is_of(finding, part);
    if (of_it) found.push_back(finding);
  }
  return found;
}

bool judge(const ExaminationOptions& options, Examination& examination) {
  auto& findings = examination.report.findings;
  // A matching seal is a checksum of everything.
  if (options.require_checksums && examination.report.bytes_unchecked != 0 &&
      !matches_whole(examination.sealing)) {
    findings.push_back(
        {.code = ErrorCode::kUnchecked,
         .message = cat(examination.report.bytes_unchecked, " bytes carry no checksum")});
  }
  if (options.require_seal && !is_sealed(examination.sealing)) {
    findings.push_back(
        {.code = ErrorCode::kUnsealed, .message = "has no seal", .hint = {Remedy::kSeal}});
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
