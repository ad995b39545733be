// SPDX-License-Identifier: Apache-2.0
#include "formats/base/threads.h"

#include <exception>

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

}  // namespace fsdp::formats
