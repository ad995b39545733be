// SPDX-License-Identifier: Apache-2.0
// The errors of the library.  All are c10::Error, without the stack trace that TORCH_CHECK adds:
// their messages are for people.
#pragma once

#include <string>

#include <c10/util/Exception.h>

namespace fsdp::internal {

// Thrown by collectives if another rank is lost, late or failed: the cause lies elsewhere.
class PeerError : public c10::Error {
 public:
  using c10::Error::Error;
};

[[noreturn]] void throw_error(const std::string& message);

// Returns what went wrong, as one text without a stack trace.
std::string message_of(const std::exception& error);

}  // namespace fsdp::internal

// Throws c10::Error if the condition is false; the other arguments, as one text, are the message.
#define FSDP_CHECK(condition, ...)                                                          \
  do {                                                                                      \
    if (C10_UNLIKELY(!(condition))) ::fsdp::internal::throw_error(::c10::str(__VA_ARGS__)); \
  } while (false)
