// SPDX-License-Identifier: Apache-2.0
#include "formats/families/runs/steps.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/runs/formats.h"
#include "formats/families/runs/step_names.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Limits of a search: levels of folders, and files and folders in all.
constexpr int kMaxLevels = 8;
constexpr std::size_t kMaxLooked = 20'000;

struct Child;

// What lies below a folder, or what a file is.
struct Contents {
  enum class Kind { kNothing, kCheckpoint, kFolder } kind = Kind::kNothing;
  std::vector<Child> children;  // of a folder without a layout: those that hold a checkpoint
};

struct Child {
  std::string name;
  Contents contents;
};

class Walk {
 public:
  explicit Walk(fs::path root) : root_(std::move(root)) {}

  Contents folder(const fs::path& path, int levels) {
    const Listing listing(path);
    if (is_checkpoint_folder(listing)) return {Contents::Kind::kCheckpoint, {}};
    return inside(listing, levels, nullptr, {});
  }

  // Looks only at what lies in the folder.  `own`: the files that a layout has read, relative to
  // its folder; null: there is no layout.  `below`: this folder relative to the layout's folder, ""
  // or with a slash at the end.
  Contents inside(const Listing& listing, int levels, const std::set<std::string>* own,
                  const std::string& below) {
    Contents contents;
    for (const std::string& name : listing.names) {
      // Not counted in looked_: a layout may have a hundred thousand files.
      if (own != nullptr && (own->contains(below + name) || name.ends_with(".distcp"))) continue;
      if (++looked_ > kMaxLooked) {
        throw Error(ErrorCode::kLimitEntries,
                    cat(escape(root_.native()), ": holds more than ", kMaxLooked,
                        " files and folders, the limit of a search"));
      }
      if (name.starts_with('.')) continue;  // also an output while it is written
      Child child{name, {}};
      const fs::path inner = listing.path() / name;
      const PlaceKind kind = kind_of_place_itself(inner);
      const bool counts = kind == PlaceKind::kFile && !is_description_name(name) &&
                          (own != nullptr ? is_checkpoint_name(name) : was_checkpoint_file(inner));
      if (counts) {
        child.contents.kind = Contents::Kind::kCheckpoint;
      } else if (kind == PlaceKind::kFolder) {
        if (levels == 0) {
          throw Error(ErrorCode::kLimitEntries,
                      cat(escape(root_.native()), ": holds folders more than ", kMaxLevels,
                          " levels deep, the limit of a search"));
        }
        const std::string start = below + name + "/";
        const bool read = own != nullptr && own->lower_bound(start) != own->end() &&
                          own->lower_bound(start)->starts_with(start);
        child.contents =
            read ? inside(Listing(inner), levels - 1, own, start) : folder(inner, levels - 1);
      }
      if (child.contents.kind != Contents::Kind::kNothing)
        contents.children.push_back(std::move(child));
    }
    if (!contents.children.empty()) contents.kind = Contents::Kind::kFolder;
    return contents;
  }

  static bool is_checkpoint_folder(const Listing& listing) {
    return format_of(listing) != nullptr || is_interrupted(listing);
  }

 private:
  fs::path root_;
  std::size_t looked_ = 0;
};

bool is_run(const std::string& name, const Contents& contents, bool in_step);

// Returns for each child whether it is a step of the folder, seen as a run.  `in_step`: the name of
// a folder above tells a step, so names that differ only in numbers are parts.
std::vector<bool> steps_among(const std::string& name, const Contents& contents, bool in_step) {
  std::map<std::string, std::size_t> alike;
  for (const Child& child : contents.children) ++alike[series_of(child.name)];
  const bool own = in_step || tells_step(name);
  std::vector<bool> are;
  for (const Child& child : contents.children) {
    const bool several = !own && alike[series_of(child.name)] > 1 && !tells_rank(child.name);
    are.push_back(tells_step(child.name) || several || is_run(child.name, child.contents, own));
  }
  return are;
}

bool is_run(const std::string& name, const Contents& contents, bool in_step) {
  if (contents.kind != Contents::Kind::kFolder) return false;
  const std::vector<bool> are = steps_among(name, contents, in_step);
  return std::ranges::find(are, true) != are.end();
}

void add_parts(const Contents& contents, const std::string& below,
               std::vector<std::string>& parts) {
  for (const Child& child : contents.children) {
    const std::string path = below + child.name;
    if (child.contents.kind == Contents::Kind::kCheckpoint) {
      parts.push_back(path);
    } else {
      add_parts(child.contents, path + "/", parts);
    }
  }
}

