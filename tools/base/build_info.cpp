// SPDX-License-Identifier: Apache-2.0
#include "tools/base/build_info.h"

#include "formats/bytes/base/text.h"
#include "tools/commit.h"

namespace fsdp::cli {
namespace {

#if defined(__x86_64__)
constexpr const char* kProcessor = "x86_64";
#elif defined(__aarch64__)
constexpr const char* kProcessor = "aarch64";
#else
constexpr const char* kProcessor = "another processor";
#endif

#if defined(__clang__)
constexpr const char* kCompiler = "Clang " __clang_version__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

}  // namespace

std::string version_text() {
  return formats::cat("fsdp-ckpt ", FSDP_VERSION, "\ncommit ", FSDP_COMMIT, ", ", FSDP_LINKING,
                      ", ", kProcessor, ", ", kCompiler, ", glibc ", __GLIBC__, ".",
                      __GLIBC_MINOR__, "\n", FSDP_LIBRARIES);
}

}  // namespace fsdp::cli
