// SPDX-License-Identifier: Apache-2.0
#include "formats/remote/credentials.h"

#include <array>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/http/times.h"
#include "formats/remote/credential_services.h"

namespace fsdp::formats {
namespace {

// A request that begins now has to arrive before they expire.
constexpr std::int64_t kBeforeExpiry = 120;

bool anonymous() {
  const std::string value = environment_value("FSDP_CKPT_ANONYMOUS");
  if (!value.empty() && value != "0" && value != "1") {
    throw Error(ErrorCode::kUsage,
                cat("FSDP_CKPT_ANONYMOUS is ", quote(value), " instead of '1' or '0'"));
  }
  return value == "1";
}

// Two variables of the environment; nullopt: neither is set.
std::optional<Credentials> environment_pair(const char* id_name, const char* key_name) {
  Credentials found{environment_value(id_name), Secret(environment_value(key_name)), {}, 0};
  if (found.id.empty() && found.key.empty()) return std::nullopt;
  if (found.id.empty() || found.key.empty()) {
    throw Error(ErrorCode::kUsage,
                cat(found.id.empty() ? key_name : id_name, " is set, but ",
                    found.id.empty() ? id_name : key_name, " is not: requests need both"));
  }
  return found;
}

std::optional<Credentials> from_environment() {
  auto found = environment_pair("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
  if (found) found->token = Secret(environment_value("AWS_SESSION_TOKEN"));
  return found;
}

std::optional<Credentials> keys_of_profile(const Profile& profile) {
  const std::string id = profile.find("aws_access_key_id");
  if (id.empty()) return std::nullopt;
  Credentials found{id, profile.secret("aws_secret_access_key"),
                    profile.secret("aws_session_token"), 0};
  if (found.key.empty()) {
    throw Error(ErrorCode::kUsage, cat("profile ", quote(profile.name()),
                                       ": has aws_access_key_id, but no aws_secret_access_key"));
  }
  return found;
}

// Refuses what a profile names and is not supported, rather than asking as somebody else.
void refuse_others(const Profile& profile) {
  constexpr std::array<std::array<const char*, 2>, 4> kOthers = {{
      {"credential_process", "would start a program"},
      {"sso_session", "needs a browser"},
      {"sso_start_url", "needs a browser"},
      {"source_profile", "takes a role of another profile"},
  }};
  for (const auto& [name, why] : kOthers) {
    if (profile.find(name).empty()) continue;
    throw Error(ErrorCode::kUnsupported,
                cat("profile ", quote(profile.name()), ": ", name, " ", why,
                    ", which is not done here; `aws configure export-credentials --format env` "
                    "prints what the environment takes"));
  }
}

}  // namespace

Credentials amazon_credentials(HttpClient& client, const Profile& profile) {
  if (anonymous()) return {};
  if (auto found = from_environment()) return *std::move(found);
  if (auto found = web_identity_credentials(client, profile)) return *std::move(found);
  if (auto found = keys_of_profile(profile)) return *std::move(found);
  refuse_others(profile);
  if (auto found = container_credentials(client)) return *std::move(found);
  if (auto found = instance_credentials(client)) return *std::move(found);
  throw Error(ErrorCode::kAccess,
              cat("no credentials: neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, nor a web "
                  "identity, nor profile ",
                  quote(profile.name()),
                  ", nor a container or machine of AWS has them; FSDP_CKPT_ANONYMOUS=1 reads what "
                  "is open to everybody"));
}

Credentials google_credentials() {
  if (anonymous()) return {};
  if (auto found = environment_pair("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY")) {
    return *std::move(found);
  }
  throw Error(ErrorCode::kAccess,
              "no credentials: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY (an HMAC key of the "
              "interoperability settings) are not set; FSDP_CKPT_ANONYMOUS=1 reads what is open to "
              "everybody");
}

Credentials CredentialCache::current() {
  const std::scoped_lock lock(mutex_);
  if (found_ && found_->expires != 0 && found_->expires - kBeforeExpiry <= wall_seconds()) {
    found_.reset();
  }
  if (!found_) found_ = find_();
  return *found_;
}

void CredentialCache::forget(const Credentials& refused) {
  const std::scoped_lock lock(mutex_);
  // Another thread may have looked meanwhile.
  if (found_ && found_->id == refused.id && found_->token.reveal() == refused.token.reveal()) {
    found_.reset();
  }
}

}  // namespace fsdp::formats
