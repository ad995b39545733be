// SPDX-License-Identifier: Apache-2.0
// One file that is written at any offsets and sent to a store in parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "formats/bytes/store/store.h"
#include "formats/bytes/upload/byte_runs.h"
#include "formats/bytes/upload/sender_pool.h"

namespace fsdp::formats {

// Note [parts of an upload]
// The writer puts its bytes into a file of the spool and reports their ranges.  A thread of the
// pool sends each part as soon as all of it is written, in any order, and then gives its bytes back
// to the file system.  So memory depends neither on the order of the bytes nor on the length of a
// part (500 MB in a file of 5 TB).  The space of the spool depends on both: it holds the parts that
// have gaps, and those that wait for a thread, whose number the pool bounds.
//
// Thread-safe: `wrote`.
class PartUpload {
 public:
  // A file whose length is not known before it is complete is sent by one request if it has at most
  // this many bytes.
  static constexpr std::uint64_t kMostPutBytes = 8U << 20U;

  // `spool`: the file that holds the bytes.  Lifetime: store and pool outlive the object, and the
  // pool is stopped before the object is destroyed.
  PartUpload(Store& store, std::string url, std::filesystem::path spool, SenderPool& senders);

  // Sets the length, so that parts may be sent.  Must be called at most once, before `finish`.
  // Throws: what SenderPool::submit throws.
  void begin(std::uint64_t bytes);
  // Reports bytes that are in the spool.  `kept`: they stay there after they are sent.
  // Throws: kIo (some of them were written before); what SenderPool::submit throws.
  void wrote(std::uint64_t offset, std::uint64_t bytes, bool kept);
  // Ends writing; unwritten ranges are zeros.  Parts may still be under way: see SenderPool::wait.
  void finish(std::uint64_t bytes);
  // Makes the file appear in the store.  Requires: all parts were sent.  Throws: what
  // StoreUpload::complete and Store::put throw.
  void complete(bool only_new);
  // Takes back what was sent.  Requires: no other call, the pool is stopped.
  void take_back() noexcept;

  const std::string& url() const { return url_; }

 private:
  using Parts = std::vector<std::uint32_t>;

  void create();
  void add_whole(ByteRuns::Run run, ByteRuns::Run within, Parts& parts);
  void send(std::uint32_t part);
  void give_back(int fd, std::uint64_t begin, std::uint64_t end);

  Store& store_;
  const std::string url_;
  const std::filesystem::path spool_;
  SenderPool& senders_;
  std::mutex mutex_;  // guards all below
  std::uint64_t bytes_ = 0;
  bool begun_ = false;
  ByteRuns written_;
  ByteRuns kept_;
  std::unique_ptr<StoreUpload> upload_;
  std::uint64_t part_bytes_ = 0;
  std::vector<bool> taken_;  // per part: a thread sends it
};

}  // namespace fsdp::formats
