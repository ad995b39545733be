// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/token_service.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/exchange.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/http/xml.h"
#include "formats/bytes/remote/digests.h"
#include "formats/bytes/remote/service_tokens.h"
#include "formats/bytes/remote/sign.h"

namespace fsdp::formats {
namespace {

// The region for which requests to the endpoint without a region are signed.
constexpr const char* kGlobalRegion = "us-east-1";
constexpr const char* kVersion = "2011-06-15";

// Words the refusals of the token service.
class StsDialect final : public Dialect {
 public:
  std::string words(const HttpAnswer& answer) const override {
    std::string code;
    try {
      parse_xml(answer.text, {.end = [&](std::string_view path, const std::string& text) {
                  if (path == "ErrorResponse/Error/Code") code = text;
                }});
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNetwork) throw;  // not XML: the status number must suffice
    }
    return std::to_string(answer.head.status) + (code.empty() ? code : ' ' + quote(code));
  }
};

std::string environment_or(const char* variable, const Profile& profile, const char* setting) {
  std::string value = environment_value(variable);
  return value.empty() ? profile.find(setting) : value;
}

std::string sts_region(const Profile& profile) {
  const std::string region = environment_or("AWS_REGION", profile, "region");
  return region.empty() ? environment_value("AWS_DEFAULT_REGION") : region;
}

Address sts_address(const Profile& profile, const std::string& what) {
  std::string url;
  for (const char* name : {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}) {
    if (url.empty()) url = environment_value(name);
  }
  for (const char* setting : {"sts.endpoint_url", "endpoint_url"}) {
    if (url.empty()) url = profile.find(setting);
  }
  const std::string region = sts_region(profile);
  if (url.empty()) {
    url = region.empty() ? "https://sts.amazonaws.com/"
                         : cat("https://sts.", region, ".amazonaws.com",
                               region.starts_with("cn-") ? ".cn/" : "/");
  }
  auto address = parse_address(url);
  if (!address) throw Error(ErrorCode::kUsage, what + ": the endpoint of STS is not a URL");
  require_private(*address, "the token service");
  return *std::move(address);
}

// Asks for credentials.  `source` signs the request; null: the form itself identifies the caller.
Credentials ask_sts(HttpClient& client, const Profile& profile, const std::string& what,
                    const Query& form, const Credentials* source) {
  const Address address = sts_address(profile, what);
  const Secret body(encode_query(form));
  const std::string region = sts_region(profile);
  Patience patience(what, service_limits());
  const StsDialect dialect;
  const HttpAnswer answer = exchange(client, patience, dialect, [&] {
    HttpRequest request;
    request.method = "POST";
    request.url = address.text();
    request.fields = {{"content-type", "application/x-www-form-urlencoded"}};
    request.body = std::as_bytes(std::span(body.reveal()));
    request.timeout = patience.left();
    if (source != nullptr) {
      sign(request, address, *source,
           {region.empty() ? kGlobalRegion : region, "sts", sha256_text(request.body),
            wall_seconds()});
    }
    return request;
  });
  if (answer.head.status != 200) {
    const bool refused = answer.head.status >= 400 && answer.head.status < 500;
    if (!refused) throw refusal(what, answer, dialect);
    throw Error(ErrorCode::kAccess, what, ": the server refuses: ", dialect.words(answer));
  }
  const std::string& action = form.front().second;
  const std::string root = cat(action, "Response/", action, "Result/Credentials/");
  Credentials found;
  parse_xml(answer.text, {.end = [&](std::string_view path, const std::string& text) {
              if (!path.starts_with(root)) return;
              path.remove_prefix(root.size());
              if (path == "AccessKeyId") found.id = text;
              if (path == "SecretAccessKey") found.key = Secret(text);
              if (path == "SessionToken") found.token = Secret(text);
              if (path == "Expiration") found.expires = expiry_of(text);
            }});
  if (found.id.empty() || found.key.empty()) throw no_credentials(what);
  return found;
}

std::string session_or(std::string name) {
  return name.empty() ? cat("fsdp-ckpt-", wall_seconds()) : std::move(name);
}

}  // namespace

std::optional<Credentials> web_identity_credentials(HttpClient& client, const Profile& profile) {
  const std::string file =
      environment_or("AWS_WEB_IDENTITY_TOKEN_FILE", profile, "web_identity_token_file");
  if (file.empty()) return std::nullopt;
  const std::string role = environment_or("AWS_ROLE_ARN", profile, "role_arn");
  if (role.empty()) {
    throw Error(ErrorCode::kUsage,
                "a file with the token of a web identity is named, but AWS_ROLE_ARN is not set");
  }
  const std::string session =
      session_or(environment_or("AWS_ROLE_SESSION_NAME", profile, "role_session_name"));
  return ask_sts(client, profile, "the role of the web identity",
                 {{"Action", "AssumeRoleWithWebIdentity"},
                  {"Version", kVersion},
                  {"RoleArn", role},
                  {"RoleSessionName", session},
                  {"WebIdentityToken", read_token(file).reveal()}},
                 nullptr);
}

Credentials assume_role(HttpClient& client, const Profile& endpoint, const Profile& profile,
                        const Credentials& source) {
  Query form = {{"Action", "AssumeRole"},
                {"Version", kVersion},
                {"RoleArn", profile.find("role_arn")},
                {"RoleSessionName", session_or(profile.find("role_session_name"))}};
  const std::string duration = profile.find("duration_seconds");
  if (!duration.empty()) form.emplace_back("DurationSeconds", duration);
  const std::string external = profile.find("external_id");
  if (!external.empty()) form.emplace_back("ExternalId", external);
  return ask_sts(client, endpoint, cat("the role of profile ", quote(profile.name())), form,
                 &source);
}

}  // namespace fsdp::formats
