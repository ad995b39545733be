// SPDX-License-Identifier: Apache-2.0
// Roles that profiles take with the credentials of another source.
// Source: "Assume role credential provider" in the reference guide of the AWS SDKs.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// Takes the role of a profile: `role_arn`, with the credentials of its `source_profile`, which may
// take a role too, or of its `credential_source` (Environment, EcsContainer, Ec2InstanceMetadata).
// Returns nullopt if the profile has no role, or takes it by a web identity.
// Throws: kUsage for an invalid profile or a circular chain; kUnsupported for a profile that asks
// for a code (mfa_serial), and for a source that would start a program or a browser; kAccess,
// kNetwork.
std::optional<Credentials> role_credentials(HttpClient& client, const Profile& profile);

}  // namespace fsdp::formats
