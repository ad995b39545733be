// SPDX-License-Identifier: Apache-2.0
// Finds every pickle in a run of bytes, of any kind: an archive, consecutive archives, a legacy
// torch.save file, bare pickles.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/containers/names/name_scan.h"
#include "formats/state/checkpoint/spill.h"

namespace fsdp::formats {

// Receives the results.  Places are texts for users: a record of an archive, a byte of a file.
struct PickleSearchSink {
  // Called for a pickle that was scanned, or for several that belong together.  If a pickle ends in
  // an error, the scanner holds the part that Python would have run.
  std::function<void(const NameScanner&, const std::string& place)> found;
  // Called for data that could not be examined: names may be missing.
  std::function<void(const Error&, const std::string& place)> unread;
};

// What the bytes are expected to be.
enum class PickleSearch {
  kFile,    // anything that is not a pickle is ignored
  kPickle,  // the bytes must be a pickle: a `.metadata`
  kData,    // the bytes must be consecutive archives, or pickles: a data file
  kRest,    // as kData, among other bytes: those outside of items
};

struct PickleSearchOptions {
  std::set<std::string> allowed;  // "module.name"
  PickleSearch search = PickleSearch::kFile;
  // Also examine the storages of a torch.save archive.  No loader treats them as pickles, but they
  // may hold some: trainers keep states as tensors of bytes.
  bool storages = true;
};

// Examines every record of an archive that is named like a pickle or reads as one. Bytes that
// Python would read as several pickles are read to their end.  Compressed files, tars and object
// arrays of NumPy are reported as unread. Throws: kIo, whatever the sink throws.
void search_pickles(const std::shared_ptr<const ByteSource>& source,
                    const PickleSearchOptions& options, const PickleSearchSink& sink);

}  // namespace fsdp::formats
