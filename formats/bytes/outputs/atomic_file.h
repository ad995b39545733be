// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all (see options.h).
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/base/interface.h"
#include "formats/bytes/outputs/file.h"
#include "formats/bytes/outputs/options.h"

namespace fsdp::formats {

// A single file that appears at `destination` by `commit`; if destroyed before, it leaves nothing.
//
// The temporary is ".<name>.fsdp-tmp" in the destination's folder, locked (flock) while it is
// written: a second writer of the same destination gets kBusy, and the leftover of a killed run is
// removed.  If the file system has no locks, a temporary that exists already is kBusy, because it
// cannot be told whether its writer is alive.  Permissions follow the umask.
//
// A destination that is a URL lies in a store: see Note [outputs in a store].  There are no locks:
// of two writers of one destination the second to commit gets kExists, or replaces the first.
//
// A seal of the previous file (sidecar_name) is removed before the new file appears, and the new
// seal is written after: whenever the process ends, there is never a seal beside a file that it was
// not made for.
class AtomicFile : public Interface {
 public:
  virtual OutputFile& file() = 0;
  // Finishes the file, renames it into place (unless another one appeared meanwhile and `replace`
  // is not set), and fsyncs the folder.
  // Throws: kExists, kIo, kNoSpace.  The destination is then as before, without its seal, unless
  // the message says that the new one is in place: then only a step after the rename failed.
  virtual void commit() = 0;
};

// Begins a file at `destination`, a path or a URL.
// Throws: kUsage (a destination that does not name a file: empty, "." or with a slash at the end),
// kExists, kBusy, kNotFound (no such folder, and no `make_folders`), kNotRegular (destination is a
// folder, link or device), kIo, kNoSpace; kUnsupported for a URL that no store serves; what Store
// throws.
std::unique_ptr<AtomicFile> new_file(const std::filesystem::path& destination,
                                     const OutputOptions& options);

}  // namespace fsdp::formats
