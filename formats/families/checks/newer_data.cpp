// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/newer_data.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/files/file_times.h"
#include "formats/bytes/store/place.h"
#include "formats/families/dcp/names.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSecond = 1'000'000'000;
// The clocks of machines that save together differ by less than this.
constexpr std::int64_t kClocksDiffer = kSecond;
// The longest pause between two files of a copy.
constexpr std::int64_t kPause = 10 * kSecond;
// The speed of a slow copy over a network.
constexpr std::uint64_t kBytesPerSecond = 4U << 20U;

// Returns nothing if the path is not a regular file.
std::optional<WrittenFile> look_at(const fs::path& path, std::string name) {
  const auto times = times_at(path);
  if (!times) return std::nullopt;
  return WrittenFile{std::move(name), times->bytes, times->modified_ns, times->born_ns};
}

// Returns the earliest time at which writing of the present contents can have begun: not before the
// file was created, and at most the time that writing its bytes takes before its last change.
std::int64_t begun(const WrittenFile& file) {
  const auto seconds = static_cast<std::int64_t>(file.bytes / kBytesPerSecond) + 1;
  const std::int64_t slowest = file.modified_ns - seconds * kSecond;
  // Created after its own last change: a copy that kept the original's time.
  if (!file.born_ns || *file.born_ns > file.modified_ns) return slowest;
  return std::max(slowest, *file.born_ns);
}

std::string time_text(std::int64_t ns) {
  const auto seconds = static_cast<time_t>(ns / kSecond);
  tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  const std::size_t length = ::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {text, length};
}

void look_into(const fs::path& folder, const std::string& prefix,
               const std::vector<std::string>& names, Findings& findings) {
  const auto metadata = look_at(folder / dcp::kMetadataName, std::string(dcp::kMetadataName));
  if (!metadata) return;
  std::vector<WrittenFile> data;
  for (const std::string& name : names) {
    if (!dcp::rank_of_data_file(name) && !name.ends_with(".safetensors")) continue;
    if (auto file = look_at(folder / name, name)) data.push_back(std::move(*file));
  }
  for (const std::string& name : newer_than(*metadata, data)) {
    const auto file =
        std::ranges::find_if(data, [&](const WrittenFile& one) { return one.name == name; });
    findings.push_back(
        warning(ErrorCode::kNewerData,
                cat("was written at ", time_text(file->modified_ns), ", after .metadata (",
                    time_text(metadata->modified_ns),
                    "): a later save into this folder was interrupted, or the file was "
                    "replaced; a seal would show whether it is unchanged"),
                prefix + name));
  }
}

}  // namespace

std::vector<std::string> newer_than(const WrittenFile& metadata, std::vector<WrittenFile> data) {
  std::vector<std::string> newer;
  std::erase_if(data, [&](const WrittenFile& file) {
    return file.bytes == 0 || file.modified_ns <= metadata.modified_ns;
  });
  std::ranges::sort(data, [](const WrittenFile& a, const WrittenFile& b) {
    return std::pair(begun(a), a.name) < std::pair(begun(b), b.name);
  });
  std::int64_t end = metadata.modified_ns;
  for (const WrittenFile& file : data) {
    const bool in_place = file.born_ns && *file.born_ns < metadata.modified_ns;
    if (begun(file) > end + (in_place ? 0 : kPause) &&
        file.modified_ns > metadata.modified_ns + kClocksDiffer) {
      newer.push_back(file.name);
    } else {
      end = std::max(end, file.modified_ns);
    }
  }
  return newer;
}

Findings newer_data(const fs::path& folder) {
  Findings findings;
  try {
    const auto directory = folder_at(folder);
    const std::vector<std::string> names = directory->list();
    look_into(folder, "", names, findings);
    for (const std::string& name : names) {
      const bool hidden = !in_store(folder) &&
                          ::access((folder / name).c_str(), R_OK | X_OK) != 0 && errno == EACCES;
      if (!hidden && directory->is_folder(name))
        look_into(folder / name, name + "/", folder_at(folder / name)->list(), findings);
    }
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    // The folder was removed meanwhile.
  }
  return findings;
}

}  // namespace fsdp::formats
