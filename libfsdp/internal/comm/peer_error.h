// SPDX-License-Identifier: Apache-2.0
// What a rank throws that lost the others, as against one that failed by itself.
#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace fsdp {

// Thrown by collectives where another rank is lost, late or failed: the cause lies elsewhere.
class PeerError : public c10::Error {
 public:
  using c10::Error::Error;
};

[[noreturn]] void throw_peer_error(const std::string& message);

// What went wrong, in one piece and without a stack trace.
std::string message_of(const std::exception& error);

}  // namespace fsdp
