// SPDX-License-Identifier: Apache-2.0
// Stands in for tools/base/build_info.cpp in a program that is another version.
#include "tools/base/build_info.h"

namespace fsdp::cli {

std::string version_text() {
  return "fsdp-ckpt of another version";
}

}  // namespace fsdp::cli
