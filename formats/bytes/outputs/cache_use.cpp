// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/cache_use.h"

#include <time.h>

namespace fsdp::formats {
namespace {

// Copying fewer bytes takes too little time to be measured.
constexpr std::size_t kTellingBytes = 256U << 10U;

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void CacheChoice::put(OutputFile& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  const double begin = thread_cpu_seconds();
  file.put_at(offset, bytes);
  if (bytes.size() < kTellingBytes || use_ != CacheUse::kWhileQuick) return;
  const std::lock_guard lock(mutex_);
  pace_.add(bytes.size(), thread_cpu_seconds() - begin);
  if (pace_.slow()) use_ = CacheUse::kNever;
}

}  // namespace fsdp::formats
