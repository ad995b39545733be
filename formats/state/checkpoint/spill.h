// SPDX-License-Identifier: Apache-2.0
// Makes compressed data readable by position: decompresses them once, into a file without a name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/files/local_file.h"
#include "formats/containers/zip/decompress.h"

namespace fsdp::formats {

// Thread-safe.
class Spill {
 public:
  struct Range {
    std::shared_ptr<const ByteSource> source;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  // Returns the bytes that `fill` writes into the sink.  `fill` runs at the first call for this
  // (file, offset); its output is kept.  Throws: the exceptions of `fill`; kIo, kNoSpace from the
  // temporary file.
  Range get(const std::string& file, std::uint64_t offset,
            const std::function<void(const ByteSink&)>& fill);

 private:
  std::mutex mutex_;
  std::shared_ptr<SpillFile> file_;
  std::map<std::pair<std::string, std::uint64_t>, std::pair<std::uint64_t, std::uint64_t>> known_;
};

}  // namespace fsdp::formats
