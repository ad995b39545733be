// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/threads.h"

#include <algorithm>
#include <exception>
#include <mutex>

namespace fsdp::formats {

std::vector<std::jthread> start_helpers(std::size_t count,
                                        const std::function<void(std::size_t)>& body) {
  std::vector<std::jthread> helpers;
  helpers.reserve(count);
  for (std::size_t i = 1; i <= count; ++i) {
    try {
      helpers.emplace_back([body, i] { body(i); });
    } catch (const std::exception&) {
      break;
    }
  }
  return helpers;
}

void run_each(std::size_t count, std::size_t threads,
              const std::function<void(std::size_t)>& body) {
  std::mutex mutex;
  std::size_t next = 0;
  std::size_t failed = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (;;) {
      std::size_t i = 0;
      {
        const std::lock_guard lock(mutex);
        if (failure || next == count) return;
        i = next++;
      }
      try {
        body(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception();
        failed = std::min(failed, i);
      }
    }
  };
  {
    const std::size_t used = std::min(std::max<std::size_t>(threads, 1), count);
    const auto others =
        start_helpers(used - std::min<std::size_t>(used, 1), [&](std::size_t) { work(); });
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace fsdp::formats
