// SPDX-License-Identifier: Apache-2.0
#include "formats/front/salvage.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/file_times.h"
#include "formats/bytes/store/hidden_files.h"
#include "formats/bytes/store/place.h"
#include "formats/containers/names/unsafe_names.h"
#include "formats/families/checks/seal_check.h"
#include "formats/families/checks/step_counts.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/names.h"
#include "formats/families/runs/formats.h"
#include "formats/families/runs/steps.h"
#include "formats/families/safetensors/safetensors.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/torch.h"
#include "formats/front/open.h"
#include "formats/state/content/storage_map.h"
#include "formats/state/model/check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using Severity = Finding::Severity;

// Files of one save may be written this long after each other's times.
constexpr std::int64_t kTimeSlack = 2'000'000'000;

struct Opened {
  std::unique_ptr<StoredCheckpoint> checkpoint;
  std::optional<VerifyReport> report;  // if it was verified already
  std::string metadata;                // see Salvaged
  std::map<std::string, std::string> unread = {};
};

bool fits_in(const Location& location, const FileEntry& file) {
  return file.bytes && location.offset <= *file.bytes &&
         location.length <= *file.bytes - location.offset;
}

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

// Returns a finding's text without its key, which the caller names.
std::string keyless_text(Finding finding) {
  finding.key.clear();
  return finding_text(finding);
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
Opened open_with_metadata(const fs::path& folder, const SalvageOptions& options,
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
      Opened opened{dcp::open_dcp(folder, options.verify.allowed_globals, this_process(), &place),
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

// Opens a folder as if it did not have some of its files.
std::unique_ptr<StoredCheckpoint> open_without(const fs::path& folder,
                                               const std::vector<std::string>& files,
                                               const SalvageOptions& options) {
  std::set<fs::path> paths;
  for (const std::string& file : files) paths.insert(folder / file);
  const HiddenFiles hidden(std::move(paths));
  return open_checkpoint(folder, {options.verify.allowed_globals});
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
Opened open_without_unreadable(const fs::path& path, const SalvageOptions& options,
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

Opened open_around(const fs::path& path, const SalvageOptions& options) {
  std::optional<Error> refusal = unsealed_metadata(path);
  if (!refusal) {
    try {
      return {open_checkpoint(path, {options.verify.allowed_globals}), std::nullopt, {}};
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
      return {safetensors::open_folder(path, std::nullopt, kAround), std::nullopt, {}};
    return open_without_unreadable(path, options, *refusal);
  } else if (safetensors::looks_like_safetensors(*file_at(path))) {
    return {safetensors::open_file(path, kAround), std::nullopt, {}};
  } else if (sniff_torch_stream(*file_at(path)) == TorchStream::kZip) {
    try {
      return {open_cut_torch_save(path), std::nullopt, {}};
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
    }
  }
  throw Error(*refusal);
}

// Judges the entries of an opened checkpoint by findings.
class Judge {
 public:
  Judge(const fs::path& path, Opened opened, const SalvageOptions& options)
      : path_(path), options_(options), checkpoint_(*opened.checkpoint) {
    out_.checkpoint = std::move(opened.checkpoint);
    out_.metadata = std::move(opened.metadata);
    out_.unread = std::move(opened.unread);
    report_ = std::move(opened.report);
  }

  Salvaged run() {
    const Index& index = checkpoint_.index();
    for (std::size_t f = 0; f < index.files.size(); ++f) {
      numbers_.emplace(index.files[f].name, f);
      out_.files.push_back({.name = index.files[f].name, .bytes = index.files[f].bytes});
    }
    places_ = files_below(path_, checkpoint_);
    bad_.resize(index.files.size());
    sealed_.resize(index.files.size(), false);
    note_findings();
    note_seal();
    judge();
    note_steps();
    note_gone();
    note_unread();
    checkpoint_.check_unchanged();
    out_.checkpoint->forget_damage([&](const Location& at) { return !fault_of(at).empty(); });
    return std::move(out_);
  }

  // Returns the files that have damage, relative to the path.
  std::vector<std::string> damaged_files() const {
    std::vector<std::string> names;
    for (std::size_t f = 0; f < bad_.size(); ++f) {
      if (!bad_[f].empty()) names.push_back(places_[f]);
    }
    return names;
  }
  // Returns whether the copies of a tensor in several files are not known to be the same.
  bool differs(const std::string& key) const { return unlike_.contains(key); }

 private:
  // A part of a file that is not whole.
  struct Bad {
    std::uint64_t begin = 0;
    std::uint64_t end = UINT64_MAX;
    std::string why;
  };

  void note_findings() {
    VerifyOptions options = options_.verify;
    options.crcs = find_seal(path_) ? &crcs_ : nullptr;
    if (!report_) report_ = checkpoint_.verify(options);
    check_extents(checkpoint_.index(), report_->findings);
    for (const Finding& finding : report_->findings) {
      // This machine lacks something, not the file.
      if (finding.code == ErrorCode::kOutOfMemory) throw Error(finding.code, finding_text(finding));
      if (finding.code == ErrorCode::kMismatch) unlike_.insert(finding.key);
      // What contains itself is kept as it is.
      if (finding.severity == Severity::kWarning || finding.code == ErrorCode::kCycle) {
        if (finding.severity == Severity::kWarning && finding.code != ErrorCode::kMismatch &&
            !finding.key.empty())
          left_out_.try_emplace(finding.key, &finding);
        continue;
      }
      const auto file = numbers_.find(finding.file);
      const std::string why = finding_text(finding);
      if (file != numbers_.end() && finding.bytes) {
        bad_[file->second].push_back({finding.bytes->begin, finding.bytes->end, why});
      } else if (!finding.key.empty()) {
        by_key_.try_emplace(finding.key, &finding);
      } else if (file != numbers_.end() && finding.severity == Severity::kDamage) {
        bad_[file->second].push_back({.why = why});
      } else if (finding.severity == Severity::kDamage) {
        note_unplaced(finding);
      }
    }
  }

  // A file that is lost, of which no key is known; or damage of everything.
  void note_unplaced(const Finding& finding) {
    out_.names_known = false;
    const bool lacks_a_part = checkpoint_.description().format == "step";
    if (finding.file.empty() && !lacks_a_part && everywhere_.empty())
      everywhere_ = finding_text(finding);
  }

  // Returns the number of the file that a seal of the place names; nothing if it is another's.
  std::optional<std::size_t> file_of_seal(const SealPlace& place, std::string name) const {
    if (place.single && numbers_.size() == 1) return 0;
    if (place.only.ends_with('/') && name.starts_with(place.only)) name.erase(0, place.only.size());
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }

  void note_seal() {
    const auto place = find_seal(path_);
    if (!place) return;
    VerifyOptions options = options_.verify;
    options.crcs = &crcs_;
    const SealReport report = check_seal(*place, options);
    if (report.state == SealState::kUnreadable) return;
    std::vector<const Finding*> differs(numbers_.size());
    for (const Finding& finding : report.findings) {
      if (const auto file = file_of_seal(*place, finding.file)) differs[*file] = &finding;
    }
    for (std::size_t f = 0; f < differs.size(); ++f) {
      sealed_[f] = differs[f] == nullptr && out_.files[f].bytes.has_value();
      if (differs[f] == nullptr) continue;
      const std::string why = finding_text(*differs[f]);
      if (bad_[f].empty()) {
        bad_[f].push_back({.why = cat(why, ", though each checksum in it is right: another file")});
      } else {
        unsealed_.emplace(f, why);
      }
    }
  }

  // Returns why the bytes are not whole; nullptr if they are.
  const std::string* fault_at(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const {
    for (const Bad& bad : bad_[file]) {
      if (bad.begin < end && begin < bad.end) return &bad.why;
    }
    return nullptr;
  }

  std::string fault_of(const Location& at) const {
    const FileEntry& file = checkpoint_.index().files[at.file];
    if (!fits_in(at, file)) {
      return file.bytes ? cat(escape(file.name), " ends at byte ", *file.bytes, " of its bytes ",
                              at.offset, " to ", at.offset + at.length)
                        : escape(file.name) + " is missing";
    }
    const std::string* why =
        fault_at(at.file, at.offset, at.offset + std::max<std::uint64_t>(at.length, 1));
    return why == nullptr ? std::string() : *why;
  }

  void judge() {
    const Index& index = checkpoint_.index();
    out_.tensors.clear();
    out_.values.clear();
    for (const TensorEntry& tensor : index.tensors) out_.tensors.push_back(tensor_state(tensor));
    for (const ValueEntry& value : index.values) out_.values.push_back(value_state(value));
  }

  EntryState tensor_state(const TensorEntry& tensor) const {
    EntryState out{tensor.key};
    bool unchecked = false;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const BoxView box = tensor.chunks.box(c);
      if (volume(box) == 0) continue;
      const Location& at = tensor.chunks.location(c);
      std::string why = fault_of(at);
      try {
        const ChunkData data = why.empty() ? checkpoint_.chunk(tensor, c) : ChunkData{};
        if (why.empty() && !data.crc && !data.self_checked && !sealed_[at.file]) {
          unchecked = true;
          const auto differs = unsealed_.find(at.file);
          if (differs != unsealed_.end()) why = differs->second;
        }
      } catch (const Error& error) {
        if (is_no_answer(error.code())) throw;
        why = error.what();
      }
      if (why.empty()) continue;
      if (out.why.empty()) out.why = why;
      out.lost.push_back(
          {{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}});
    }
    if (out.why.empty()) out.why = everywhere_;
    const auto fault = by_key_.find(tensor.key);
    const bool hole = fault != by_key_.end() && fault->second->code == ErrorCode::kHole;
    if (fault != by_key_.end()) out.why = keyless_text(*fault->second);
    const bool misnamed = is_misnamed(tensor);
    if (misnamed && out.why.empty()) out.why = misnamed_text(tensor);
    if (out.why.empty()) {
      out.state = unchecked ? Wholeness::kUnchecked : Wholeness::kWhole;
    } else {
      const bool parts = (fault == by_key_.end() || hole) && !misnamed && everywhere_.empty() &&
                         out.lost.size() < tensor.chunks.size();
      out.state = parts ? Wholeness::kPartly : Wholeness::kLost;
    }
    return out;
  }

  // In folders of torch.distributed.checkpoint each value has bytes of its own.
  bool is_shared(const ValueEntry& value) const {
    if (checkpoint_.description().format != "dcp" || value.member || value.location.length == 0)
      return false;
    if (values_at_.empty()) {
      for (const ValueEntry& one : checkpoint_.index().values) {
        if (!one.member) ++values_at_[{one.location.file, one.location.offset}];
      }
    }
    return values_at_.at({value.location.file, value.location.offset}) > 1;
  }

  // Folders of torch.distributed.checkpoint name an entry twice, by its key and by its path.
  template <typename Entry>
  bool is_misnamed(const Entry& entry) const {
    return checkpoint_.description().format == "dcp" && joined(entry.path) != entry.key;
  }
  template <typename Entry>
  static std::string misnamed_text(const Entry& entry) {
    return cat("its place is ", quote(joined(entry.path), 200), ", which is another name");
  }

  EntryState value_state(const ValueEntry& value) const {
    EntryState out{value.key};
    const auto fault = by_key_.find(value.key);
    if (fault != by_key_.end()) out.why = keyless_text(*fault->second);
    if (out.why.empty() && value.location.length != 0) out.why = fault_of(value.location);
    if (out.why.empty() && value.location.length == 0) out.why = fault_inside(value);
    if (out.why.empty() && !value.member && is_misnamed(value)) out.why = misnamed_text(value);
    if (out.why.empty() && is_shared(value)) out.why = "its bytes are those of another value, too";
    if (out.why.empty()) out.why = everywhere_;
    if (!out.why.empty()) {
      out.state = Wholeness::kLost;
    } else if (!has_checksums(value.location.file)) {
      out.state = Wholeness::kUnchecked;
    }
    return out;
  }

  // Returns whether checksums cover the values in a file: those of archives, or a seal.
  bool has_checksums(std::uint32_t file) const {
    if (file >= sealed_.size()) return false;
    if (sealed_[file]) return true;
    const auto known = archives_.find(file);
    if (known != archives_.end()) return known->second;
    bool archive = false;
    try {
      archive = sniff_torch_stream(*file_at(folder() / places_[file])) == TorchStream::kZip;
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
    }
    return archives_[file] = archive;
  }

  fs::path folder() const {
    return kind_of_place(path_) == PlaceKind::kFolder ? path_ : folder_of_place(path_);
  }

  // Returns what is wrong with a value that has no place of its own: a name in it that may run
  // code, or a storage that is not whole.
  std::string fault_inside(const ValueEntry& value) const {
    std::string why;
    try {
      const Value read = checkpoint_.value(value);
      for (const std::string& name : unknown_globals_in(read)) {
        if (!options_.verify.allowed_globals.contains(name))
          return cat("global ", quote(name), " is not known to be plain data");
      }
      with_storages(read, [&](StorageRef& storage) {
        const ChunkData data = checkpoint_.storage(storage);
        for (std::uint32_t f = 0; f < bad_.size(); ++f) {
          const std::string* fault =
              fault_at(f, data.file_offset, data.file_offset + data.storage_bytes);
          if (fault != nullptr) why = *fault;
        }
      });
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      why = error.what();
    }
    return why;
  }

  // Notes the steps that files count, and with SalvageOptions::step takes files of others for lost.
  void note_steps() {
    std::unordered_set<std::string_view> usable;
    for (const auto* states : {&out_.tensors, &out_.values}) {
      for (const EntryState& state : *states) {
        if (state.usable()) usable.insert(state.key);
      }
    }
    const StepCounts counts =
        step_counts(checkpoint_, options_.verify.cancelled,
                    [&](const std::string& key) { return usable.contains(key); });
    for (const auto& [optimizer, files] : counts) {
      for (const auto& [file, steps] : files) {
        out_.files[file].steps.insert(steps);
        out_.mixed = out_.mixed || steps != files.begin()->second;
      }
    }
    for (std::size_t f = 0; f < places_.size(); ++f) {
      if (out_.files[f].bytes && !in_store(path_)) {
        if (const auto times = times_at(folder() / places_[f]))
          out_.files[f].modified_ns = times->modified_ns;
      }
    }
    if (options_.step) take_step(*options_.step);
    // A count ties files together, not the only file that has one.
    const auto counted = std::ranges::count_if(
        out_.files, [](const FileState& file) { return !file.steps.empty(); });
    for (std::size_t f = 0; f < out_.files.size(); ++f) {
      out_.files[f].tied = sealed_[f] || out_.files.size() == 1 ||
                           (!out_.mixed && counted > 1 && !out_.files[f].steps.empty());
    }
  }

  void take_step(std::int64_t step) {
    const auto counts = [&](const FileState& file) {
      return file.steps == std::set<std::int64_t>{step};
    };
    if (std::ranges::none_of(out_.files, counts)) {
      std::set<std::int64_t> steps;
      for (const FileState& file : out_.files) steps.insert(file.steps.begin(), file.steps.end());
      std::string found;
      for (const std::int64_t one : steps) found += cat(found.empty() ? " " : ", ", one);
      throw Error(ErrorCode::kNotFound, cat(escape(path_.native()), ": no file counts step ", step,
                                            "; they count", found.empty() ? " none" : found));
    }
    for (std::size_t f = 0; f < out_.files.size(); ++f) {
      const FileState& file = out_.files[f];
      if (!file.bytes || counts(file) || (file.steps.empty() && is_near(file, counts))) continue;
      std::string why =
          cat(escape(file.name), " counts no step, and its time is not that of step ", step);
      if (!file.steps.empty())
        why = cat(escape(file.name), " counts step ", *file.steps.begin(), ", not ", step);
      bad_[f].push_back({.why = std::move(why)});
    }
    judge();
  }

  // Returns whether the file was written when those were that `counts` accepts, and no other file
  // with a step count was.
  template <typename Counts>
  bool is_near(const FileState& file, const Counts& counts) const {
    const auto near = [&](bool wanted) {
      return std::ranges::any_of(out_.files, [&](const FileState& other) {
        const std::int64_t apart = other.modified_ns - file.modified_ns;
        return !other.steps.empty() && counts(other) == wanted && other.modified_ns != 0 &&
               apart <= kTimeSlack && apart >= -kTimeSlack;
      });
    };
    return file.modified_ns != 0 && near(true) && !near(false);
  }

  // Lists keys that only findings name, and notes files of which not even that is known.
  void note_gone() {
    const Index& index = checkpoint_.index();
    std::unordered_set<std::string_view> known;
    std::vector<bool> holds(index.files.size(), false);
    for (const TensorEntry& tensor : index.tensors) {
      known.insert(tensor.key);
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
        holds[tensor.chunks.location(c).file] = true;
    }
    for (const ValueEntry& value : index.values) {
      known.insert(value.key);
      if (value.location.file < holds.size()) holds[value.location.file] = true;
    }
    // An item that was left out is the top of keys.
    const auto has_below = [&](const std::string& key) {
      return std::ranges::any_of(known,
                                 [&](std::string_view one) { return one.starts_with(key + "."); });
    };
    for (const auto* findings : {&by_key_, &left_out_}) {
      for (const auto& [key, finding] : *findings) {
        if (!known.contains(key) && !has_below(key))
          out_.gone.push_back({key, Wholeness::kLost, {}, keyless_text(*finding)});
      }
    }
    for (std::size_t f = 0; f < holds.size(); ++f) {
      if (!holds[f] && !bad_[f].empty() && out_.gone.empty()) out_.names_known = false;
    }
  }

  // Notes the checkpoints in the folder that were not read, and cannot be.
  void note_unread() {
    if (kind_of_place(path_) == PlaceKind::kFolder) {
      for (const std::string& name : unread_checkpoints(path_, places_)) {
        try {
          (void)open_checkpoint(path_ / name, {options_.verify.allowed_globals});
        } catch (const Error& error) {
          if (is_no_answer(error.code())) throw;
          out_.unread.try_emplace(name, error.what());
        }
      }
    }
    if (!out_.unread.empty()) out_.names_known = false;
  }

  const fs::path& path_;
  const SalvageOptions& options_;
  const StoredCheckpoint& checkpoint_;
  Salvaged out_;
  std::optional<VerifyReport> report_;
  FileCrcs crcs_;
  std::unordered_map<std::string, std::size_t> numbers_;  // of files
  std::vector<std::string> places_;                       // of the files, relative to the path
  std::vector<std::vector<Bad>> bad_;                     // of each file
  std::vector<bool> sealed_;                              // the file is as it was sealed
  std::map<std::size_t, std::string> unsealed_;           // files that differ, and are damaged
  mutable std::map<std::uint32_t, bool> archives_;        // see has_checksums
  mutable std::map<std::pair<std::uint32_t, std::uint64_t>, int> values_at_;  // by their places
  std::map<std::string, const Finding*> by_key_;    // findings without a place in a file
  std::map<std::string, const Finding*> left_out_;  // warnings about keys
  std::set<std::string> unlike_;                    // keys of which copies differ
  std::string everywhere_;                          // damage that touches every key; empty
};

// Looks for tensors that are lost in files with damage in those of other ranks.
void take_replicas(const fs::path& path, const SalvageOptions& options, const Judge& judge,
                   Salvaged& out) {
  std::vector<std::string> files = judge.damaged_files();
  if (kind_of_place(path) != PlaceKind::kFolder || files.empty()) return;
  for (const auto& [name, why] : out.unread) files.push_back(name);
  std::unordered_map<std::string_view, EntryState*> lost;
  for (EntryState& state : out.tensors) {
    if (!state.usable() && !judge.differs(state.key)) lost.emplace(state.key, &state);
  }
  std::unique_ptr<StoredCheckpoint> rest;
  try {
    if (!lost.empty()) rest = open_without(path, files, options);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
  }
  if (!rest) return;
  // Everything is read again only if other files hold something.
  std::set<std::string> there;
  const Index& first = out.checkpoint->index();
  const Index& index = rest->index();
  std::unordered_map<std::string_view, const TensorEntry*> was;
  for (const TensorEntry& tensor : first.tensors) was.emplace(tensor.key, &tensor);
  for (const TensorEntry& tensor : index.tensors) {
    const auto before = was.find(tensor.key);
    Findings holes;
    check_coverage(tensor, holes);
    // Copies of integers are not compared when a folder is opened: each rank may have its own.
    bool whole = lost.contains(tensor.key) && holes.empty() && is_differentiable(tensor.dtype) &&
                 before->second->dtype == tensor.dtype && before->second->shape == tensor.shape;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      whole = whole && index.files[tensor.chunks.location(c).file].bytes.has_value();
    if (whole) there.insert(tensor.key);
  }
  if (there.empty()) return;
  SalvageOptions plain = options;
  plain.step.reset();
  Salvaged second = Judge(path, {std::move(rest), std::nullopt, {}}, plain).run();
  for (const EntryState& state : second.tensors) {
    if (!state.usable() || !there.contains(state.key)) continue;
    EntryState& own = *lost.at(state.key);
    own.state = state.state;
    own.lost.clear();
    out.replicated.insert(state.key);
  }
  if (!out.replicated.empty()) out.replicas = std::move(second.checkpoint);
}

}  // namespace

Salvaged salvage(const fs::path& path, const SalvageOptions& options) {
  Judge judge(path, open_around(path, options), options);
  Salvaged out = judge.run();
  take_replicas(path, options, judge, out);
  return out;
}

}  // namespace fsdp::formats
