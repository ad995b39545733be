// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt prune: removes the old checkpoints of a run.
#include <algorithm>
#include <filesystem>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/removal.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/step_names.h"
#include "tools/base/placed.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"
#include "tools/base/verbs.h"
#include "tools/verbs/checking/pruning.h"
#include "tools/verbs/checking/sound_search.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;

class PruneVerb : public Verb {
 public:
  PruneVerb()
      : Verb("prune", "Remove old checkpoints of a run; the newest sound ones stay",
             {"fsdp-ckpt prune runs --keep 3 --dry-run", "fsdp-ckpt prune runs --keep 1 --fast"}) {}
  std::string path_help() const override { return "Folder of a run, which holds its checkpoints"; }
  void declare(OptionSet& options) override {
    options.add("--keep", &keep_).required = true;
    options.add("--dry-run", &dry_run_);
    options.add("--whole-folders", &whole_folders_);
    declare_examination(options, examined_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    if (!common.keys.everything()) {
      throw Error(ErrorCode::kUsage,
                  "whole checkpoints are removed: --keys and --exclude do not apply");
    }
    // A store cannot rename a checkpoint before its files are removed, so a reader would see parts.
    if (formats::is_url(common.path)) {
      throw Error(ErrorCode::kUnsupported,
                  formats::escape(common.path) +
                      ": is a URL; checkpoints in a store are not removed, only local ones");
    }
    examined_.common = common;
    auto steps = run_steps(common);
    if (steps.empty()) return report(common, streams, {}, {}, {}, 0);
    // The state is recorded first: a checkpoint that changes from here on is not removed.
    const formats::RunFolder folder(common.path);
    const std::vector<RunMember> members = members_of(common, folder, steps);
    const SoundCheckpoints found = find(steps, streams);
    if (found.sound.empty()) return report(common, streams, {}, found, {}, 1);
    std::vector<PruneVerdict> verdicts;
    if (found.sound.size() == static_cast<std::size_t>(*keep_)) {
      verdicts = prune_verdicts(common.path, members, found.sound, whole_folders_);
      // The oldest goes first, so that an interrupted run leaves the newest.
      std::reverse(verdicts.begin(), verdicts.end());
      remove_leftovers(common, folder, verdicts, streams);
      if (!dry_run_) remove(folder, verdicts);
    }
    const bool in_the_way = std::any_of(verdicts.begin(), verdicts.end(),
                                        [](const auto& verdict) { return verdict.in_the_way; });
    return report(common, streams, members, found, verdicts, in_the_way ? 1 : 0);
  }

 private:
  // Returns the members, and drops steps that have disappeared meanwhile.
  static std::vector<RunMember> members_of(const CommonOptions& common,
                                           const formats::RunFolder& folder,
                                           std::vector<formats::Step>& steps) {
    std::vector<RunMember> members;
    std::erase_if(steps, [&](const formats::Step& step) {
      RunMember member;
      member.path = step.path;
      member.below = step.path.lexically_relative(common.path).native();
      try {
        member.state = folder.state(member.below);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNotFound) throw;
        return true;
      }
      members.push_back(std::move(member));
      return false;
    });
    return members;
  }

  // Finds the newest sound checkpoint of all, then the next ones of its series.
  SoundCheckpoints find(const std::vector<formats::Step>& steps, const Streams& streams) const {
    const auto all = [](const std::string&) { return true; };
    SoundCheckpoints found = find_sound(steps, 1, all, examined_, name(), streams);
    if (found.sound.empty()) return found;
    const std::string newest = found.sound.front();
    if (!formats::certain_step_of(newest)) {
      throw Error(ErrorCode::kUnsupported, formats::escape(newest) +
                                               ": is the newest sound one, but its name does not "
                                               "tell its step for certain; nothing is removed");
    }
    const std::string series = formats::series_of(newest);
    bool older = false;
    const auto counts = [&](const std::string& path) {
      const bool after = std::exchange(older, older || path == newest);
      return after && formats::certain_step_of(path) && formats::series_of(path) == series;
    };
    const SoundCheckpoints next =
        find_sound(steps, static_cast<std::size_t>(*keep_) - 1, counts, examined_, name(), streams);
    found.sound.insert(found.sound.end(), next.sound.begin(), next.sound.end());
    found.passed.insert(found.passed.end(), next.passed.begin(), next.passed.end());
    return found;
  }

  // Removes what a killed run of this verb had begun to remove.
  void remove_leftovers(const CommonOptions& common, const formats::RunFolder& folder,
                        const std::vector<PruneVerdict>& verdicts, const Streams& streams) const {
    std::set<fs::path> leftovers;
    for (const PruneVerdict& verdict : verdicts) {
      if (!verdict.of_series) continue;
      for (fs::path& one : folder.leftovers_beside(verdict.member->below))
        leftovers.insert(std::move(one));
    }
    for (const fs::path& leftover : leftovers) {
      if (!dry_run_) folder.remove_leftover(leftover);
      if (common.quiet) continue;
      streams.err << "fsdp-ckpt: note: " << (dry_run_ ? "would remove " : "removed ")
                  << formats::escape((fs::path(common.path) / leftover).native())
                  << ", which another prune had begun to remove\n";
    }
  }

  // Throws: kChanged if a sound checkpoint that stays has changed.
  static void check_kept(const formats::RunFolder& folder,
                         const std::vector<PruneVerdict>& verdicts) {
    for (const PruneVerdict& verdict : verdicts) {
      if (verdict.sound && folder.state(verdict.member->below) != verdict.member->state) {
        throw Error(ErrorCode::kChanged,
                    formats::escape(verdict.member->path) +
                        ": was sound, but changed meanwhile; nothing more is removed");
      }
    }
  }

