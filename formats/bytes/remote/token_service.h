// SPDX-License-Identifier: Apache-2.0
// AWS STS, which gives short-lived credentials for a role.
// Source: AssumeRole and AssumeRoleWithWebIdentity in the API reference of AWS STS.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// The service is at AWS_ENDPOINT_URL_STS, AWS_ENDPOINT_URL, the profile's sts endpoint_url or
// endpoint_url, else at Amazon's address for the region.  Each function throws: kAccess if the
// service refuses; kNetwork; kUsage for invalid settings.

// Takes the role of AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN and AWS_ROLE_SESSION_NAME, or of the
// profile's web_identity_token_file, role_arn and role_session_name.  nullopt: neither is set.
std::optional<Credentials> web_identity_credentials(HttpClient& client, const Profile& profile);
// Takes the role of `profile` (role_arn, role_session_name, external_id, duration_seconds) with the
// credentials `source`.  `endpoint`: the profile whose endpoint and region are used.
Credentials assume_role(HttpClient& client, const Profile& endpoint, const Profile& profile,
                        const Credentials& source);

}  // namespace fsdp::formats
