// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt seal: writes sizes and checksums of a checkpoint's files beside them.
#include <algorithm>
#include <filesystem>
#include <ostream>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/families/checks/seal_check.h"
#include "formats/families/runs/steps.h"
#include "formats/front/open.h"
#include "tools/base/progress.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/checking/examination.h"
#include "tools/verbs/checking/finding_report.h"
#include "tools/verbs/checking/sealing.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::Finding;
using formats::SealedFile;

class SealVerb : public Verb {
 public:
  SealVerb()
      : Verb("seal", "Record checksums of all files: beside a sound checkpoint, for verify",
             {"fsdp-ckpt seal step-400", "fsdp-ckpt seal full.safetensors --force"}) {}
  void declare(OptionSet& options) override {
    options.add("--dry-run", &dry_run_);
    options.add("--force", &force_);
    options.add("--no-sync", &sync_).clears = true;
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    if (!common.keys.everything())
      throw Error(ErrorCode::kUsage,
                  "a seal covers the whole checkpoint: --keys and --exclude do not apply");
    place_ = formats::seal_place(common.path);
    shown_ = formats::escape((place_.folder / place_.name).native());
    const bool sealed = formats::exists_at(place_.folder / place_.name);
    if (sealed && !force_) {
      throw Error(ErrorCode::kExists,
                  shown_ +
                      ": exists; verify says whether the checkpoint matches it, --force makes "
                      "a new one");
    }
    formats::FileCrcs crcs;
    examine(common, streams, crcs);
    throw_if_unread(report_.findings, formats::escape(common.path),
                    common.json ? nullptr : &streams);
    const bool sound = std::none_of(report_.findings.begin(), report_.findings.end(), is_damage);
    if (sound && !dry_run_) write();
    if (common.json) {
      print_json(common, sound, streams.out);
    } else {
      print_text(common, sound, streams);
    }
    return sound ? 0 : 1;
  }

 private:
  static bool is_damage(const Finding& finding) {
    return finding.severity == Finding::Severity::kDamage;
  }

  // Checks the checkpoint and computes the checksums of its files.
  void examine(const CommonOptions& common, const Streams& streams, formats::FileCrcs& crcs) {
    const auto checkpoint = formats::open_checkpoint(common.path, {common.allowed_globals});
    std::uint64_t total = 0;
    for (const auto& file : checkpoint->index().files) total += file.bytes.value_or(0);
    formats::VerifyOptions options;
    options.fast = dry_run_;
    options.threads = common.threads;
    options.allowed_globals = common.allowed_globals;
    options.cancelled = [] { return formats::interrupted(); };
    options.crcs = &crcs;
    {
      Progress progress(streams.err, streams.show_progress, "seal", total);
      options.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
      report_ = checkpoint->verify(options);
      options.on_progress = {};
    }
    ExaminationOptions inside;
    inside.common = common;
    inside.fast = dry_run_;
    const auto files = formats::files_below(common.path, *checkpoint);
    for (Finding& finding : examine_beside(inside, files, name(), streams))
      report_.findings.push_back(std::move(finding));
    check_sealing(common.path, options, true, report_.findings);
    if (std::any_of(report_.findings.begin(), report_.findings.end(), is_damage)) return;
    files_ = formats::files_to_seal(place_, options);
    checkpoint->check_unchanged();
  }

  void write() const {
    const std::string text = formats::seal_text(files_);
    const auto output =
        formats::new_file(place_.folder / place_.name, {.replace = force_, .sync = sync_});
    output->file().write_at(0, std::as_bytes(std::span(text)));
    output->commit();
  }

  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const SealedFile& file : files_) sum += file.bytes;
    return sum;
  }

  void print_text(const CommonOptions& common, bool sound, const Streams& streams) const {
    std::ostream& out = streams.out;
    for (const Finding& finding : report_.findings) {
      if (is_damage(finding) || !common.quiet) print_finding(finding, streams);
    }
    const std::string path = formats::escape(common.path);
    if (!sound) {
      out << path << ": damaged, not sealed; verify tells more\n";
      return;
    }
    if (common.quiet && !dry_run_) return;
    out << path << (dry_run_ ? ": would be sealed, " : ": sealed, ")
        << counted(files_.size(), "file") << ", " << formats::human_bytes(bytes());
    if (report_.bytes_unchecked != 0) {
      out << ", " << formats::human_bytes(report_.bytes_unchecked)
          << " of it carried no checksum: sealed as it is";
    }
    out << '\n';
  }

  void print_json(const CommonOptions& common, bool sound, std::ostream& out) const {
    formats::Json::Array files;
    for (const SealedFile& file : files_) {
      formats::Json::Object one{{"name", file.name}, {"bytes", file.bytes}};
      if (!dry_run_) one.emplace_back("crc32", formats::hex32(file.crc));
      files.emplace_back(std::move(one));
    }
    const formats::Json::Object object{{"schema", "fsdp-ckpt/seal/1"},
                                       {"path", common.path},
                                       {"output", shown_},
                                       {"dry_run", dry_run_},
                                       {"sealed", sound && !dry_run_},
                                       {"files", std::move(files)},
                                       {"bytes", bytes()},
                                       {"bytes_unchecked", report_.bytes_unchecked},
                                       {"findings", findings_json(report_.findings)}};
    out << formats::to_text(object, 1) << '\n';
  }

  bool dry_run_ = false;
  bool force_ = false;
  bool sync_ = true;
  formats::SealPlace place_;
  std::string shown_;  // the seal's path, for messages
  formats::VerifyReport report_;
  std::vector<SealedFile> files_;
};

}  // namespace

std::unique_ptr<Verb> make_seal() {
  return std::make_unique<SealVerb>();
}

}  // namespace fsdp::cli
