// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/credential_services.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/exchange.h"
#include "formats/bytes/remote/service_tokens.h"

namespace fsdp::formats {
namespace {

// Parses the answer of the services for containers and machines.
Credentials parse_credentials(const std::string& text, const std::string& what) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error&) {
    throw no_credentials(what);  // the parser's message may show a part of the answer
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

}  // namespace

std::optional<Credentials> container_credentials(HttpClient& client) {
  const std::string relative = environment_value("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = environment_value("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return std::nullopt;
  const auto address = parse_address(relative.empty() ? full : "http://169.254.170.2" + relative);
  const std::string what = "the credentials of the container";
  if (!address) throw Error(ErrorCode::kUsage, what + ": AWS_CONTAINER_CREDENTIALS_* is not a URL");
  require_private(*address, "the service of the container");
  const std::string file = environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  const Secret token = file.empty() ? Secret(environment_value("AWS_CONTAINER_AUTHORIZATION_TOKEN"))
                                    : read_token(file);
  if (token.reveal().find_first_of("\r\n") != std::string::npos)
    throw Error(ErrorCode::kUsage, what + ": the token has more than one line");
  Patience patience(what, service_limits());
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
  const auto address = parse_address(endpoint);
  if (!address)
    throw Error(ErrorCode::kUsage, "AWS_EC2_METADATA_SERVICE_ENDPOINT is not an http URL");
  const auto send = [&](const char* method, const std::string& path,
                        std::pair<std::string, std::string> field) -> std::optional<HttpAnswer> {
    HttpRequest request;
    request.method = method;
    request.url = Address{address->scheme, address->authority, path}.text();
    request.fields = {std::move(field)};
    request.timeout = std::chrono::seconds(1);
    request.past_proxies = true;
    // Most machines are not in a cloud: a service that does not answer at once is absent.
    for (int tries = 0; tries < 2; ++tries) {
      try {
        HttpAnswer answer = client.send(request, nullptr);
        if (answer.head.status < 500) return answer;
      } catch (const TransferError&) {
        continue;
      }
    }
    return std::nullopt;
  };
  const auto token =
      send("PUT", "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds", "21600"});
  if (!token || token->head.status != 200) return std::nullopt;
  const std::pair<std::string, std::string> field{"x-aws-ec2-metadata-token", token->text};
  const std::string path = "/latest/meta-data/iam/security-credentials/";
  const auto roles = send("GET", path, field);
  if (!roles || roles->head.status != 200) return std::nullopt;
  const std::string role = roles->text.substr(0, roles->text.find_first_of("\r\n"));
  if (role.empty()) return std::nullopt;
  const auto answer = send("GET", path + encode_path(role), field);
  const std::string what = "the credentials of this machine's role";
  if (!answer) throw Error(ErrorCode::kNetwork, what + ": the metadata service stopped answering");
  if (answer->head.status != 200) throw refusal(what, *answer, Dialect());
  return parse_credentials(answer->text, what);
}

}  // namespace fsdp::formats
