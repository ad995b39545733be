// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/checking/pruning.h"

#include <algorithm>
#include <filesystem>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/seal.h"
#include "formats/families/runs/step_names.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;

// Returns the target of a path, without links; empty if there is no target.
// Throws: kIo if that is unknown.
fs::path target_of(const fs::path& path) {
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  if (!error) return target;
  if (error == std::errc::no_such_file_or_directory ||
      error == std::errc::too_many_symbolic_link_levels) {
    return {};
  }
  throw Error(ErrorCode::kIo, cat(formats::escape(path.native()), ": ", error.message()));
}

// Adds the targets of symbolic links in the folders of a run, without links that lead nowhere.
// Throws: kIo, because an unseen link would not protect its target.
void add_link_targets(const fs::path& folder, std::vector<fs::path>& targets) {
  for (const std::string& name : formats::folder_at(folder)->list()) {
    const fs::path inner = folder / name;
    const fs::file_type type = fs::symlink_status(inner).type();
    if (type == fs::file_type::symlink) {
      fs::path target = target_of(inner);
      if (!target.empty()) targets.push_back(std::move(target));
    } else if (type == fs::file_type::directory) {
      add_link_targets(inner, targets);
    }
  }
}

bool is_within(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// Returns a member of the checkpoint's folder that is not part of a checkpoint; empty if there is
// none.
std::string foreign_member(const RunMember& member) {
  for (const formats::RemovableMember& one : member.state) {
    if (one.name.empty()) continue;
    const std::string name = fs::path(one.name).filename();
    const bool known = one.is_folder ? !formats::is_seal_name(name)
                                     : one.is_regular && (formats::is_member_name(name) ||
                                                          formats::is_checkpoint_name(name) ||
                                                          formats::is_seal_name(name));
    if (!known) return one.name;
  }
  return {};
}

// Returns the folder of another step inside the checkpoint's folder; empty if there is none.
std::string inner_step(const RunMember& member) {
  const auto own = formats::certain_step_of(member.below);
  for (const formats::RemovableMember& one : member.state) {
    if (!one.is_folder || one.name.empty()) continue;
    const std::string name = fs::path(one.name).filename();
    if (formats::tells_step(name) && formats::certain_step_of(name) != own) return one.name;
  }
  return {};
}

}  // namespace

std::uint64_t RunMember::bytes() const {
  std::uint64_t sum = 0;
  for (const formats::RemovableMember& one : state) sum += one.bytes;
  return sum;
}

std::vector<PruneVerdict> prune_verdicts(const std::string& run,
                                         const std::vector<RunMember>& members,
                                         const std::vector<std::string>& kept, bool whole_folders) {
  std::vector<fs::path> targets;
  add_link_targets(run, targets);
  const auto below_of = [&](const std::string& path) {
    return std::find_if(members.begin(), members.end(),
                        [&](const RunMember& member) { return member.path == path; })
        ->below;
  };
  const std::string series = formats::series_of(below_of(kept.front()));
  const std::uint64_t last = *formats::certain_step_of(kept.back());
  std::vector<PruneVerdict> verdicts;
  for (const RunMember& member : members) {
    PruneVerdict verdict;
    verdict.member = &member;
    verdict.of_series = formats::series_of(member.below) == series;
    verdict.sound = std::find(kept.begin(), kept.end(), member.path) != kept.end();
    const auto step = formats::certain_step_of(member.path);
    const fs::path own = target_of(member.path);
    const auto leads_to = [&](const fs::path& target) { return is_within(target, own); };
    if (member.path == kept.front()) {
      verdict.reason = "the newest sound one";
    } else if (verdict.sound) {
      verdict.reason = "sound";
    } else if (!verdict.of_series) {
      verdict.reason = "belongs to another series";
    } else if (!step) {
      verdict.reason = "its name does not tell its step for certain";
    } else if (*step >= last) {
      verdict.reason = "as new as those that are kept";
    } else if (own.empty()) {
      verdict.reason = "it disappeared meanwhile";
    } else if (std::any_of(targets.begin(), targets.end(), leads_to)) {
      verdict.reason = "a link leads to it";
    } else if (const std::string inner = inner_step(member); !inner.empty()) {
      verdict.reason = cat("holds another step, ", formats::quote(inner, 200));
      verdict.in_the_way = true;
    } else if (const std::string foreign = foreign_member(member);
               !foreign.empty() && !whole_folders) {
      verdict.reason = cat("holds ", formats::quote(foreign, 200),
                           ", which is not part of a checkpoint; --whole-folders removes it too");
      verdict.in_the_way = true;
    } else {
      verdict.removed = true;
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace fsdp::cli
