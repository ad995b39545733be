// SPDX-License-Identifier: Apache-2.0
#include "formats/http/exchange.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

constexpr NetworkLimits kLimits{5, std::chrono::seconds(10), std::chrono::seconds(1)};

class Exchange : public ::testing::Test {
 protected:
  HttpAnswer ask(const std::string& url) {
    Patience patience("the place", kLimits);
    return exchange(client_, patience, dialect_, [&] { return HttpRequest{"GET", url}; });
  }
  HttpAnswer follow_from(const std::string& url) {
    Patience patience("the place", kLimits);
    return follow(client_, patience, dialect_, *parse_address(url),
                  [](const Address& address, bool at_home) {
                    HttpRequest request{"GET", address.text()};
                    if (at_home) request.fields.emplace_back("authorization", "secret");
                    return request;
                  });
  }

  test::Environment environment_{test::store_environment({})};
  HttpClient client_;
  Dialect dialect_;
};

TEST_F(Exchange, AsksAgainWhatPasses) {
  std::atomic<int> count{0};
  HttpServer server([&](const HttpRequestSeen&) {
    switch (count++) {
      case 0:
        return HttpReply{503, {{"Retry-After", "0"}}};
      case 1:
        return HttpReply{200, {}, {}, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123"};
      case 2:
        return HttpReply{500};
      default:
        return HttpReply{200, {}, "yes"};
    }
  });
  EXPECT_EQ(ask(server.url()).text, "yes");
  EXPECT_EQ(count, 4);
}

TEST_F(Exchange, LeavesRefusalsAlone) {
  std::atomic<int> count{0};
  HttpServer server([&](const HttpRequestSeen& seen) {
    ++count;
    return HttpReply{std::stoi(seen.target.substr(1))};
  });
  for (const int status : {400, 401, 403, 404, 412, 416, 501}) {
    EXPECT_EQ(ask(server.url() + "/" + std::to_string(status)).head.status, status);
  }
  EXPECT_EQ(count, 7);
}

TEST_F(Exchange, EndsAfterTheTries) {
  HttpServer server([](const HttpRequestSeen&) { return HttpReply{503}; });
  test::expect_error(ErrorCode::kNetwork, "the place: the server answers 503; tried 5 times in",
                     [&] { ask(server.url()); });
  EXPECT_EQ(server.seen().size(), 5U);
}

TEST_F(Exchange, WaitsAsLongAsItIsToldTo) {
  HttpServer server([](const HttpRequestSeen&) { return HttpReply{429, {{"Retry-After", "60"}}}; });
  test::expect_error(ErrorCode::kNetwork, "the place: the server answers 429",
                     [&] { ask(server.url()); });
  EXPECT_EQ(server.seen().size(), 1U);
}

TEST_F(Exchange, KeepsCredentialsAtHome) {
  HttpServer other([](const HttpRequestSeen&) { return HttpReply{200, {}, "other"}; });
  HttpServer server([&](const HttpRequestSeen& seen) {
    if (seen.target == "/a") return HttpReply{302, {{"Location", "/b"}}};
    return HttpReply{307, {{"Location", other.url() + "/c"}}};
  });
  EXPECT_EQ(follow_from(server.url() + "/a").text, "other");
  ASSERT_EQ(server.seen().size(), 2U);
  EXPECT_EQ(server.seen()[1].target, "/b");
  EXPECT_EQ(server.seen()[1].field("authorization"), "secret");
  ASSERT_EQ(other.seen().size(), 1U);
  EXPECT_FALSE(other.seen()[0].has("authorization"));
}

TEST_F(Exchange, FollowsNoMoreThanFiveAndNoOtherScheme) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.target == "/file")
      return HttpReply{302, {{"Location", "file:///etc/passwd?key=secret"}}};
    return HttpReply{302, {{"Location", "/again"}}};
  });
  test::expect_error(ErrorCode::kNetwork, "the place: the server redirects more than 5 times",
                     [&] { follow_from(server.url() + "/"); });
  EXPECT_EQ(server.seen().size(), 6U);
  test::expect_error(ErrorCode::kNetwork,
                     "the server redirects to 'file:///etc/passwd', which is not followed",
                     [&] { follow_from(server.url() + "/file"); });
}

TEST_F(Exchange, NamesRefusals) {
  const auto code = [&](int status) {
    HttpAnswer answer;
    answer.head.status = status;
    return refusal("u", answer, dialect_).code();
  };
  EXPECT_EQ(code(401), ErrorCode::kAccess);
  EXPECT_EQ(code(403), ErrorCode::kAccess);
  EXPECT_EQ(code(404), ErrorCode::kNotFound);
  EXPECT_EQ(code(412), ErrorCode::kChanged);
  EXPECT_EQ(code(416), ErrorCode::kChanged);
  EXPECT_EQ(code(400), ErrorCode::kNetwork);
}

}  // namespace
}  // namespace fsdp::formats
