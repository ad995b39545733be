// SPDX-License-Identifier: Apache-2.0
#include "formats/front/open_around.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/hidden_files.h"
#include "formats/bytes/store/place.h"
#include "formats/families/checks/seal_check.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/names.h"
#include "formats/families/runs/formats.h"
#include "formats/families/runs/steps.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using Severity = Finding::Severity;

// Returns why metadata do not fit the data files; empty if they do.  `report` receives the findings
// of the items.
std::string why_unfit(const StoredCheckpoint& checkpoint, const VerifyOptions& options,
                      VerifyReport& report) {
  const Index& index = checkpoint.index();
  std::vector<std::uint64_t> ends(index.files.size());
  const auto see = [&](const Location& at) {
    const std::uint64_t end = at.offset + std::min(at.length, UINT64_MAX - at.offset);
    ends[at.file] = std::max(ends[at.file], end);
  };
  for (const TensorEntry& tensor : index.tensors) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) see(tensor.chunks.location(c));
  }
  for (const ValueEntry& value : index.values) see(value.location);
  bool any = false;
  for (std::size_t f = 0; f < ends.size(); ++f) {
    const FileEntry& file = index.files[f];
    any = any || file.bytes;
    if (file.bytes && *file.bytes != ends[f]) {
      return cat(escape(file.name), " has ", *file.bytes, " bytes, its items would end at byte ",
                 ends[f]);
    }
  }
  if (!any) return "none of the files that it names is there";
  report = checkpoint.verify(options);
  for (const Finding& finding : report.findings) {
    const bool unnamed =
        finding.code == ErrorCode::kExtraFile && dcp::rank_of_data_file(finding.file);
    const bool other = finding.severity == Severity::kDamage &&
                       finding.code != ErrorCode::kShardMissing &&
                       finding.code != ErrorCode::kZipCrc;
    if (unnamed || other) return finding_text(finding);
  }
  return {};
}

// Returns the folders beside `folder` that have a `.metadata`, the last one in natural order first.
std::vector<fs::path> steps_beside(const fs::path& folder) {
  if (in_store(folder)) return {};
  fs::path own = fs::absolute(folder).lexically_normal();
  if (!own.has_filename()) own = own.parent_path();
  std::vector<fs::path> found;
  for (const std::string& name : Listing(own.parent_path()).names) {
    const fs::path beside = own.parent_path() / name;
    if (name != own.filename() && exists_at(beside / dcp::kMetadataName)) found.push_back(beside);
  }
  std::ranges::reverse(found);
  return found;
}

// Opens a folder of torch.distributed.checkpoint with the first metadata that fit.  Throws:
// `refusal`, with what was tried.
OpenedAround open_with_metadata(const fs::path& folder, const SalvageOptions& options,
                                const Error& refusal) {
  std::vector<dcp::MetadataPlace> places{{folder, std::string(dcp::kMetadataTempName)}};
  for (const fs::path& sibling : options.siblings)
    places.push_back({sibling, std::string(dcp::kMetadataName)});
  for (const fs::path& sibling : steps_beside(folder))
    places.push_back({sibling, std::string(dcp::kMetadataName)});
  std::string tried;
  for (const dcp::MetadataPlace& place : places) {
    const fs::path file = place.folder / place.name;
    std::string why;
    try {
      if (kind_of_place(place.folder) != PlaceKind::kFolder || !exists_at(file)) continue;
      OpenedAround opened{
          dcp::open_dcp(folder, options.verify.allowed_globals, this_process(), &place),
          VerifyReport{}, escape(file.native())};
      why = why_unfit(*opened.checkpoint, options.verify, *opened.report);
      if (why.empty()) return opened;
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      why = error.what();
    }
    tried += cat("; ", escape(file.native()), " does not fit: ", why);
  }
  if (tried.empty()) tried = "; no step beside it has a .metadata that could stand for it";
  throw refusal.saying(refusal.what() + tried);
}

// Returns an error if the seal says that `.metadata` is another one.
std::optional<Error> unsealed_metadata(const fs::path& path) {
  const auto place = find_seal(path);
  if (!place || place->single) return std::nullopt;
  VerifyOptions fast;
  fast.fast = true;
  for (const Finding& finding : check_seal(*place, fast).findings) {
    if (finding.code == ErrorCode::kSealMismatch &&
        fs::path(finding.file).filename() == dcp::kMetadataName)
      return Error(finding.code, cat(escape(path.native()), ": ", finding_text(finding)));
  }
  return std::nullopt;
}

// Returns the files of a folder that have the name of a checkpoint and cannot be opened, and why.
std::map<std::string, std::string> unreadable_files(const fs::path& path,
                                                    const SalvageOptions& options) {
  std::map<std::string, std::string> why;
  const auto folder = folder_at(path);
  for (const std::string& name : folder->list_files()) {
    const bool named = std::ranges::any_of(format_table(), [&](const Format& format) {
      return std::ranges::any_of(format.outputs, [&](const OutputFormat& output) {
        return std::ranges::any_of(output.suffixes,
                                   [&](std::string_view suffix) { return name.ends_with(suffix); });
      });
    });
    if (!named) continue;
    try {
      (void)folder->open_member(name);
      (void)open_checkpoint(path / name, {options.verify.allowed_globals});
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      why.emplace(name, error.what());
    }
  }
  return why;
}

// Opens a folder without the files that cannot be opened.  Throws: `refusal` if there are none, or
// nothing can be opened without them.
OpenedAround open_without_unreadable(const fs::path& path, const SalvageOptions& options,
                                     const Error& refusal) {
  std::map<std::string, std::string> unread = unreadable_files(path, options);
  std::vector<std::string> files;
  for (const auto& [name, why] : unread) files.push_back(name);
  try {
    if (!files.empty())
      return {open_without(path, files, options), std::nullopt, {}, std::move(unread)};
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
  }
  throw refusal.saying(cat(
      refusal.what(), "; fsdp-ckpt salvage takes what is whole of one of its files or folders"));
}

}  // namespace

std::unique_ptr<StoredCheckpoint> open_without(const fs::path& folder,
                                               const std::vector<std::string>& files,
                                               const SalvageOptions& options) {
  std::set<fs::path> paths;
  for (const std::string& file : files) paths.insert(folder / file);
  const HiddenFiles hidden(std::move(paths));
  return open_checkpoint(folder, {options.verify.allowed_globals});
}

OpenedAround open_around(const fs::path& path, const SalvageOptions& options) {
  std::optional<Error> refusal = unsealed_metadata(path);
  if (!refusal) {
    try {
      return {open_checkpoint(path, {options.verify.allowed_globals})};
    } catch (const Error& error) {
      if (is_no_answer(error.code()) || error.code() == ErrorCode::kNotFound) throw;
      refusal = error;
    }
  }
  constexpr auto kAround = safetensors::Damage::kGoneAround;
  if (kind_of_place(path) == PlaceKind::kFolder) {
    const Listing listing(path);
    if (is_interrupted(listing)) return open_with_metadata(path, options, *refusal);
    const Format* const format = format_of(listing);
    if (format != nullptr && format->word == "safetensors")
      return {safetensors::open_folder(path, std::nullopt, kAround)};
    return open_without_unreadable(path, options, *refusal);
  } else if (safetensors::looks_like_safetensors(*file_at(path))) {
    return {safetensors::open_file(path, kAround)};
  } else if (sniff_torch_stream(*file_at(path)) == TorchStream::kZip) {
    try {
      return {open_cut_torch_save(path)};
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
    }
  }
  throw Error(*refusal);
}

}  // namespace fsdp::formats
