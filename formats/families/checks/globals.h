// SPDX-License-Identifier: Apache-2.0
// The names that the pickles of a checkpoint refer to, disallowed ones included: those that a
// loader that runs pickles would import.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "formats/state/model/finding.h"

namespace fsdp::formats {

struct GlobalUse {
  // kUnknown: outside the exact list (plain_names.h), or used otherwise than the list allows.
  enum class Status { kUnknown, kAllowed, kKnown };  // kAllowed: by the caller
  std::string module;
  std::string name;
  Status status = Status::kUnknown;  // kUnknown if it is unknown in any pickle
  std::uint64_t pickles = 0;         // pickles that refer to it
  std::string file;                  // the first of them, relative to the checkpoint
  std::string where;                 // key or record there
};

struct GlobalScan {
  std::vector<GlobalUse> globals;  // the unknown ones first, then by name
  std::uint64_t pickles = 0;       // pickles that were read
  Findings findings;               // pickles that could not be read to their end, and why
};

struct GlobalScanOptions {
  std::set<std::string> allowed;                         // "module.name"
  std::function<bool(const std::string&)> selects = {};  // keys of items to look into; empty: all
  std::function<bool()> cancelled;
  bool storages = true;  // storages that read as pickles count (see PickleSearchOptions)
  // Makes findings of bytes of data files that belong to no item and cannot be parsed.
  bool unread_rest = true;
};

// Scans every pickle of a file or folder, and of folders inside it, as bytes: .metadata, archives
// inside data files, bytes of data files that no item covers, data files that no metadata names,
// torch.save files, every record of an archive that reads as a pickle, bare pickles, also several
// in a row, and the pickles that fsdp-ckpt keeps in HDF5 files.  Builds no objects, so it refuses
// nothing.  Whatever cannot be examined is a finding: without findings, the list of names is
// complete.  A path without any pickle, or one that does not exist, gives an empty result.
// Throws: kIo, kInterrupted.
GlobalScan scan_globals(const std::filesystem::path& path, const GlobalScanOptions& options);

// The last check of an output before it is committed: the names in its pickles.

// Scans every pickle of the finished `output` as bytes on the disk, as `inspect --globals` does
// (globals.h): whatever the writer did, the output cannot run code.  Storages count as data,
// whatever they hold.  `shown` is for messages.
// Throws: kGlobal naming file and name if a name is outside the exact list (plain_names.h) and not
// in `allowed`; the error of the first thing that could not be examined; kInterrupted.
void check_output_names(const std::filesystem::path& output, const std::string& shown,
                        const std::set<std::string>& allowed,
                        const std::function<bool()>& cancelled);

}  // namespace fsdp::formats
