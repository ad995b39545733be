// SPDX-License-Identifier: Apache-2.0
// Writes files to S3: by one request, or in parts.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "formats/bytes/remote/lost_answers.h"
#include "formats/bytes/remote/s3_client.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Returns the size of the parts for a file of `bytes` bytes: a multiple of 1 MiB, at least 16 MiB,
// such that there are at most 10,000 parts.
std::uint64_t s3_part_bytes(std::uint64_t bytes);

// Writes a file by one request.  Throws: as Store::put.
void put_s3_file(S3Client& client, const std::string& url, std::span<const std::byte> bytes,
                 bool only_new);

// See Note [answers that are lost].
class S3Upload final : public StoreUpload {
 public:
  // Begins an upload.  Lifetime: `client` outlives it.
  S3Upload(S3Client& client, std::string url, std::uint64_t bytes);
  ~S3Upload() override;

  std::uint64_t part_bytes() const override { return part_bytes_; }
  void put(std::uint32_t number, std::span<const std::byte> bytes) override;
  void complete(bool only_new) override;

 private:
  void begin();
  HttpAnswer ask_to_complete(const std::string& body, bool only_new, int& tries);

  S3Client& client_;
  const std::string url_;
  const std::string shown_;
  const S3Place place_;
  const std::uint64_t bytes_;
  const std::uint64_t part_bytes_;
  const std::string mark_;
  LostBeginnings beginnings_;
  std::string id_;
  std::mutex mutex_;
  std::vector<std::string> etags_;  // of the parts that were sent
  std::atomic<bool> completed_{false};
};

}  // namespace fsdp::formats
