// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/exchange.h"

#include <csignal>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using std::chrono::seconds;
using test::expect_error;
using test::HttpServer;
using test::RawReply;
using test::Then;
using test::whole_answer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

// Keeps the bytes of the last answer, and wants them to be of this range.
class RangeSink final : public HttpSink {
 public:
  explicit RangeSink(ContentRange wanted) : wanted_(wanted) {}
  std::string bytes;
  void begin(const HttpHead& head) override {
    bytes.clear();
    const std::string* field = head.find("content-range");
    const auto range = field == nullptr ? std::nullopt : parse_content_range(*field);
    if (!range || range->first != wanted_.first || range->last != wanted_.last) {
      throw TransferError("another range", 1000);
    }
  }
  bool take(std::span<const std::byte> piece) override {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return true;
  }
  void end() override {
    if (bytes.size() != wanted_.last - wanted_.first + 1) throw TransferError("too few", 1000);
  }

 private:
  ContentRange wanted_;
};

class ExchangeTest : public testing::Test {
 protected:
  ExchangeTest() {
    for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) ::unsetenv(name);
  }
  ~ExchangeTest() override { interrupt_signal = 0; }

  HttpAnswer ask(const HttpServer& server, HttpSink* sink = nullptr) {
    return exchange(
        client_, patience_, dialect_,
        [&] {
          ++made_;
          HttpRequest request;
          request.url = server.url("/k");
          return request;
        },
        sink);
  }
  // Asks for /k of this server, with credentials as long as they are that host's.
  HttpAnswer ask_on(const HttpServer& server) {
    return follow(
        client_, patience_, dialect_, *parse_address(server.url("/k")),
        [](const Address& address, bool at_home) {
          HttpRequest request;
          request.url = address.text();
          if (at_home) request.fields = {{"authorization", "Bearer t0ken"}};
          return request;
        },
        nullptr, [this](const HttpHead& head) { redirects_.push_back(head.status); });
  }

  HttpClient client_;
  Dialect dialect_;
  Patience patience_{"s3://b/k", {3, seconds(20), seconds(1)}};
  int made_ = 0;
  std::vector<int> redirects_;
};

TEST_F(ExchangeTest, a_refusal_that_passes_is_asked_again) {
  HttpServer server({{whole_answer(503, "slow down")}, {whole_answer(200, "data")}});
  EXPECT_EQ(ask(server).text, "data");
  EXPECT_EQ(made_, 2);  // each try is signed anew
}

TEST_F(ExchangeTest, which_refusals_pass) {
  for (const int status : {408, 425, 429, 500, 502, 503, 504}) {
    EXPECT_TRUE(dialect_.passes({{status, {}}, ""})) << status;
  }
  for (const int status : {200, 301, 400, 401, 403, 404, 409, 412, 416, 501, 505}) {
    EXPECT_FALSE(dialect_.passes({{status, {}}, ""})) << status;
  }
}

TEST_F(ExchangeTest, another_refusal_is_an_answer) {
  HttpServer server({{whole_answer(404, "none")}, {whole_answer(200, "data")}});
  EXPECT_EQ(ask(server).head.status, 404);
  EXPECT_EQ(made_, 1);
}

TEST_F(ExchangeTest, refusals_without_an_end_are_told_with_their_number) {
  HttpServer server(std::vector<RawReply>(9, {whole_answer(503, "busy")}));
  expect_error(ErrorCode::kNetwork, "s3://b/k: the server answers 503; tried 3 times in ",
               [&] { ask(server); });
  EXPECT_EQ(server.seen().size(), 3U);
}

TEST_F(ExchangeTest, a_connection_that_breaks_is_made_again) {
  const std::string half = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nda";
  HttpServer server({{half, Then::kReset}, {half, Then::kClose}, {whole_answer(200, "data")}});
  EXPECT_EQ(ask(server).text, "data");
  EXPECT_EQ(made_, 3);
}

