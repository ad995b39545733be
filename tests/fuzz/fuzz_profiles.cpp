// SPDX-License-Identifier: Apache-2.0
// Any bytes read as each of the files of profiles that the tools of AWS share.
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/remote/profile_files.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void fuzz_profile(const char* name, std::string_view text, bool in_config) {
  Profile profile(name);
  try {
    profile.add(text, in_config, "file");
  } catch (const Error& e) {
    // Names the line and nothing that stands in it, which may be a key.
    const std::string_view words = e.what();
    require(e.code() == ErrorCode::kUsage && words.starts_with("file: line ") &&
            words.size() < 100);
    return;
  }
  const std::string region = profile.find("region");
  for (const char* setting : {"aws_access_key_id", "region", "s3.addressing_style"}) {
    const std::string value = profile.find(setting);
    require(value.find('\n') == std::string::npos && value.size() <= text.size());
    require(profile.secret(setting).reveal() == value);
  }
  // What is there already stays.
  profile.add("[default]\nregion = other\n[p]\nregion = other\n", false, "file");
  require(profile.find("region") == (region.empty() ? "other" : region));
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"default", "p"}) {
    fsdp::formats::fuzz_profile(name, text, true);
    fsdp::formats::fuzz_profile(name, text, false);
  }
  return 0;
}
