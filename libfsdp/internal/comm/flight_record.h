// SPDX-License-Identifier: Apache-2.0
// The last collectives of a process, which a backend keeps and a failed group writes to a file.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

namespace fsdp::internal {

// Thread-safe.
class FlightRecord {
 public:
  // `content` returns the bytes of the file.
  FlightRecord(std::filesystem::path file, std::function<std::string()> content);

  // Writes the file, at most once, and prints its path as a warning.  Never throws, because a
  // failed group has its own error to report: a failure to write is a warning.
  void write() noexcept { write_by(content_); }
  // As write(), with these bytes.
  void write(const std::string& content) noexcept {
    write_by([&] { return content; });
  }

  const std::filesystem::path& file() const noexcept { return file_; }

 private:
  void write_by(const std::function<std::string()>& content) noexcept;

  const std::filesystem::path file_;
  const std::function<std::string()> content_;
  std::atomic<bool> written_ = false;
};

// Returns the file of a rank: `prefix` and the rank, as PyTorch's tools expect them.
std::filesystem::path flight_record_file(const std::string& prefix, int global_rank);

}  // namespace fsdp::internal
