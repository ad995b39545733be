// SPDX-License-Identifier: Apache-2.0
// Keys that are written down: in the environment, in a profile.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// Two variables of the environment; nullopt: neither is set.  Throws: kUsage for one of them.
std::optional<Credentials> environment_pair(const char* id_name, const char* key_name);
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; else as environment_pair.
std::optional<Credentials> environment_keys();
// aws_access_key_id, aws_secret_access_key and aws_session_token; nullopt: the first is not there.
// Throws: kUsage for an id without a key.
std::optional<Credentials> profile_keys(const Profile& profile);
// Refuses what a profile names and is not supported, rather than asking as somebody else.
// Throws: kUnsupported.
void refuse_other_sources(const Profile& profile);

}  // namespace fsdp::formats
