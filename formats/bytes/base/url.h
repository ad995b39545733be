// SPDX-License-Identifier: Apache-2.0
// Tells a URL from a path.
#pragma once

#include <string_view>

namespace fsdp::formats {

// Returns whether `text` begins like a URL: https://, s3://.
bool is_url(std::string_view text);

}  // namespace fsdp::formats
