// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/sign.h"

#include <algorithm>
#include <string_view>

#include "formats/bytes/base/text.h"
#include "formats/bytes/http/times.h"
#include "formats/bytes/remote/digests.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

}  // namespace

void sign(HttpRequest& request, const Address& address, const Credentials& credentials,
          const SignatureScope& scope) {
  const std::string time = basic_time(scope.seconds);
  const std::string date = time.substr(0, 8);
  request.fields.emplace_back("x-amz-content-sha256", scope.payload);
  request.fields.emplace_back("x-amz-date", time);
  if (!credentials.token.empty())
    request.fields.emplace_back("x-amz-security-token", credentials.token.reveal());
  auto fields = request.fields;
  fields.emplace_back("host", address.authority);
  std::ranges::sort(fields);
  std::string lines;
  std::string names;
  for (const auto& [name, value] : fields) {
    lines.append(name).append(1, ':').append(value).append(1, '\n');
    if (!names.empty()) names += ';';
    names += name;
  }
  const std::size_t question = std::min(address.target.find('?'), address.target.size());
  const std::string_view query = std::string_view(address.target).substr(question);
  const std::string canonical =
      cat(request.method, '\n', address.target.substr(0, question), '\n',
          query.empty() ? query : query.substr(1), '\n', lines, '\n', names, '\n', scope.payload);
  const std::string place = cat(date, '/', scope.region, '/', scope.service, "/aws4_request");
  const std::string text = cat(kAlgorithm, '\n', time, '\n', place, '\n', sha256_text(canonical));
  const Secret first("AWS4" + credentials.key.reveal());
  const Secret key(hmac_sha256(
      hmac_sha256(hmac_sha256(hmac_sha256(first.reveal(), date), scope.region), scope.service),
      "aws4_request"));
  request.fields.emplace_back("authorization", cat(kAlgorithm, " Credential=", credentials.id, '/',
                                                   place, ", SignedHeaders=", names, ", Signature=",
                                                   hex_text(hmac_sha256(key.reveal(), text))));
}

}  // namespace fsdp::formats
