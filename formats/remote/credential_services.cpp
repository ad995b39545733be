// SPDX-License-Identifier: Apache-2.0
#include "formats/remote/credential_services.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/http/address.h"
#include "formats/http/encoding.h"
#include "formats/http/exchange.h"
#include "formats/http/times.h"
#include "formats/http/xml.h"
#include "formats/remote/s3_answers.h"

namespace fsdp::formats {
namespace {

constexpr std::int64_t kPerSecond = 1'000'000'000;
constexpr std::size_t kMostToken = std::size_t{64} << 10U;
constexpr unsigned kServiceTries = 4;

// The text of a file with a token, without the end of its line.
Secret read_token(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostToken, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorCode::kAccess, escape(path) + ": the file of a token could not be read");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty() || text.size() == kMostToken ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; })) {
    throw Error(ErrorCode::kUsage, escape(path) + ": holds no token");
  }
  return Secret(std::move(text));
}

// Refuses what would show a token to whoever is on the way.
void require_private(const Address& address, const std::string& what) {
  constexpr std::array<std::string_view, 3> kServices = {"169.254.170.2", "169.254.170.23",
                                                         "[fd00:ec2::23]"};
  if (address.scheme == "https" || is_loopback(address.authority) ||
      std::find(kServices.begin(), kServices.end(), address.authority) != kServices.end()) {
    return;
  }
  throw Error(ErrorCode::kUsage,
              cat(what, " is at ", quote(address.scheme + "://" + address.authority),
                  ": only https, or http to this machine, keeps a token secret"));
}

Error no_credentials(const std::string& what) {
  return {ErrorCode::kAccess, what + ": the answer holds no credentials"};
}

std::int64_t expiry_of(const std::string& text) {
  const auto time = parse_iso_time(text);
  return time ? *time / kPerSecond : 0;
}

// What the services of containers and machines answer.
Credentials parse_credentials(const std::string& text, const std::string& what) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error&) {
    throw no_credentials(what);  // the words of the parser may show a part of the answer
  }
  const auto member = [&](const char* name) {
    const Json* value = json.find(name);
    const std::string* found = value == nullptr ? nullptr : value->as_string();
    return found == nullptr ? std::string() : *found;
  };
  Credentials found{member("AccessKeyId"), Secret(member("SecretAccessKey")),
                    Secret(member("Token")), expiry_of(member("Expiration"))};
  if (found.id.empty() || found.key.empty()) throw no_credentials(what);
  return found;
}

class StsHandler final : public XmlHandler {
 public:
  Credentials found;
  void begin(std::string_view /*path*/) override {}
  void end(std::string_view path, const std::string& text) override {
    constexpr std::string_view kRoot =
        "AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials/";
    if (!path.starts_with(kRoot)) return;
    path.remove_prefix(kRoot.size());
    if (path == "AccessKeyId") found.id = text;
    if (path == "SecretAccessKey") found.key = Secret(text);
    if (path == "SessionToken") found.token = Secret(text);
    if (path == "Expiration") found.expires = expiry_of(text);
  }
};

// How the token service words its refusals.
class StsDialect final : public Dialect {
 public:
  std::string words(const HttpAnswer& answer) const override {
    class Handler final : public XmlHandler {
     public:
      std::string code;
      void begin(std::string_view /*path*/) override {}
      void end(std::string_view path, const std::string& text) override {
        if (path == "ErrorResponse/Error/Code") code = text;
      }
    } handler;
    try {
      parse_xml(answer.text, handler);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kNetwork) throw;  // no XML: the number has to do
    }
    return std::to_string(answer.head.status) +
           (handler.code.empty() ? std::string() : ' ' + quote(handler.code));
  }
};

std::string environment_or(const char* variable, const Profile& profile, const char* setting) {
  std::string value = environment_value(variable);
  return value.empty() ? profile.find(setting) : value;
}

std::optional<Address> sts_address(const Profile& profile) {
  for (const char* name : {"AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL"}) {
    const std::string value = environment_value(name);
    if (!value.empty()) return parse_address(value);
  }
  for (const char* setting : {"sts.endpoint_url", "endpoint_url"}) {
    const std::string value = profile.find(setting);
    if (!value.empty()) return parse_address(value);
  }
  std::string region = environment_or("AWS_REGION", profile, "region");
  if (region.empty()) region = environment_value("AWS_DEFAULT_REGION");
  if (region.empty()) return parse_address("https://sts.amazonaws.com/");
  return parse_address(
      cat("https://sts.", region, ".amazonaws.com", region.starts_with("cn-") ? ".cn/" : "/"));
}

// The role that this machine has, with a token of the session; nullopt: no such service.
class InstanceService {
 public:
  InstanceService(HttpClient& client, Address address)
      : client_(client), address_(std::move(address)) {}

