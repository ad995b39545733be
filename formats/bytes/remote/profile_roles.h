// SPDX-License-Identifier: Apache-2.0
// Roles that profiles take by the credentials of others.
// Source: "Assume role credential provider" in the reference guide of the AWS SDKs.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// The role of a profile: `role_arn`, by the credentials of its `source_profile`, which may take a
// role too, or of its `credential_source` (Environment, EcsContainer, Ec2InstanceMetadata).
// nullopt: it has no role, or takes it by a web identity.
// Throws: kUsage for a profile that makes no sense, or a chain that leads back to where it was;
// kUnsupported for one that asks for a code (mfa_serial), and a source that would start a program
// or a browser; kAccess, kNetwork.
std::optional<Credentials> role_credentials(HttpClient& client, const Profile& profile);

}  // namespace fsdp::formats
