// SPDX-License-Identifier: Apache-2.0
// Opens a damaged checkpoint as far as possible, and tells what of it is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {

enum class Wholeness {
  kWhole,      // every byte is there and matches a checksum
  kUnchecked,  // every byte is there; no checksum tells whether it is right
  kPartly,     // some chunks of a tensor are whole
  kLost,
};

// What is left of a tensor or a value.
struct EntryState {
  std::string key;
  Wholeness state = Wholeness::kWhole;
  std::vector<Box> lost = {};  // the chunks of a tensor that are not whole
  std::string why = {};        // the first damage; empty: none

  bool usable() const { return state <= Wholeness::kUnchecked; }
};

// A file of the checkpoint, and what tells of which save it is.
struct FileState {
  std::string name;
  std::optional<std::uint64_t> bytes;  // nothing: missing
  std::int64_t modified_ns = 0;        // since the epoch; 0: unknown
  std::set<std::int64_t> steps = {};   // the largest step count of each optimizer's states in it
  bool tied = false;                   // a seal or a step count ties it to the other files
};

struct Salvaged {
  // Its findings are removed.  The index is not narrowed.
  std::unique_ptr<StoredCheckpoint> checkpoint;
  std::vector<EntryState> tensors;  // of Index::tensors
  std::vector<EntryState> values;   // of Index::values
  std::vector<EntryState> gone;     // keys that the index lacks: nothing of them is there
  // Files and folders that could not be opened, relative, and why; what they held is not in the
  // index unless other files tell.
  std::map<std::string, std::string> unread;
  // Of tensors whose copy in a damaged file is lost: the checkpoint without that file, in which
  // another rank's copy is whole, and their keys.  Null: none.
  std::unique_ptr<StoredCheckpoint> replicas;
  std::set<std::string> replicated;
  std::vector<FileState> files;  // of Index::files
  std::string metadata;  // the file that was read in place of the folder's own `.metadata`; empty
  bool names_known = true;  // whether the keys that lost files held are known
  bool mixed = false;       // files count different steps of one optimizer
};

struct SalvageOptions {
  VerifyOptions verify = {};
  // Folders whose `.metadata` may stand for a lost one, tried first.  The steps beside the folder
  // are tried after them.
  std::vector<std::filesystem::path> siblings = {};
  // Of a folder whose files count different steps: only files of this one are whole.
  std::optional<std::int64_t> step = {};
};

// Note [whole]
// A chunk is whole if its bytes are all there and no finding of `verify` (of damage, unsafe or
// unknown) touches them: its archive is sound, its checksums match, its dtype and shape are those
// of the index, and no other item shares its bytes.  A tensor is whole if its chunks are, tile it,
// and its name agrees with its path; no checksum covers names.  A file that differs from its seal
// although every checksum in it is right is another file: nothing in it is whole.
//
// Note [metadata made again]
// If `.metadata` of a folder of torch.distributed.checkpoint is missing, damaged, or not the sealed
// one, the items do not tell their names.  `.metadata.tmp` of an interrupted save has them, or
// those of another step of the run.  Metadata fit if every data file is named in them and ends
// where its last item ends, and every item is an archive of the type, dtype and shape that they
// say.  Only missing files and wrong bytes of payloads do not count.
//
// Note [files left out]
// A folder that cannot be opened for a file that cannot is opened as if that file were lost.  In
// the same way it is opened a second time without the files that have damage, for tensors that are
// whole in the file of another rank; not for tensors whose copies differ, and not for values and
// integers, which each rank may have of its own.

// Throws: what open_checkpoint throws, if nothing can be opened around the damage, with what was
// tried; kNotFound if no file counts `step`; kInterrupted, kIo.
Salvaged salvage(const std::filesystem::path& path, const SalvageOptions& options);

}  // namespace fsdp::formats
