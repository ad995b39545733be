// SPDX-License-Identifier: Apache-2.0
// Services that give short-lived credentials to a container or a machine.
// Source: "Credential providers" in the reference guide of the AWS SDKs.
#pragma once

#include <optional>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::formats {

// Each returns nullopt if the environment names no such service, or the service does not exist.
// Throws: kAccess if the service refuses; kNetwork; kUsage for invalid settings.

// Reads AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or AWS_CONTAINER_CREDENTIALS_FULL_URI, with
// AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE or AWS_CONTAINER_AUTHORIZATION_TOKEN.
std::optional<Credentials> container_credentials(HttpClient& client);
// Asks IMDSv2 at AWS_EC2_METADATA_SERVICE_ENDPOINT, else at its fixed address, unless
// AWS_EC2_METADATA_DISABLED is true.
std::optional<Credentials> instance_credentials(HttpClient& client);

}  // namespace fsdp::formats
