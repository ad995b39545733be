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
};

// Reads every pickle of a file or folder: .metadata, the archives inside data files, torch.save
// files, bare pickles; folders inside it too.  Nothing is built from them, so nothing is refused.
// A path without any, or that is not there, gives an empty result.  Throws: kIo, kInterrupted.
GlobalScan scan_globals(const std::filesystem::path& path, const GlobalScanOptions& options);

}  // namespace fsdp::formats
