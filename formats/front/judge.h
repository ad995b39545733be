// SPDX-License-Identifier: Apache-2.0
// Tells what of an opened checkpoint is whole, by the findings of `verify`, its seal and its steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/families/checks/seal_check.h"
#include "formats/front/open_around.h"
#include "formats/front/salvage.h"

namespace fsdp::formats {

// Judges once: `run` gives its result away.  The path and the options have to live as long.
class Judge {
 public:
  Judge(const std::filesystem::path& path, OpenedAround opened, const SalvageOptions& options);
  Salvaged run();
  // Returns the files that have damage, relative to the path.
  std::vector<std::string> damaged_files() const;
  // Returns whether the copies of a tensor in several files are not known to be the same.
  bool differs(const std::string& key) const { return unlike_.contains(key); }

 private:
  // A part of a file that is not whole.
  struct Bad {
    std::uint64_t begin = 0;
    std::uint64_t end = UINT64_MAX;
    std::string why;
  };

  void note_findings();
  // A file that is lost, of which no key is known; or damage of everything.
  void note_unplaced(const Finding& finding);
  // Returns the number of the file that a seal of the place names; nothing if it is another's.
  std::optional<std::size_t> file_of_seal(const SealPlace& place, std::string name) const;
  void note_seal();
  // Returns why the bytes are not whole; nullptr if they are.
  const std::string* fault_at(std::uint32_t file, std::uint64_t begin, std::uint64_t end) const;
  std::string fault_of(const Location& at) const;
  void judge();
  EntryState tensor_state(const TensorEntry& tensor) const;
  // Folders of torch.distributed.checkpoint name an entry twice, by its key and by its path.
  bool is_misnamed(const std::string& key, const KeyPath& path) const;
  EntryState value_state(const ValueEntry& value) const;
  // Returns whether checksums cover the values in a file: those of archives, or a seal.
  bool has_checksums(std::uint32_t file) const;
  std::filesystem::path folder() const;
  // Returns what is wrong with a value that has no place of its own: a name in it that may run
  // code, or a storage that is not whole.
  std::string fault_inside(const ValueEntry& value) const;
  // Notes the steps that files count, and with SalvageOptions::step takes files of others for lost.
  void note_steps();
  void take_step(std::int64_t step);
  // Returns whether the file was written when those were that `counts` accepts, and no other file
  // with a step count was.
  bool is_near(const FileState& file, const std::function<bool(const FileState&)>& counts) const;
  // Lists keys that only findings name, and notes files of which not even that is known.
  void note_gone();
  // Notes the checkpoints in the folder that were not read, and cannot be.
  void note_unread();

  const std::filesystem::path& path_;
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
  std::map<std::string, const Finding*> by_key_;          // findings without a place in a file
  std::map<std::string, const Finding*> left_out_;        // warnings about keys
  std::set<std::string> unlike_;                          // keys of which copies differ
  std::string everywhere_;  // damage that touches every key; empty: none
};

}  // namespace fsdp::formats
