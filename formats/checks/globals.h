// SPDX-License-Identifier: Apache-2.0
// The names that the pickles of a checkpoint refer to, disallowed ones included: what a loader that
// runs pickles would import.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "formats/model/finding.h"

namespace fsdp::formats {

struct GlobalUse {
  // kUnknown: outside the exact list, or used otherwise than names in it are (plain_names.h).
  enum class Status { kUnknown, kAllowed, kKnown };  // kAllowed: by the caller
  std::string module;
  std::string name;
  Status status = Status::kUnknown;  // kUnknown where it is so in any pickle
  std::uint64_t pickles = 0;         // that refer to it
  std::string file;                  // of the first of them, within the checkpoint
  std::string where;                 // key or record there
};

struct GlobalScan {
  std::vector<GlobalUse> globals;  // the unknown ones first, then by name
  std::uint64_t pickles = 0;       // that were read
  Findings findings;               // pickles that could not be read to their end, and why
};

struct GlobalScanOptions {
  std::set<std::string> allowed;                    // "module.name"
  std::function<bool(const std::string&)> selects;  // keys of items to look into; empty: all
  std::function<bool()> cancelled;
  bool storages = true;  // storages that read as pickles count (see PickleSearchOptions)
  // Bytes of data files that belong to no item, and cannot be read on, are findings.
  bool unread_rest = true;
};

// Scans every pickle of a file or folder as bytes: .metadata, the archives inside data files, bytes
// of data files that no item covers, data files that no metadata names, torch.save files, every
// record of an archive that reads as a pickle, bare pickles, several of them behind each other;
// what fsdp-ckpt keeps in HDF5 files; folders inside it too.  Nothing is built from them, so
// nothing is refused.  What cannot be looked into is a finding: without findings, the names are all
// there are.  A path without any pickle, or that is not there, gives an empty result. Throws: kIo,
// kInterrupted.
GlobalScan scan_globals(const std::filesystem::path& path, const GlobalScanOptions& options);

}  // namespace fsdp::formats