TEST_F(ExchangeTest, a_body_that_stalls_is_asked_for_again) {
  HttpServer server({{"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nda", Then::kStall},
                     {whole_answer(200, "data")}});
  const auto begin = Clock::now();
  EXPECT_EQ(ask(server).text, "data");
  EXPECT_LT(Clock::now() - begin, seconds(6));
}

TEST_F(ExchangeTest, a_server_that_never_answers_is_told_by_the_deadline) {
  HttpServer server(std::vector<RawReply>(20, {"", Then::kStall}));
  patience_ = Patience("u", {1000, seconds(2), seconds(20)});
  const auto begin = Clock::now();
  expect_error(ErrorCode::kNetwork, "u: ", [&] { ask(server); });
  EXPECT_LT(Clock::now() - begin, seconds(5));
}

TEST_F(ExchangeTest, no_server_is_told) {
  std::string url;
  { url = HttpServer(std::vector<RawReply>()).url("/"); }
  expect_error(ErrorCode::kNetwork, "; tried 3 times in ", [&] {
    exchange(client_, patience_, dialect_, [&] {
      HttpRequest request;
      request.url = url;
      return request;
    });
  });
}

TEST_F(ExchangeTest, a_wrong_range_and_too_few_bytes_are_asked_for_again) {
  HttpServer server({{whole_answer(206, "abcd", "content-range: bytes 1-4/9\r\n")},
                     {whole_answer(206, "abc", "content-range: bytes 0-3/9\r\n")},
                     {whole_answer(206, "abcd", "content-range: bytes 0-3/9\r\n")}});
  RangeSink sink({0, 3, {}});
  EXPECT_EQ(ask(server, &sink).head.status, 206);
  EXPECT_EQ(sink.bytes, "abcd");
  EXPECT_EQ(made_, 3);
}

TEST_F(ExchangeTest, a_whole_file_in_place_of_a_range_is_told) {
  HttpServer server(std::vector<RawReply>(5, {whole_answer(200, "abcdefghi")}));
  RangeSink sink({0, 3, {}});
  expect_error(ErrorCode::kNetwork, "s3://b/k: another range; tried 3 times",
               [&] { ask(server, &sink); });
}

TEST_F(ExchangeTest, waits_as_long_as_the_server_asks) {
  HttpServer server({{whole_answer(503, "", "retry-after: 1\r\n")}, {whole_answer(200, "")}});
  const auto begin = Clock::now();
  EXPECT_EQ(ask(server).head.status, 200);
  EXPECT_GE(Clock::now() - begin, seconds(1));
}

TEST_F(ExchangeTest, a_wait_beyond_the_deadline_is_not_begun) {
  const char* fields[] = {"retry-after: 3600\r\n", "retry-after: 9223372036854775807\r\n",
                          "retry-after: Fri, 31 Dec 2199 23:59:59 GMT\r\n"};
  for (const char* field : fields) {
    HttpServer server({{whole_answer(429, "", field)}, {whole_answer(200, "")}});
    patience_.progressed();
    const auto begin = Clock::now();
    expect_error(ErrorCode::kNetwork, "s3://b/k: the server answers 429", [&] { ask(server); });
    EXPECT_LT(Clock::now() - begin, seconds(5)) << field;
  }
}

TEST_F(ExchangeTest, a_wait_that_makes_no_sense_is_none) {
  const char* fields[] = {"retry-after: -5\r\n", "retry-after: soon\r\n",
                          "retry-after: 99999999999999999999\r\n",
                          "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n"};
  for (const char* field : fields) {
    HttpServer server({{whole_answer(503, "", field)}, {whole_answer(200, "")}});
    patience_.progressed();
    const auto begin = Clock::now();
    EXPECT_EQ(ask(server).head.status, 200) << field;
    EXPECT_LT(Clock::now() - begin, seconds(5)) << field;
  }
}

