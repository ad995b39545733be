// SPDX-License-Identifier: Apache-2.0
#include "formats/http/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/interrupt.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;
using ::testing::HasSubstr;

class Collect final : public HttpSink {
 public:
  explicit Collect(std::size_t most = 1U << 30U) : most_(most) {}
  std::string body;
  int status = 0;
  bool ended = false;
  void begin(const HttpHead& head) override { status = head.status; }
  bool take(std::span<const std::byte> bytes) override {
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return body.size() < most_;
  }
  void end() override { ended = true; }

 private:
  std::size_t most_;
};

std::string failure_of(HttpClient& client, const HttpRequest& request, unsigned* tries = nullptr) {
  try {
    client.send(request, nullptr);
  } catch (const TransferError& error) {
    if (tries != nullptr) *tries = error.tries();
    return error.what();
  }
  return "";
}

class Http : public ::testing::Test {
 protected:
  test::Environment environment_{test::store_environment({})};
  HttpClient client_;
};

TEST_F(Http, SendsEveryMethodAsItIs) {
  HttpServer server([](const HttpRequestSeen& seen) {
    return HttpReply{200, {{"X-Method", seen.method}}, "body of " + seen.target};
  });
  const std::string body = "0123456789";
  for (const char* method : {"GET", "HEAD", "PUT", "POST", "DELETE"}) {
    HttpRequest request;
    request.method = method;
    request.url = server.url() + "/a/../b%20c?d=";
    request.fields = {{"x-a", "1"}};
    if (request.method == "PUT" || request.method == "POST")
      request.body = std::as_bytes(std::span(body));
    const HttpAnswer answer = client_.send(request, nullptr);
    EXPECT_EQ(answer.head.status, 200);
    EXPECT_EQ(*answer.head.find("x-method"), method);
    EXPECT_EQ(answer.text, request.method == "HEAD" ? "" : "body of /a/../b%20c?d=");
    const HttpRequestSeen seen = server.seen().back();
    EXPECT_EQ(seen.field("x-a"), "1");
    EXPECT_EQ(seen.body, request.body.empty() ? "" : body);
    EXPECT_FALSE(seen.has("expect"));
    EXPECT_FALSE(seen.has("content-type"));
  }
}

TEST_F(Http, GivesBodiesOfSuccessAloneToTheSink) {
  const std::string big(1 << 20, 'x');
  HttpServer server([&](const HttpRequestSeen& seen) {
    return seen.target == "/ok" ? HttpReply{200, {}, big} : HttpReply{404, {}, "not here"};
  });
  Collect ok;
  EXPECT_EQ(client_.send({"GET", server.url() + "/ok"}, &ok).text, "");
  EXPECT_EQ(ok.body, big);
  EXPECT_TRUE(ok.ended);
  Collect none;
  EXPECT_EQ(client_.send({"GET", server.url() + "/none"}, &none).text, "not here");
  EXPECT_EQ(none.status, 0);
  EXPECT_FALSE(none.ended);
  Collect some(10);
  EXPECT_EQ(client_.send({"GET", server.url() + "/ok"}, &some).head.status, 200);
  EXPECT_LT(some.body.size(), big.size());
  EXPECT_EQ(client_.send({"GET", server.url() + "/ok"}, nullptr).text, big);
  EXPECT_THROW(client_.send({"GET", server.url() + "/ok"}, nullptr, 1000), TransferError);
}

TEST_F(Http, NamesWhatWentWrong) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.target == "/cut")
      return HttpReply{200, {}, {}, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123"};
    if (seen.target == "/garbage") return HttpReply{200, {}, {}, "no HTTP at all\r\n\r\n"};
    return HttpReply{200, {}, {}, "\r"};
  });
  unsigned tries = 0;
  EXPECT_THAT(failure_of(client_, {"GET", server.url() + "/cut"}, &tries),
              HasSubstr("6 bytes remaining"));
  EXPECT_EQ(tries, 1000U);
  EXPECT_NE(failure_of(client_, {"GET", server.url() + "/garbage"}, &tries), "");
  EXPECT_EQ(tries, 5U);
  EXPECT_NE(failure_of(client_, {"GET", server.url() + "/nothing"}), "");
  EXPECT_THAT(failure_of(client_, {"GET", "http://127.0.0.1:1/"}, &tries), HasSubstr("onnect"));
  EXPECT_EQ(tries, 5U);
  EXPECT_NE(failure_of(client_, {"GET", "file:///etc/passwd"}), "");
}

TEST_F(Http, GivesUpWhoIsSilent) {
  std::atomic<bool> over{false};
  HttpServer server([&](const HttpRequestSeen&) {
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return HttpReply{};
  });
  HttpRequest request{"GET", server.url() + "/"};
  request.stall = std::chrono::seconds(1);
  EXPECT_THAT(failure_of(client_, request), HasSubstr("too slow"));
  request.stall = {};
  request.timeout = std::chrono::milliseconds(200);
  EXPECT_THAT(failure_of(client_, request), HasSubstr("timed out"));
  over = true;
}

TEST_F(Http, StopsWhenASignalCame) {
  HttpServer server([](const HttpRequestSeen&) { return HttpReply{}; });
  interrupt_signal = 2;
  test::expect_error(ErrorCode::kInterrupted, "interrupted", [&] {
    client_.send({"GET", server.url() + "/"}, nullptr);
  });
  HttpRequest request{"DELETE", server.url() + "/"};
  request.though_interrupted = true;
  EXPECT_EQ(client_.send(request, nullptr).head.status, 200);
  interrupt_signal = 0;
  EXPECT_EQ(server.seen().size(), 1U);
}

TEST_F(Http, SendsFromManyThreads) {
  HttpServer server([](const HttpRequestSeen& seen) { return HttpReply{200, {}, seen.target}; });
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 20; ++j) {
        const std::string target = "/" + std::to_string(i) + "-" + std::to_string(j);
        if (client_.send({"GET", server.url() + target}, nullptr).text == target) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

}  // namespace
}  // namespace fsdp::formats
