// SPDX-License-Identifier: Apache-2.0
// Keys written in the environment or in a profile.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// Reads two environment variables; nullopt: neither is set.  Throws: kUsage if only one is set.
std::optional<Credentials> environment_pair(const char* id_name, const char* key_name);
// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; otherwise like
// environment_pair.
std::optional<Credentials> environment_keys();
// Reads aws_access_key_id, aws_secret_access_key and aws_session_token; nullopt: there is no id.
// Throws: kUsage for an id without a key.
std::optional<Credentials> profile_keys(const Profile& profile);
// Refuses a profile with an unsupported source of credentials, instead of using other credentials.
// Throws: kUnsupported.
void refuse_other_sources(const Profile& profile);

}  // namespace fsdp::formats
