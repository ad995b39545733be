// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/credentials.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/remote/credential_services.h"
#include "formats/bytes/remote/profile_roles.h"
#include "formats/bytes/remote/token_service.h"

namespace fsdp::formats {
namespace {

// Seconds before the expiry: a request that begins now must arrive before the credentials expire.
constexpr std::int64_t kBeforeExpiry = 120;

// Reads two environment variables; nullopt: neither is set.  Throws: kUsage if only one is set.
std::optional<Credentials> environment_pair(const char* id_name, const char* key_name) {
  Credentials found{environment_value(id_name), Secret(environment_value(key_name)), {}, 0};
  if (found.id.empty() && found.key.empty()) return std::nullopt;
  if (found.id.empty() || found.key.empty()) {
    throw Error(ErrorCode::kUsage, found.id.empty() ? key_name : id_name, " is set, but ",
                found.id.empty() ? id_name : key_name, " is not: requests need both");
  }
  return found;
}

bool anonymous() {
  const std::string value = environment_value("FSDP_CKPT_ANONYMOUS");
  if (!value.empty() && value != "0" && value != "1") {
    throw Error(ErrorCode::kUsage, "FSDP_CKPT_ANONYMOUS is ", quote(value),
                " instead of '1' or '0'");
  }
  return value == "1";
}

}  // namespace

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

Credentials amazon_credentials(HttpClient& client, const Profile& profile) {
  if (anonymous()) return {};
  if (auto found = environment_keys()) return *std::move(found);
  if (auto found = web_identity_credentials(client, profile)) return *std::move(found);
  if (auto found = role_credentials(client, profile)) return *std::move(found);
  if (auto found = profile_keys(profile)) return *std::move(found);
  refuse_other_sources(profile);
  if (auto found = container_credentials(client)) return *std::move(found);
  if (auto found = instance_credentials(client)) return *std::move(found);
  throw Error(ErrorCode::kAccess,
              "no credentials: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, nor a web "
              "identity, nor profile ",
              quote(profile.name()),
              ", nor a container or machine of AWS provides them; FSDP_CKPT_ANONYMOUS=1 reads "
              "what is open to everybody");
}

Credentials google_credentials() {
  if (anonymous()) return {};
  if (auto found = environment_pair("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY"))
    return *std::move(found);
  throw Error(ErrorCode::kAccess,
              "no credentials: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY (an HMAC key of the "
              "interoperability settings) are not set; FSDP_CKPT_ANONYMOUS=1 reads what is open to "
              "everybody");
}

Credentials CredentialCache::current() {
  const std::scoped_lock lock(mutex_);
  if (found_ && found_->expires != 0 && found_->expires - kBeforeExpiry <= wall_seconds())
    found_.reset();
  if (!found_) found_ = find_();
  return *found_;
}

void CredentialCache::forget(const Credentials& refused) {
  const std::scoped_lock lock(mutex_);
  // Another thread may have found new credentials meanwhile.
  if (found_ && found_->id == refused.id && found_->token.reveal() == refused.token.reveal())
    found_.reset();
}

}  // namespace fsdp::formats
