// SPDX-License-Identifier: Apache-2.0
#include "formats/front/open.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/names.h"
#include "formats/families/runs/steps.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/torch.h"
#include "formats/families/torch_checkpointing/folder.h"
#include "formats/families/torch_checkpointing/metadata.h"
#include "formats/families/trainers/trainers.h"
#include "formats/front/foreign.h"
#include "formats/state/content/combined_checkpoint.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Bytes read ahead at a file's start, in a store by one request: enough for headers and pickles of
// thousands of tensors.
constexpr std::uint64_t kFirstBytes = 1U << 20U;

// Limit of the near misses named in a message.
constexpr std::size_t kMaxSuggestions = 5;

// Returns the checkpoints in the folder, and the folder above if that is a folder of
// torch.distributed.checkpoint.
std::vector<std::string> near_misses(const Listing& listing) {
  const fs::path& folder = listing.path();
  std::vector<std::string> found;
  for (const std::string& name : listing.names) {
    if (found.size() == kMaxSuggestions) break;
    if (opens(folder / name)) found.push_back(escape((folder / name).native()));
  }
  // Stray safetensors files beside the folder are not a reason to name checkpoints above it.
  const fs::path above = in_store(folder) ? folder_of_place(folder)
                                          : fs::absolute(folder).lexically_normal().parent_path();
  if (is_folder(above) && above != folder && dcp::is_dcp_folder(Listing(above)))
    found.push_back(escape(above.native()));
  return found;
}

std::string suggestion(const std::vector<std::string>& paths) {
  if (paths.empty()) return {};
  return (paths.size() == 1 ? "; the checkpoint near it: " : "; checkpoints near it: ") +
         joined(paths, ", ");
}

std::unique_ptr<StoredCheckpoint> open_step(const fs::path& path,
                                            const std::vector<std::string>& names,
                                            const OpenOptions& options) {
  std::vector<CheckpointPart> parts;
  std::vector<std::string> known = part_names(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    CheckpointPart part{.checkpoint = open_checkpoint(path / names[i], options),
                        .name = std::move(known[i])};
    const bool folder = is_folder(path / names[i]);
    const std::size_t slash = names[i].rfind('/');
    if (folder) part.folder = names[i] + "/";
    if (!folder && slash != std::string::npos) part.folder = names[i].substr(0, slash + 1);
    part.unwrap = is_below(*part.checkpoint, part.name);
    parts.push_back(std::move(part));
  }
  return combine_checkpoints(std::move(parts), {escape(path.native()), "step", "parts"},
                             missing_model(names));
}

std::unique_ptr<StoredCheckpoint> open_folder(const fs::path& path, const OpenOptions& options) {
  const Listing listing(path);
  if (const Format* const format = format_of(listing)) return format->open_folder(path, options);
  // dcp::open_dcp reports which kind of unfinished save this is.
  if (is_interrupted(listing)) return dcp::open_dcp(path, options.allowed_globals, *options.team);
  if (const RunView view = look_through(path); view.is_step)
    return open_step(path, view.steps.front().parts, options);
  if (const auto foreign = foreign_folder(listing))
    throw Error(ErrorCode::kUnsupported, cat(escape(path.native()), ": ", *foreign));
  const std::string near = suggestion(near_misses(listing));
  throw Error(ErrorCode::kUnknownFormat,
              cat(escape(path.native()), ": is not a checkpoint",
                  near.empty() && listing.names.empty() ? "; the folder is empty" : near));
}

// Returns whether the name has a usual suffix of files that torch.save wrote.
bool is_archive_name(std::string_view name) {
  return std::ranges::any_of(output_format("pt")->suffixes,
                             [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::unique_ptr<StoredCheckpoint> open_file(const fs::path& path, const OpenOptions& options) {
  const std::string name = path.filename();
  // The metadata or one data file of a folder represents the folder.
  const fs::path folder = folder_of_place(path);
  if (name == dcp::kMetadataName || dcp::rank_of_data_file(name))
    return open_folder(folder, options);
  if (name == torch_checkpointing::kMetadataName &&
      torch_checkpointing::is_described_folder(Listing(folder)))
    return open_folder(folder, options);
  if (name.ends_with(".safetensors.index.json")) return safetensors::open_folder(folder, name);
  if (is_torch_index_name(name)) return open_torch_index(folder, name);
  const auto file = file_at(path);
  (void)file->read_ahead(0, kFirstBytes);
  if (is_archive_name(name)) {
    const std::uint64_t bytes = std::min(kTorchDirectoryBytes, file->size());
    (void)file->read_ahead(file->size() - bytes, bytes);
  }
  if (file->size() == 0) throw Error(ErrorCode::kEmpty, file->name() + ": has no bytes");
  if (const Format* const format = format_of(*file)) return format->open_file(path);
  if (name.ends_with(".safetensors"))
    return safetensors::open_file(path);  // its reader reports the error
  // A configuration beside the weights.
  const bool in_one =
      !in_store(path) && !is_checkpoint_name(name) && format_of(Listing(folder)) != nullptr;
  throw Error(
      ErrorCode::kUnknownFormat,
      cat(file->name(), ": is not a checkpoint: neither a torch.save, safetensors nor HDF5 file",
          in_one ? suggestion({escape(folder.native())}) : ""));
}

[[noreturn]] void throw_not_found(const fs::path& path) {
  if (is_url(path.native()) && !in_store(path)) {
    throw Error(
        ErrorCode::kUnsupported,
        escape(path.native()) +
            (path.native().starts_with("file://")
                 ? ": is a URL of this machine; give the path behind file://"
                 : ": is a URL of an unknown kind of store; download it, or mount the store"));
  }
  std::string hint;
  const fs::path above = folder_of_place(path);
  if (in_store(path) && !list_stored(url_of(path))->whole)
    throw Error(ErrorCode::kNotFound, cat(escape(path.native()), ": no such file; ", kCannotList));
  try {
    if (is_folder(above)) {
      std::vector<std::string> names = folder_at(above)->list();
      const std::string near = nearest(path.filename().native(), names);
      const fs::path meant = path.has_parent_path() ? above / near : fs::path(near);
      if (!near.empty()) hint = "; did you mean " + escape(meant.native()) + "?";
    }
  } catch (const Error& error) {
    // A store may refuse to list, or be unable to.
    if (!in_store(path)) throw;
  }
  throw Error(ErrorCode::kNotFound, escape(path.native()) + ": no such file or folder" + hint);
}

}  // namespace

std::unique_ptr<StoredCheckpoint> open_checkpoint(const fs::path& path,
                                                  const OpenOptions& options) {
  const StoreSession session;
  const PlaceKind kind = kind_of_place(path);
  if (kind == PlaceKind::kNothing) throw_not_found(path);
  return kind == PlaceKind::kFolder ? open_folder(path, options) : open_file(path, options);
}

}  // namespace fsdp::formats