  std::optional<Credentials> ask() const {
    const auto token =
        send("PUT", "/latest/api/token", {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}});
    if (!token || token->head.status != 200) return std::nullopt;
    const std::pair<std::string, std::string> field{"x-aws-ec2-metadata-token", token->text};
    const std::string path = "/latest/meta-data/iam/security-credentials/";
    const auto roles = send("GET", path, {field});
    if (!roles || roles->head.status != 200) return std::nullopt;
    const std::string role = roles->text.substr(0, roles->text.find_first_of("\r\n"));
    if (role.empty()) return std::nullopt;
    const auto answer = send("GET", path + encode_path(role), {field});
    const std::string what = "the credentials of this machine's role";
    if (!answer)
      throw Error(ErrorCode::kNetwork, what + ": the metadata service stopped answering");
    if (answer->head.status != 200) throw refusal(what, *answer, Dialect());
    return parse_credentials(answer->text, what);
  }

 private:
  std::optional<HttpAnswer> send(const char* method, const std::string& path,
                                 std::vector<std::pair<std::string, std::string>> fields) const {
    HttpRequest request;
    request.method = method;
    request.url = Address{address_.scheme, address_.authority, path}.text();
    request.fields = std::move(fields);
    request.timeout = std::chrono::seconds(1);
    request.past_proxies = true;
    // Most machines are not in a cloud: who does not answer at once is not there.
    for (int tries = 0; tries < 2; ++tries) {
      try {
        HttpAnswer answer = client_.send(request, nullptr);
        if (answer.head.status < 500) return answer;
      } catch (const TransferError&) {
        continue;
      }
    }
    return std::nullopt;
  }

  HttpClient& client_;
  const Address address_;
};

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
  std::string session = environment_or("AWS_ROLE_SESSION_NAME", profile, "role_session_name");
  if (session.empty()) session = cat("fsdp-ckpt-", wall_seconds());
  const auto address = sts_address(profile);
  const std::string what = "the role of the web identity";
  if (!address) throw Error(ErrorCode::kUsage, what + ": the endpoint of STS is no URL");
  require_private(*address, "the token service");
  const Secret form(encode_query({{"Action", "AssumeRoleWithWebIdentity"},
                                  {"Version", "2011-06-15"},
                                  {"RoleArn", role},
                                  {"RoleSessionName", session},
                                  {"WebIdentityToken", read_token(file).reveal()}}));
  NetworkLimits limits = network_limits();
  limits.tries = std::min(limits.tries, kServiceTries);
  Patience patience(what, limits);
  const StsDialect dialect;
  const HttpAnswer answer = exchange(client, patience, dialect, [&] {
    HttpRequest request;
    request.method = "POST";
    request.url = address->text();
    request.fields = {{"content-type", "application/x-www-form-urlencoded"}};
    request.body = std::as_bytes(std::span(form.reveal()));
    request.timeout = patience.left();
    return request;
  });
  if (answer.head.status != 200) {
    const bool refused = answer.head.status >= 400 && answer.head.status < 500;
    if (!refused) throw refusal(what, answer, dialect);
    throw Error(ErrorCode::kAccess, cat(what, ": the server refuses: ", dialect.words(answer)));
  }
  StsHandler handler;
  parse_xml(answer.text, handler);
  if (handler.found.id.empty() || handler.found.key.empty()) throw no_credentials(what);
  return std::move(handler.found);
}

std::optional<Credentials> container_credentials(HttpClient& client) {
  const std::string relative = environment_value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = environment_value("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return std::nullopt;
  const auto address = parse_address(relative.empty() ? full : "http://169.254.170.2" + relative);
  const std::string what = "the credentials of the container";
  if (!address) throw Error(ErrorCode::kUsage, what + ": AWS_CONTAINER_CREDENTIALS_* is no URL");
  require_private(*address, "the service of the container");
  const std::string file = environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  const Secret token = file.empty() ? Secret(environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN"))
                                    : read_token(file);
  if (token.reveal().find_first_of("\r\n") != std::string::npos) {
    throw Error(ErrorCode::kUsage, what + ": the token has more than one line");
  }
  NetworkLimits limits = network_limits();
  limits.tries = std::min(limits.tries, kServiceTries);
  Patience patience(what, limits);
  const Dialect dialect;
  const HttpAnswer answer = exchange(client, patience, dialect, [&] {
    HttpRequest request;
    request.url = address->text();
    if (!token.empty()) request.fields.emplace_back("authorization", token.reveal());
    request.past_proxies = true;
    return request;
  });
  if (answer.head.status != 200) throw refusal(what, answer, dialect);
  return parse_credentials(answer.text, what);
}

std::optional<Credentials> instance_credentials(HttpClient& client) {
  if (environment_value("AWS_EC2_METADATA_DISABLED") == "true") return std::nullopt;
  std::string endpoint = environment_value("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) {
    endpoint = environment_value("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE") == "IPv6"
                   ? "http://[fd00:ec2::254]"
                   : "http://169.254.169.254";
  }
  auto address = parse_address(endpoint);
  if (!address) {
    throw Error(ErrorCode::kUsage, "AWS_EC2_METADATA_SERVICE_ENDPOINT is no URL of http");
  }
  return InstanceService(client, *std::move(address)).ask();
}

}  // namespace fsdp::formats
