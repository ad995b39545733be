// SPDX-License-Identifier: Apache-2.0
// For static programs, which cannot load a library.
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/shared_library.h"

namespace fsdp::formats {

SharedLibrary::SharedLibrary(const std::string& file, const std::string& /*package*/)
    : file_(file) {
  throw Error(ErrorCode::kUnsupported, "a URL needs ", file,
              ", which a static program cannot load; a build that is not static reads URLs "
              "(docs/install.md)");
}

void* SharedLibrary::address(const char* /*name*/) const {
  return handle_;
}

}  // namespace fsdp::formats