  static void remove(const formats::RunFolder& folder, std::vector<PruneVerdict>& verdicts) {
    std::size_t removed = 0;
    for (PruneVerdict& verdict : verdicts) {
      if (!verdict.removed) continue;
      check_kept(folder, verdicts);
      try {
        formats::throw_if_interrupted();
        // Made before the removal, because memory may run out after it.
        std::string text = removed_text(removed + 1);
        folder.remove(verdict.member->below, verdict.member->state);
        note_removed(std::move(text));
        ++removed;
        remove_seal(folder, *verdict.member);
      } catch (const Error& error) {
        // kNotFound: a parent folder was replaced by a link.
        if (error.code() != ErrorCode::kChanged && error.code() != ErrorCode::kExists &&
            error.code() != ErrorCode::kNotFound) {
          throw;
        }
        verdict.removed = false;
        verdict.in_the_way = true;
        verdict.reason = message_of(error);
      }
    }
  }

  // Removes the seal of a single file, which stands beside the file.
  static void remove_seal(const formats::RunFolder& folder, const RunMember& member) {
    if (member.state.front().is_folder) return;
    const fs::path below = member.below;
    const fs::path seal = below.parent_path() / formats::sidecar_name(below.filename().native());
    if (!formats::is_regular(fs::path(member.path).parent_path() / seal.filename())) return;
    folder.remove(seal, folder.state(seal));
  }

  int report(const CommonOptions& common, const Streams& streams,
             const std::vector<RunMember>& members, const SoundCheckpoints& found,
             const std::vector<PruneVerdict>& verdicts, int status) const {
    if (common.json) {
      report_json(common, streams, members, found, verdicts);
    } else {
      note_passed_over(found.passed, common, streams);
      report_text(common, streams, members, found, verdicts);
    }
    return status;
  }

  void report_json(const CommonOptions& common, const Streams& streams,
                   const std::vector<RunMember>& members, const SoundCheckpoints& found,
                   const std::vector<PruneVerdict>& verdicts) const {
    formats::Json::Array removed;
    formats::Json::Array kept;
    std::uint64_t bytes = 0;
    const auto add_kept = [&](const RunMember& member, const std::string& reason) {
      kept.emplace_back(formats::Json::Object{
          {"path", member.path}, {"step", step_json(member.path)}, {"reason", reason}});
    };
    for (const PruneVerdict& verdict : verdicts) {
      if (!verdict.removed) {
        add_kept(*verdict.member, verdict.reason);
        continue;
      }
      bytes += verdict.member->bytes();
      removed.emplace_back(formats::Json::Object{{"path", verdict.member->path},
                                                 {"step", step_json(verdict.member->path)},
                                                 {"bytes", verdict.member->bytes()}});
    }
    if (verdicts.empty()) {
      for (const RunMember& member : members) add_kept(member, "fewer sound ones than --keep");
    }
    formats::Json::Object object{
        {"schema", "fsdp-ckpt/prune/1"},
        {"path", common.path},
        {"keep", static_cast<std::uint64_t>(*keep_)},
        {"dry_run", dry_run_},
        {"newest_sound",
         found.sound.empty() ? formats::Json() : formats::Json(found.sound.front())},
        {"removed", std::move(removed)},
        {"bytes", bytes},
        {"kept", std::move(kept)},
        {"passed_over", passed_over_json(found.passed)}};
    streams.out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
  }

  void report_text(const CommonOptions& common, const Streams& streams,
                   const std::vector<RunMember>& members, const SoundCheckpoints& found,
                   const std::vector<PruneVerdict>& verdicts) const {
    std::uint64_t bytes = 0;
    std::uint64_t removed = 0;
    for (const PruneVerdict& verdict : verdicts) {
      const std::string path = formats::escape(verdict.member->path);
      if (verdict.removed) {
        ++removed;
        bytes += verdict.member->bytes();
        if (common.quiet && !dry_run_) continue;
        streams.out << (dry_run_ ? "would remove " : "removed ") << path << ", "
                    << formats::human_bytes(verdict.member->bytes()) << '\n';
      } else if (verdict.in_the_way || (!common.quiet && verdict.reason == "a link leads to it")) {
        streams.out << "kept " << path << ": " << verdict.reason << '\n';
      }
    }
    if (common.quiet) return;
    std::map<std::string, std::size_t> others;
    for (const PruneVerdict& verdict : verdicts) {
      if (!verdict.of_series) ++others[formats::series_of(verdict.member->below)];
    }
    for (const auto& [series, number] : others)
      streams.out << "kept " << counted(number, "checkpoint") << " of another series, "
                  << formats::escape(series) << '\n';
    std::string text = formats::escape(common.path) + ": ";
    if (found.sound.empty()) {
      text += members.empty() && found.passed.empty()
                  ? "holds no checkpoint"
                  : "no checkpoint is sound; nothing is removed";
    } else {
      text += cat(removed, " of ", counted(members.size(), "checkpoint"),
                  dry_run_ ? " would be removed, " : " removed, ", formats::human_bytes(bytes),
                  "; the newest sound one is ", formats::escape(found.sound.front()));
    }
    streams.out << text << '\n';
  }

  std::optional<std::int64_t> keep_;
  bool dry_run_ = false;
  bool whole_folders_ = false;
  ExaminationOptions examined_;
};

}  // namespace

std::unique_ptr<Verb> make_prune() {
  return std::make_unique<PruneVerb>();
}

}  // namespace fsdp::cli
