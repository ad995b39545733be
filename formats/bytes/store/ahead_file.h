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

// What is known of the connection to a server, or to one of its buckets.
struct Link {
  Pace pace;
  std::uint64_t running_bytes = 0;  // requested by threads now
};

// A file and its blocks that are on the way or at hand.  ReadAhead's lock guards the members after
// `file`.
struct AheadFile {
  // A range of the file that is read by one request.
  struct Block {
    enum class State { kWaiting, kReading, kReady, kFailed, kGone };
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t order = 0;  // its place in the order of the hints, in bytes
    State state = State::kWaiting;
    bool kept = false;        // may be read more than once
    bool spent = false;       // read to its end
    std::uint64_t used = 0;   // bytes that were read, and those that are not wanted
    std::uint64_t reach = 0;  // end of the bytes that were read
    std::pair<std::uint64_t, std::uint64_t> key;  // its key in a shelf: the time of its last use
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

  Link* link = nullptr;                                    // the connection to its store
  std::map<std::uint64_t, std::shared_ptr<Block>> blocks;  // by begin; they do not overlap
  std::uint64_t next = 0;                                  // the byte after the last read
  std::uint64_t window = 0;      // bytes to read ahead of sequential reads
  std::uint64_t window_end = 0;  // end of the range that was read ahead
  bool closed = false;
};

}  // namespace fsdp::formats
