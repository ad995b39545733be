// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/families/trainers/trainer_files.h"
#include "formats/families/trainers/trainers.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats::accelerate {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModel = "pytorch_model_fsdp";
constexpr std::string_view kOptimizer = "optimizer";

// One model or optimizer.
struct Member {
  bool optimizer = false;
  std::int64_t number = 0;
  std::string folder = {};              // DCP
  std::string file = {};                // one file
  std::optional<RankFiles> ranks = {};  // one file per rank
};

std::optional<Member> member_named(std::string_view stem) {
  for (const std::string_view base : {kModel, kOptimizer}) {
    if (!stem.starts_with(base)) continue;
    if (const auto number = number_behind(stem.substr(base.size())))
      return Member{.optimizer = base == kOptimizer, .number = *number};
  }
  return std::nullopt;
}

// Returns the members of the folder, models first.  If several layouts lie side by side, the
// sharded one is used: a later save into the folder would have replaced it.
std::vector<Member> members_of(const Listing& listing, std::vector<std::string>* others = nullptr) {
  const Folder& folder = *listing.folder;
  std::map<std::pair<bool, std::int64_t>, Member> found;
  const auto add = [&](Member&& member) {
    const std::pair key(member.optimizer, member.number);
    return found.try_emplace(key, std::move(member)).second;
  };
  std::vector<std::string> rest;
  for (const std::string& name : listing.names) {
    auto member = folder.is_folder(name) ? member_named(name) : std::nullopt;
    if (member && dcp::is_dcp_folder(Listing(listing.path() / name))) {
      member->folder = name;
      add(std::move(*member));
    } else {
      rest.push_back(name);
    }
  }
  std::vector<std::string> unused;
  for (RankFiles& set : rank_files(rest)) {
    auto member = set.files[0].second.ends_with(".bin") ? member_named(set.name) : std::nullopt;
    if (!member) continue;
    for (const auto& [rank, name] : set.files) std::erase(rest, name);
    std::string first = set.files[0].second;
    member->ranks = std::move(set);
    if (!add(std::move(*member))) unused.push_back(std::move(first));
  }
  for (const std::string& name : rest) {
    auto member = name.ends_with(".bin") && !folder.is_folder(name)
                      ? member_named(std::string_view(name).substr(0, name.size() - 4))
                      : std::nullopt;
    if (!member) {
      unused.push_back(name);
      continue;
    }
    member->file = name;
    if (!add(std::move(*member))) unused.push_back(name);
  }
  if (others != nullptr) *others = std::move(unused);
  std::vector<Member> members;
  for (auto& [key, member] : found) members.push_back(std::move(member));
  return members;
}

}  // namespace

bool is_accelerate_folder(const Listing& folder) {
  // "optimizer" alone means nothing: many programs use that name.
  return std::ranges::any_of(members_of(folder),
                             [](const Member& member) { return !member.optimizer; });
}

std::vector<std::string> names_beside(const Listing& folder) {
  std::vector<std::string> names;
  (void)members_of(folder, &names);
  // Models and optimizers of another layout are left from an earlier save.
  std::erase_if(names, [](const std::string& name) {
    return member_named(name.substr(0, name.rfind('.'))).has_value();
  });
  return names;
}

std::unique_ptr<StoredCheckpoint> open_accelerate(
    const fs::path& path, const std::set<std::string>& allowed_globals,
    const std::function<std::unique_ptr<StoredCheckpoint>(const fs::path& folder,
                                                          const RankFiles& set)>& open_ranks) {
  std::vector<std::string> others;
  std::vector<CheckpointPart> parts;
  std::string layout;
  bool trees = true;
  for (const Member& member : members_of(Listing(path), &others)) {
    const std::string base = member.optimizer ? "optimizer" : "model";
    CheckpointPart part;
    part.name = member.number == 0 ? base : cat(base, "_", member.number);
    if (!member.folder.empty()) {
      part.checkpoint = dcp::open_dcp(path / member.folder, allowed_globals);
      part.folder = member.folder + "/";
      part.unwrap = is_below(*part.checkpoint, base);
      layout = "sharded";
    } else if (member.ranks) {
      part.checkpoint = open_ranks(path, *member.ranks);
      if (layout.empty()) layout = "per-rank";
    } else {
      part.checkpoint = open_saved_file(path / member.file);
      if (layout.empty()) layout = "full";
    }
    trees = trees && part.checkpoint->tree().has_value();
    parts.push_back(std::move(part));
  }
  TrainerFiles beside = trainer_files(path, others, !trees, true);
  std::move(beside.parts.begin(), beside.parts.end(), std::back_inserter(parts));
  return combine_checkpoints(std::move(parts), {escape(path.native()), "accelerate", layout},
                             std::move(beside.findings));
}

}  // namespace fsdp::formats::accelerate
