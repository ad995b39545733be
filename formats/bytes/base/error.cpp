// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/error.h"

#include <cstddef>
#include <iterator>

namespace fsdp {

std::string_view code_name(ErrorCode code) noexcept {
#define FSDP_NAME(code, name) name,
  static constexpr std::string_view kNames[] = {FSDP_ERROR_CODES(FSDP_NAME)};
#undef FSDP_NAME
  // A number that another process sent may be none of them.
  const auto number = static_cast<std::size_t>(code);
  return number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

bool is_no_answer(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kIo:
    case ErrorCode::kNoSpace:  // for a temporary file that is read through
    case ErrorCode::kChanged:
    case ErrorCode::kAccess:  // a store refuses
    case ErrorCode::kNetwork:
    case ErrorCode::kInterrupted:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kH5ReaderFailed:  // libhdf5 ended before it described the file
      return true;
    default:
      return false;
  }
}

Hint take_from_hint(const std::string& key) {
  if (key.empty() || key.find_first_of("*?[=") != std::string::npos) return {};
  return {Remedy::kTakeFrom, key};
}

Error::Error(ErrorCode code, const std::string& message, Hint hint)
    : std::runtime_error(message),
      code_(code),
      hint_(std::make_shared<const Hint>(std::move(hint))) {}

Error Error::in(std::string_view context) const {
  return saying(std::string(context) + ": " + what());
}

Error Error::saying(const std::string& message) const {
  return Error(code_, message, *hint_);
}

}  // namespace fsdp
