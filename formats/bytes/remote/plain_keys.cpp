// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/plain_keys.h"

#include <array>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {

std::optional<Credentials> environment_pair(const char* id_name, const char* key_name) {
  Credentials found{environment_value(id_name), Secret(environment_value(key_name)), {}, 0};
  if (found.id.empty() && found.key.empty()) return std::nullopt;
  if (found.id.empty() || found.key.empty()) {
    throw Error(ErrorCode::kUsage, found.id.empty() ? key_name : id_name, " is set, but ",
                found.id.empty() ? id_name : key_name, " is not: requests need both");
  }
  return found;
}

std::optional<Credentials> environment_keys() {
  auto found = environment_pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
  if (found) found->token = Secret(environment_value("AWS_SESSION_TOKEN"));
  return found;
}

std::optional<Credentials> profile_keys(const Profile& profile) {
  const std::string id = profile.find("aws_access_key_id");
  if (id.empty()) return std::nullopt;
  Credentials found{id, profile.secret("aws_secret_access_key"),
                    profile.secret("aws_session_token"), 0};
  if (found.key.empty()) {
    throw Error(ErrorCode::kUsage, "profile ", quote(profile.name()),
                ": has aws_access_key_id, but no aws_secret_access_key");
  }
  return found;
}

void refuse_other_sources(const Profile& profile) {
  constexpr std::array<std::array<const char*, 2>, 3> kOthers = {{
      {"credential_process", "would start a program"},
      {"sso_session", "needs a browser"},
      {"sso_start_url", "needs a browser"},
  }};
  for (const auto& [name, why] : kOthers) {
    if (profile.find(name).empty()) continue;
    throw Error(ErrorCode::kUnsupported, "profile ", quote(profile.name()), ": ", name, " ", why,
                ", which is not supported; `aws configure export-credentials --format env` "
                "prints variables to set instead");
  }
}

}  // namespace fsdp::formats
