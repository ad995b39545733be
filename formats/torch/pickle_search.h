// SPDX-License-Identifier: Apache-2.0
// Finds every pickle in a run of bytes, whatever it is: an archive, archives one behind the other,
// a legacy torch.save file, bare pickles.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "formats/base/byte_source.h"
#include "formats/base/error.h"
#include "formats/checkpoint/spill.h"
#include "formats/names/name_scan.h"

namespace fsdp::formats {

// What is found.  Places are texts for people: a record of an archive, a byte of a file.
struct PickleSearchSink {
  // A pickle was scanned, or several that belong together; of one that ends in an error, what
  // Python would have run of it.
  std::function<void(const NameScanner&, const std::string& place)> found;
  // What could not be looked into, so that names may be missing.
  std::function<void(const Error&, const std::string& place)> unread;
};

// How bytes are looked at.
enum class PickleSearch {
  kFile,    // whatever is no pickle is no concern of ours
  kPickle,  // it must be one: a `.metadata`
  kData,    // it must be archives, one behind the other, or pickles: a data file
  kRest,    // the same among other bytes: those of no item
};

struct PickleSearchOptions {
  std::set<std::string> allowed;  // "module.name"
  PickleSearch search = PickleSearch::kFile;
  // Whether the storages of a torch.save archive are looked at too.  No loader takes them for
  // pickles, but what they hold may be some: trainers keep states as tensors of bytes.
  bool storages = true;
};

// Each archive is looked into as a whole: every record that is named like a pickle or reads as one.
// Bytes that Python would read as several pickles are read to their end.  Compressed files, tars
// and object arrays of NumPy are reported as unread. Throws: kIo, whatever the sink throws.
void search_pickles(const std::shared_ptr<const ByteSource>& source,
                    const PickleSearchOptions& options, const PickleSearchSink& sink);

}  // namespace fsdp::formats
