// SPDX-License-Identifier: Apache-2.0
// A file of a store while it is read, and its parts that were requested or are worth requesting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "formats/bytes/store/pace.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// What is known of a server, or of a bucket of one.
struct Link {
  Pace pace;
  std::uint64_t running_bytes = 0;  // that threads request at the moment
};

// A file that is read, and its parts that are on the way or at hand.  ReadAhead's lock guards what
// stands below `file`.
struct AheadFile {
  // A range of the file that is read by one request.
  struct Block {
    enum class State { kWaiting, kReading, kReady, kFailed, kGone };
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t order = 0;  // its place in the order of the hints, in bytes
    State state = State::kWaiting;
    bool kept = false;        // read more than once
    bool spent = false;       // read to its end
    std::uint64_t used = 0;   // bytes that were read from it, and those that nobody wants
    std::uint64_t reach = 0;  // the end of what was read from it
    std::pair<std::uint64_t, std::uint64_t> key;  // among those at hand: when it was used last
    std::shared_ptr<std::byte[]> bytes;
    std::uint64_t capacity = 0;  // of `bytes`
    std::exception_ptr failure;
    std::uint64_t size() const { return end - begin; }
  };

  AheadFile(const Store& from, std::string place, StoredFile what)
      : store(from), url(std::move(place)), file(std::move(what)) {}
  const Store& store;
  const std::string url;
  const StoredFile file;

  Link* link = nullptr;                                    // what it is read over
  std::map<std::uint64_t, std::shared_ptr<Block>> blocks;  // by begin; they do not overlap
  std::uint64_t next = 0;                                  // the byte behind the last read
  std::uint64_t window = 0;      // how far reads that follow each other are read ahead of
  std::uint64_t window_end = 0;  // how far they were so far
  bool closed = false;
};

}  // namespace fsdp::formats
