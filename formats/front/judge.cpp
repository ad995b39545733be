// SPDX-License-Identifier: Apache-2.0
#include "formats/front/judge.h"

#include <algorithm>
#include <unordered_set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file_times.h"
#include "formats/bytes/store/place.h"
#include "formats/containers/names/unsafe_names.h"
#include "formats/families/checks/step_counts.h"
#include "formats/families/runs/steps.h"
#include "formats/families/torch/stream.h"
#include "formats/front/open.h"
#include "formats/state/content/storage_map.h"
#include "formats/state/model/check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using Severity = Finding::Severity;

// Files of one save may be written this long after each other's times.
constexpr std::int64_t kTimeSlack = 2'000'000'000;

bool fits_in(const Location& location, const FileEntry& file) {
  return file.bytes && location.offset <= *file.bytes &&
         location.length <= *file.bytes - location.offset;
}

// Returns a finding's text without its key, which the caller names.
std::string keyless_text(Finding finding) {
  finding.key.clear();
  return finding_text(finding);
}

std::string misnamed_text(const KeyPath& path) {
  return cat("its place is ", quote(joined(path), 200), ", which is another name");
}

}  // namespace

Judge::Judge(const fs::path& path, OpenedAround opened, const SalvageOptions& options)
    : path_(path), options_(options), checkpoint_(*opened.checkpoint) {
  out_.checkpoint = std::move(opened.checkpoint);
  out_.metadata = std::move(opened.metadata);
  out_.unread = std::move(opened.unread);
  report_ = std::move(opened.report);
}

Salvaged Judge::run() {
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

std::vector<std::string> Judge::damaged_files() const {
  std::vector<std::string> names;
  for (std::size_t f = 0; f < bad_.size(); ++f) {
    if (!bad_[f].empty()) names.push_back(places_[f]);
  }
  return names;
}

void Judge::note_findings() {
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

void Judge::note_unplaced(const Finding& finding) {
  out_.names_known = false;
  const bool lacks_a_part = checkpoint_.description().format == "step";
  if (finding.file.empty() && !lacks_a_part && everywhere_.empty())
    everywhere_ = finding_text(finding);
}

std::optional<std::size_t> Judge::file_of_seal(const SealPlace& place, std::string name) const {
  if (place.single && numbers_.size() == 1) return 0;
  if (place.only.ends_with('/') && name.starts_with(place.only)) name.erase(0, place.only.size());
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

void Judge::note_seal() {
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

const std::string* Judge::fault_at(std::uint32_t file, std::uint64_t begin,
                                   std::uint64_t end) const {
  for (const Bad& bad : bad_[file]) {
    if (bad.begin < end && begin < bad.end) return &bad.why;
  }
  return nullptr;
}

std::string Judge::fault_of(const Location& at) const {
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

void Judge::judge() {
  const Index& index = checkpoint_.index();
  out_.tensors.clear();
  out_.values.clear();
  for (const TensorEntry& tensor : index.tensors) out_.tensors.push_back(tensor_state(tensor));
  for (const ValueEntry& value : index.values) out_.values.push_back(value_state(value));
}

EntryState Judge::tensor_state(const TensorEntry& tensor) const {
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
  const bool misnamed = is_misnamed(tensor.key, tensor.path);
  if (misnamed && out.why.empty()) out.why = misnamed_text(tensor.path);
  if (out.why.empty()) {
    out.state = unchecked ? Wholeness::kUnchecked : Wholeness::kWhole;
  } else {
    const bool parts = (fault == by_key_.end() || hole) && !misnamed && everywhere_.empty() &&
                       out.lost.size() < tensor.chunks.size();
    out.state = parts ? Wholeness::kPartly : Wholeness::kLost;
  }
  return out;
}

bool Judge::is_misnamed(const std::string& key, const KeyPath& path) const {
  return checkpoint_.description().format == "dcp" && joined(path) != key;
}

EntryState Judge::value_state(const ValueEntry& value) const {
  EntryState out{value.key};
  const auto fault = by_key_.find(value.key);
  if (fault != by_key_.end()) out.why = keyless_text(*fault->second);
  if (out.why.empty() && value.location.length != 0) out.why = fault_of(value.location);
  if (out.why.empty() && value.location.length == 0) out.why = fault_inside(value);
  if (out.why.empty() && !value.member && is_misnamed(value.key, value.path))
    out.why = misnamed_text(value.path);
  if (out.why.empty()) out.why = everywhere_;
  if (!out.why.empty()) {
    out.state = Wholeness::kLost;
  } else if (!has_checksums(value.location.file)) {
    out.state = Wholeness::kUnchecked;
  }
  return out;
}

bool Judge::has_checksums(std::uint32_t file) const {
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

fs::path Judge::folder() const {
  return kind_of_place(path_) == PlaceKind::kFolder ? path_ : folder_of_place(path_);
}

std::string Judge::fault_inside(const ValueEntry& value) const {
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

void Judge::note_steps() {
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
  const auto counted =
      std::ranges::count_if(out_.files, [](const FileState& file) { return !file.steps.empty(); });
  for (std::size_t f = 0; f < out_.files.size(); ++f) {
    out_.files[f].tied = sealed_[f] || out_.files.size() == 1 ||
                         (!out_.mixed && counted > 1 && !out_.files[f].steps.empty());
  }
}

void Judge::take_step(std::int64_t step) {
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

bool Judge::is_near(const FileState& file,
                    const std::function<bool(const FileState&)>& counts) const {
  const auto near = [&](bool wanted) {
    return std::ranges::any_of(out_.files, [&](const FileState& other) {
      const std::int64_t apart = other.modified_ns - file.modified_ns;
      return !other.steps.empty() && counts(other) == wanted && other.modified_ns != 0 &&
             apart <= kTimeSlack && apart >= -kTimeSlack;
    });
  };
  return file.modified_ns != 0 && near(true) && !near(false);
}

void Judge::note_gone() {
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

void Judge::note_unread() {
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

}  // namespace fsdp::formats
