// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/flight_record.h"

#include <cerrno>
#include <exception>
#include <fstream>
#include <system_error>
#include <utility>

#include <c10/util/Exception.h>

namespace fsdp::internal {

FlightRecord::FlightRecord(std::filesystem::path file, std::function<std::string()> content)
    : file_(std::move(file)), content_(std::move(content)) {}

void FlightRecord::write_by(const std::function<std::string()>& content) noexcept {
  if (written_.exchange(true)) return;
  try {
    const std::string bytes = content();
    std::ofstream out(file_, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) throw std::system_error(errno, std::generic_category());
    TORCH_WARN("the group failed: its last collectives are in ", file_.native());
  } catch (const std::exception& error) {
    try {
      TORCH_WARN(file_.native(),
                 ": the last collectives of the failed group cannot be written: ", error.what());
    } catch (const std::exception&) {
      // A handler of warnings may throw; the failure of the group is reported all the same.
    }
  }
}

std::filesystem::path flight_record_file(const std::string& prefix, int global_rank) {
  return prefix + std::to_string(global_rank);
}

}  // namespace fsdp::internal
