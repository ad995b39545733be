// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/errors.h"

#include <new>

#include "formats/bytes/base/error.h"

namespace fsdp::internal {

void throw_error(const std::string& message) {
  throw c10::Error(message);
}

namespace {

// Returns the library's option that helps; other remedies are options of the tool.
std::string remedy_text(const Hint& hint) {
  switch (hint.remedy) {
    case Remedy::kReplace:
      return "; SaveOptions::overwrite replaces it";
    case Remedy::kAllowGlobal:
      return "; LoadOptions::allowed_globals accepts it";
    default:
      return {};
  }
}

}  // namespace

std::string message_of(const std::exception& error) {
  // Its what() is only the name of the class.
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "out of memory";
  if (const auto* known = dynamic_cast<const Error*>(&error))
    return known->what() + remedy_text(known->hint());
  const auto* with_trace = dynamic_cast<const c10::Error*>(&error);
  return with_trace ? with_trace->what_without_backtrace() : error.what();
}

}  // namespace fsdp::internal