TEST_F(ExchangeTest, a_redirect_is_followed_with_credentials_to_the_same_host_alone) {
  HttpServer other({{whole_answer(200, "data")}});
  HttpServer server({{whole_answer(307, "", "location: /moved?x=1\r\n")},
                     {whole_answer(302, "", "location: " + other.url("/cdn") + "\r\n")}});
  EXPECT_EQ(ask_on(server).text, "data");
  const auto seen = server.seen();
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[1].line, "GET /moved?x=1 HTTP/1.1");
  EXPECT_THAT(seen[1].head, HasSubstr("authorization: bearer t0ken"));
  EXPECT_THAT(other.seen().at(0).head, Not(HasSubstr("authorization")));
  EXPECT_THAT(redirects_, ElementsAre(307, 302));
}

TEST_F(ExchangeTest, the_same_host_by_another_name_or_port_is_another_one) {
  HttpServer server({{whole_answer(200, "data")}});
  const std::string port = server.authority().substr(server.authority().find(':'));
  HttpServer first({{whole_answer(301, "", "location: http://localhost" + port + "/k\r\n")}});
  EXPECT_EQ(ask_on(first).text, "data");
  EXPECT_THAT(server.seen().at(0).head, Not(HasSubstr("authorization")));
}

TEST_F(ExchangeTest, redirects_without_an_end_are_told) {
  HttpServer server(std::vector<RawReply>(20, {whole_answer(302, "", "location: /k\r\n")}));
  expect_error(ErrorCode::kNetwork, "s3://b/k: the server redirects more than 5 times",
               [&] { ask_on(server); });
  EXPECT_EQ(server.seen().size(), 6U);
}

TEST_F(ExchangeTest, a_redirect_that_is_not_followed_is_told_without_its_query) {
  HttpServer server({{whole_answer(302, "", "location: file:///etc/passwd?signature=s3cret\r\n")}});
  try {
    ask_on(server);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("redirects to 'file:///etc/passwd', which is not followed"));
    EXPECT_THAT(e.what(), Not(HasSubstr("s3cret")));
  }
}

TEST_F(ExchangeTest, only_a_redirect_with_a_location_leads_on) {
  const Address from = *parse_address("https://a.org/x");
  const HttpHead elsewhere{302, {{"location", "https://b.org/y"}}};
  EXPECT_EQ(next_address("p", from, elsewhere, 0)->text(), "https://b.org/y");
  EXPECT_FALSE(next_address("p", from, {302, {}}, 0).has_value());
  for (const int status : {200, 201, 300, 304, 305, 400}) {
    EXPECT_FALSE(next_address("p", from, {status, elsewhere.fields}, 0).has_value()) << status;
  }
  expect_error(ErrorCode::kNetwork, "p: the server redirects to 'http://b.org/', which is not",
               [&] {
                 next_address("p", from, {302, {{"location", "http://b.org/"}}}, 0);
               });
}

TEST_F(ExchangeTest, each_refusal_has_its_code) {
  const auto code = [&](int status) { return refusal("p", {{status, {}}, ""}, dialect_).code(); };
  for (const int status : {401, 403, 407}) EXPECT_EQ(code(status), ErrorCode::kAccess);
  for (const int status : {404, 410}) EXPECT_EQ(code(status), ErrorCode::kNotFound);
  for (const int status : {412, 416}) EXPECT_EQ(code(status), ErrorCode::kChanged);
  for (const int status : {302, 400, 409, 500}) EXPECT_EQ(code(status), ErrorCode::kNetwork);
  EXPECT_STREQ(refusal("p", {{403, {}}, ""}, dialect_).what(), "p: the server refuses: 403");
}

TEST_F(ExchangeTest, an_interrupt_ends_the_tries) {
  HttpServer server(std::vector<RawReply>(9, {whole_answer(503, "busy")}));
  interrupt_signal = SIGINT;
  expect_error(ErrorCode::kInterrupted, "", [&] { ask(server); });
  EXPECT_EQ(server.seen().size(), 0U);
}

}  // namespace
}  // namespace fsdp::formats
