// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/unfinished.h"

#include <atomic>
#include <vector>

namespace fsdp::formats {
namespace {

std::mutex unfinished_mutex;
std::vector<Unfinished*> unfinished;
std::atomic<std::uint64_t> committed{0};

}  // namespace

std::mutex& commit_mutex() {
  static std::mutex mutex;
  return mutex;
}

void note_committed() noexcept {
  ++committed;
}
std::uint64_t outputs_committed() noexcept {
  return committed;
}

void note_unfinished(Unfinished& output) {
  const std::lock_guard lock(unfinished_mutex);
  unfinished.push_back(&output);
}
void forget_unfinished(Unfinished& output) noexcept {
  const std::lock_guard lock(unfinished_mutex);
  std::erase(unfinished, &output);
}

void abandon_outputs() noexcept {
  commit_mutex().lock();
  const std::lock_guard lock(unfinished_mutex);
  for (Unfinished* const output : unfinished) output->abandon();
}

}  // namespace fsdp::formats
