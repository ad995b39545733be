// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_client.h"

#include <gtest/gtest.h>

#include "formats/bytes/remote/digests.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

constexpr NetworkLimits kLimits{4, std::chrono::seconds(10), std::chrono::seconds(1)};

S3Settings settings_for(const HttpServer& server) {
  S3Settings settings;
  settings.endpoint = parse_address(server.url());
  settings.endpoint->target.clear();
  settings.region = "eu-central-1";
  return settings;
}

std::string refusal_of(const std::string& code, const std::string& more = {}) {
  return "<Error><Code>" + code + "</Code>" + more + "</Error>";
}

class S3ClientTest : public ::testing::Test {
 protected:
  std::unique_ptr<S3Client> client_of(const HttpServer& server,
                                      S3Settings (*mend)(S3Settings) = nullptr) {
    S3Settings settings = settings_for(server);
    if (mend != nullptr) settings = mend(settings);
    return std::make_unique<S3Client>(settings, [this](HttpClient&) {
      return Credentials{"id" + std::to_string(++found_), Secret("key"), Secret("token"), 0};
    });
  }
  static HttpAnswer send(S3Client& client, S3Request request) {
    Patience patience("u", kLimits);
    return client.send(patience, std::move(request));
  }

  test::Environment environment_{test::store_environment({})};
  int found_ = 0;
};

TEST_F(S3ClientTest, SignsEveryRequest) {
  HttpServer server([](const HttpRequestSeen&) { return HttpReply{200, {}, "yes"}; });
  const auto client = client_of(server, [](S3Settings settings) {
    settings.requester_pays = true;
    return settings;
  });
  S3Request request{"PUT", {"bkt", "a b"}, {{"partNumber", "1"}}, {{"content-md5", "x"}}};
  const std::string body = "body";
  request.body = std::as_bytes(std::span(body));
  EXPECT_EQ(send(*client, request).text, "yes");
  const HttpRequestSeen seen = server.seen().at(0);
  EXPECT_EQ(seen.target, "/bkt/a%20b?partNumber=1");
  EXPECT_EQ(seen.body, "body");
  EXPECT_EQ(seen.field("x-amz-content-sha256"), sha256_text("body"));
  EXPECT_EQ(seen.field("x-amz-security-token"), "token");
  EXPECT_EQ(seen.field("x-amz-request-payer"), "requester");
  EXPECT_TRUE(seen.field("authorization").starts_with("AWS4-HMAC-SHA256 Credential=id1/"));
  EXPECT_NE(seen.field("authorization")
                .find("/eu-central-1/s3/aws4_request, "
                      "SignedHeaders=content-md5;host;x-amz-content-sha256;x-amz-date;"
                      "x-amz-request-payer;x-amz-security-token,"),
            std::string::npos);
}

TEST_F(S3ClientTest, SendsNothingSecretWithoutCredentials) {
  HttpServer server([](const HttpRequestSeen&) { return HttpReply{}; });
  S3Client client(settings_for(server), [](HttpClient&) { return Credentials(); });
  EXPECT_EQ(send(client, {"GET", {"bkt", "k"}}).head.status, 200);
  EXPECT_FALSE(server.seen().at(0).has("authorization"));
}

TEST_F(S3ClientTest, LooksForCredentialsAgainOnceWhenTheyExpired) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.field("authorization").find("Credential=id1/") != std::string::npos ||
        seen.target == "/bkt/never") {
      return HttpReply{400, {}, refusal_of("ExpiredToken")};
    }
    return HttpReply{200, {}, "yes"};
  });
  const auto client = client_of(server);
  EXPECT_EQ(send(*client, {"GET", {"bkt", "k"}}).text, "yes");
  EXPECT_EQ(found_, 2);
  EXPECT_EQ(send(*client, {"GET", {"bkt", "never"}}).head.status, 400);
  EXPECT_EQ(found_, 3);
}

TEST_F(S3ClientTest, AHeadThatIsRefusedIsAskedForItsReason) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.method == "HEAD") return HttpReply{403};
    EXPECT_EQ(seen.field("range"), "bytes=0-0");
    return HttpReply{403, {}, refusal_of("AccessDenied", "<Message>no</Message>")};
  });
  const auto client = client_of(server);
  const HttpAnswer answer = send(*client, {"HEAD", {"bkt", "k"}});
  EXPECT_EQ(client->dialect().words(answer), "403 'AccessDenied': 'no'");
}

TEST_F(S3ClientTest, GoesToTheRegionThatTheServerNames) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.field("authorization").find("/eu-west-3/") != std::string::npos)
      return HttpReply{200, {}, "yes"};
    if (seen.target.starts_with("/one/"))
      return HttpReply{301, {{"x-amz-bucket-region", "eu-west-3"}}};
    if (seen.target.starts_with("/two/")) {
      return HttpReply{
          400, {}, refusal_of("AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>")};
    }
    return HttpReply{
        400, {}, refusal_of("AuthorizationHeaderMalformed", "<Region>eu/..%0d%0a</Region>")};
  });
  const auto client = client_of(server);
  EXPECT_EQ(send(*client, {"HEAD", {"one", "k"}}).head.status, 200);
  EXPECT_EQ(send(*client, {"GET", {"two", "k"}}).text, "yes");
  EXPECT_EQ(server.seen().size(), 4U);
  EXPECT_EQ(send(*client, {"GET", {"two", "l"}}).text, "yes");
  EXPECT_EQ(server.seen().size(), 5U);
  EXPECT_EQ(send(*client, {"GET", {"three", "k"}}).head.status, 400);
}

TEST_F(S3ClientTest, KeepsCredentialsAtHomeAndBodiesToo) {
  HttpServer other([](const HttpRequestSeen&) { return HttpReply{200, {}, "other"}; });
  HttpServer server([&](const HttpRequestSeen& seen) {
    return HttpReply{307, {{"Location", other.url() + seen.target}}};
  });
  const auto client = client_of(server);
  EXPECT_EQ(send(*client, {"GET", {"bkt", "k"}}).text, "other");
  ASSERT_EQ(other.seen().size(), 1U);
  const HttpRequestSeen seen = other.seen()[0];
  for (const auto& [name, value] : seen.fields) {
    EXPECT_FALSE(name == "authorization" || name.starts_with("x-amz-")) << name;
  }
  EXPECT_EQ(send(*client, {"PUT", {"bkt", "k"}}).head.status, 307);
  EXPECT_EQ(other.seen().size(), 1U);
}

TEST_F(S3ClientTest, TriesToTakeBackAndIsSilent) {
  std::atomic<int> count{0};
  HttpServer server([&](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.method, "DELETE");
    return ++count == 1 ? HttpReply{503} : HttpReply{204};
  });
  const auto client = client_of(server);
  client->try_to_send({"DELETE", {"bkt", "k"}, {{"uploadId", "7"}}});
  EXPECT_EQ(count, 2);
  S3Settings nowhere;
  nowhere.endpoint = Address{"http", "127.0.0.1:1", ""};
  S3Client lost(nowhere,
                [](HttpClient&) -> Credentials { throw Error(ErrorCode::kAccess, "none"); });
  lost.try_to_send({"DELETE", {"bkt", "k"}});
}

}  // namespace
}  // namespace fsdp::formats
