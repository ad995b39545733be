// SPDX-License-Identifier: Apache-2.0
// The error of a rank that lost others, as opposed to one that failed itself.
#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace fsdp::internal {

// Thrown by collectives if another rank is lost, late or failed: the cause lies elsewhere.
class PeerError : public c10::Error {
 public:
  using c10::Error::Error;
};

[[noreturn]] void throw_peer_error(const std::string& message);

// Returns what went wrong, as one text without a stack trace.
std::string message_of(const std::exception& error);

}  // namespace fsdp::internal
