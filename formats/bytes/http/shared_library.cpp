// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/shared_library.h"

#include <dlfcn.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {

SharedLibrary::SharedLibrary(const std::string& file, const std::string& package)
    : file_(file), handle_(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) {
    const char* words = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one per thread
    throw Error(ErrorCode::kUnsupported, "a URL needs ", file, ", which could not be loaded (",
                escape(words == nullptr ? "no reason given" : words), "); install ", package);
  }
}

void* SharedLibrary::address(const char* name) const {
  void* found = ::dlsym(handle_, name);
  if (found == nullptr) throw Error(ErrorCode::kUnsupported, file_, ": has no function ", name);
  return found;
}

}  // namespace fsdp::formats