// Returns the names of the checkpoints in a folder that has a layout, without numbers: the reader
// of the layout checks how many files there are.  Steps inside are left out.
std::set<std::string> shape_in_layout(const fs::path& path) {
  if (kind_of_place_itself(path) != PlaceKind::kFolder) return {};
  std::set<std::string> shape;
  for (const std::string& name : folder_at(path)->list()) {
    if (tells_step(name) || name.starts_with('.') || is_description_name(name)) continue;
    if (is_checkpoint_name(name) ||
        (!name.ends_with(".distcp") && is_folder(path / name) && opens(path / name)))
      shape.insert(without_numbers(name));
  }
  return shape;
}

// Returns whether a folder beside this one belongs to the same series of names.
bool has_sibling(const fs::path& folder) {
  const std::string name = name_of_place(folder);
  const std::string series = series_of(name);
  if (in_store(folder) || series == name || tells_rank(name)) return false;
  const auto parent = folder_at(folder_of_place(fs::absolute(folder).lexically_normal()));
  const std::vector<std::string> names = parent->list();
  return std::ranges::any_of(names, [&](const std::string& other) {
    return other != name && series_of(other) == series && parent->is_folder(other);
  });
}

// Adds the steps of a folder or file.  `one_of_many`: another name beside it differs only in one
// number.
void add_steps(const fs::path& path, const Contents& contents, bool one_of_many, RunView& view) {
  if (contents.kind == Contents::Kind::kCheckpoint) {
    view.steps.push_back({path, {}, shape_in_layout(path)});
    return;
  }
  const std::string name = name_of_place(path);
  const std::vector<bool> are = steps_among(name, contents, false);
  if (std::ranges::find(are, true) == are.end()) {
    std::vector<std::string> parts;
    add_parts(contents, "", parts);
    const bool is_step =
        one_of_many || tells_step(name) ||
        (parts.size() > 1 && std::ranges::any_of(contents.children, is_part_name, &Child::name));
    if (is_step) {
      // Files of single ranks are different parts.
      std::set<std::string> shape;
      for (const std::string& part : parts)
        shape.insert(tells_rank(part) ? part : without_numbers(part));
      view.steps.push_back({path, std::move(parts), std::move(shape)});
      return;
    }
  }
  for (std::size_t i = 0; i < are.size(); ++i) {
    const Child& child = contents.children[i];
    add_steps(path / child.name, child.contents, are[i], view);
  }
}

}  // namespace

RunView look_through(const fs::path& folder) {
  RunView view;
  const Contents contents = Walk(folder).folder(folder, kMaxLevels);
  if (contents.kind == Contents::Kind::kNothing) return view;
  add_steps(folder, contents, has_sibling(folder), view);
  view.is_step = view.steps.size() == 1 && view.steps.front().path == folder;
  return view;
}

std::vector<std::string> parts_of_step(const fs::path& path) {
  if (!is_folder(path) || Walk::is_checkpoint_folder(Listing(path))) return {};
  RunView view = look_through(path);
  return view.is_step ? std::move(view.steps.front().parts) : std::vector<std::string>();
}

std::vector<std::string> part_names(const std::vector<std::string>& paths) {
  const auto stem = [](const std::string& path) { return fs::path(path).stem().native(); };
  std::map<std::string, std::size_t> alike;
  for (const std::string& path : paths) ++alike[stem(path)];
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    names.push_back(stem(path));
    if (alike[names.back()] == 1) continue;
    names.back() = path;
    std::ranges::replace(names.back(), '/', '.');
  }
  return names;
}

Findings missing_model(const std::vector<std::string>& paths) {
  const auto any = [&](PartRole role) {
    return std::ranges::any_of(paths,
                               [&](const std::string& path) { return has_role(path, role); });
  };
  const bool understood = std::ranges::all_of(paths, is_part_name);
  if (!understood || !any(PartRole::kOptimizer) || any(PartRole::kModel)) return {};
  return {{.code = ErrorCode::kShardMissing,
           .message = cat("holds ", joined(paths, ", "), ", but no model")}};
}

std::vector<std::string> files_below(const fs::path& path, const Checkpoint& checkpoint) {
  // The checkpoint may lie in a folder inside.
  const fs::path own = checkpoint.description().path;
  const fs::path inner = own.lexically_relative(escape(path.native()));
  const bool below = !inner.empty() && inner != "." && *inner.begin() != "..";
  std::vector<std::string> files;
  for (const FileEntry& file : checkpoint.index().files)
    files.push_back(below ? (inner / file.name).native() : file.name);
  return files;
}

std::vector<std::string> unread_checkpoints(const fs::path& folder,
                                            const std::vector<std::string>& files) {
  std::vector<std::string> unread;
  if (!is_folder(folder)) return unread;
  const std::set<std::string> own(files.begin(), files.end());
  try {
    add_parts(Walk(folder).inside(Listing(folder), kMaxLevels, &own, {}), "", unread);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported || !in_store(folder)) throw;
  }
  return unread;
}

}  // namespace fsdp::formats
