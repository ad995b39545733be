// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/peer_error.h"

#include <cstdint>
#include <new>

namespace fsdp {

void throw_peer_error(const std::string& message) {
  throw PeerError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, message);
}

std::string message_of(const std::exception& error) {
  // Its what() is only the name of the class.
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  const auto* with_trace = dynamic_cast<const c10::Error*>(&error);
  return with_trace ? with_trace->what_without_backtrace() : error.what();
}

}  // namespace fsdp
