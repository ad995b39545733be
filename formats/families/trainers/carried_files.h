// SPDX-License-Identifier: Apache-2.0
// The files of a trainer's folder beside its model and optimizer: schedulers, random states,
// configurations, the tokenizer.  They go along when the folder is laid out for other ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/files/listing.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

// The folder whose files go along.
struct Beside {
  std::filesystem::path folder;
  std::set<std::string> allowed_globals;  // in pickles, beyond the known ones, "module.name"
};

struct CarriedFile {
  std::string name;    // relative to the output
  std::string source;  // relative to the folder; it is opened again to be copied
  std::uint64_t bytes = 0;
  std::pair<std::uint64_t, std::uint64_t> identity = {};  // see File::identity
  std::optional<std::string> text = {};                   // written instead of its bytes
};

struct CarriedFiles {
  std::shared_ptr<const Folder> folder;
  std::vector<CarriedFile> files;
  std::vector<FileNote> notes;
  std::set<std::string> seen;  // the names of the folder that were decided about

  // Adds the files and the notes to the plan.
  void plan(OutputPlan& plan) const;
  // Throws: kChanged if a file is another one than it was; what copying throws.
  void write(AtomicFolder& output, bool sync) const;
};

struct CarryOptions {
  std::int64_t from_ranks = 1;
  std::int64_t to_ranks = 1;
  std::set<std::string> allowed_globals = {};
  std::set<std::string> programs = {};  // code that goes along: the producer puts it there
  // Returns whether a file or folder directly in the folder is to go along; those of the model and
  // the optimizer are written anew.
  std::function<bool(const std::string& name)> wanted;
};

// Returns the files of a folder and its subfolders that go along, as docs/formats/ says: files for
// all ranks as they are, those of single ranks under the names that the ranks of the new job look
// for.  Code, pickles with unknown names, and files that no checkpoint has are left out, and
// noted.
// Throws: kMismatch if ranks or files contradict each other; kShardMissing, kGlobal if a
// file that every rank needs is missing or has an unknown name; what opening and reading files
// throw.
CarriedFiles carried_files(const Listing& folder, const CarryOptions& options);

// Returns whether `name` is that of the file of rank 0 of `ranks`, of a kind that goes along.
bool is_carried_of_rank_0(std::string_view name, std::int64_t ranks);

// Returns whether a folder of such an output that is replaced may have a file of this name.
bool is_carried_name(std::string_view name);

}  // namespace fsdp::formats
