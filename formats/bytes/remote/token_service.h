// SPDX-License-Identifier: Apache-2.0
// AWS STS, which gives credentials of short life for a role.
// Source: AssumeRole and AssumeRoleWithWebIdentity in the API reference of AWS STS.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// It is at AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL, the profile's sts endpoint_url or endpoint_url,
// else at Amazon's of the region.  Each function throws: kAccess if it refuses; kNetwork; kUsage
// for settings that make no sense.

// AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN and AWS_ROLE_SESSION_NAME, or the profile's
// web_identity_token_file, role_arn and role_session_name.  nullopt: there are none.
std::optional<Credentials> web_identity_credentials(HttpClient& client, const Profile& profile);
// The role of `profile` (role_arn, role_session_name, external_id, duration_seconds), asked for by
// `source`.  `endpoint`: the profile whose endpoint and region count.
Credentials assume_role(HttpClient& client, const Profile& endpoint, const Profile& profile,
                        const Credentials& source);

}  // namespace fsdp::formats
