// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/web_store.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

const std::string kContent = "0123456789";

// Answers as a server of files does.
HttpReply serve(const HttpRequestSeen& seen) {
  const std::string range = seen.field("range");
  if (range.empty()) return {200, {{"ETag", "\"v\""}}, kContent};
  const std::size_t first = std::stoul(range.substr(6));
  const std::size_t last = std::stoul(range.substr(range.find('-') + 1));
  return {
      206,
      {{"ETag", "\"v\""},
       {"Content-Range", "bytes " + std::to_string(first) + "-" + std::to_string(last) + "/10"}},
      kContent.substr(first, last - first + 1)};
}

class WebStoreTest : public ::testing::Test {
 protected:
  std::string read(const std::string& url, const StoredFile& file, std::uint64_t offset) {
    std::array<std::byte, 4> out{};
    store_->read(url, file, offset, out);
    return {reinterpret_cast<const char*>(out.data()), out.size()};
  }

  test::Environment environment_{test::store_environment({{"FSDP_CKPT_NETWORK_TRIES", "3"}})};
  std::unique_ptr<Store> store_ = web_store();
};

TEST_F(WebStoreTest, FindsReadsAndFetches) {
  HttpServer server([](const HttpRequestSeen& seen) {
    return seen.target == "/a%20b/%3D%2Bc%41" ? serve(seen) : HttpReply{404};
  });
  const std::string url = server.url() + "/a b/=+c%41";
  const auto file = store_->find(url);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 10U);
  EXPECT_EQ(file->version, "v");
  EXPECT_EQ(read(url, *file, 3), "3456");
  EXPECT_EQ(server.seen().back().field("if-match"), "\"v\"");
  EXPECT_EQ(store_->fetch(url, 10)->bytes.size(), 10U);
  EXPECT_FALSE(store_->find(server.url() + "/none"));
  EXPECT_FALSE(store_->fetch(server.url() + "/none", 10));
  EXPECT_EQ(store_->list(server.url()), std::nullopt);
}

TEST_F(WebStoreTest, FindsWhereHeadIsNotAnswered) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.method == "HEAD") return HttpReply{405};
    if (seen.target == "/empty") return HttpReply{416, {{"Content-Range", "bytes */0"}}};
    return seen.target == "/none" ? HttpReply{404} : serve(seen);
  });
  EXPECT_EQ(store_->find(server.url() + "/a")->bytes, 10U);
  EXPECT_EQ(store_->find(server.url() + "/empty")->bytes, 0U);
  EXPECT_FALSE(store_->find(server.url() + "/none"));
}

TEST_F(WebStoreTest, ReadsFromWhereItWasRedirectedToAsLongAsThatLasts) {
  std::atomic<bool> lasts{true};
  HttpServer other([&](const HttpRequestSeen& seen) {
    return lasts || seen.target == "/new" ? serve(seen) : HttpReply{403};
  });
  HttpServer server([&](const HttpRequestSeen&) {
    return HttpReply{302, {{"Location", other.url() + (lasts ? "/old?signature=1" : "/new")}}};
  });
  const StoredFile file{10, "v", 0};
  const std::string url = server.url() + "/a";
  EXPECT_EQ(read(url, file, 0), "0123");
  EXPECT_EQ(read(url, file, 4), "4567");
  EXPECT_EQ(server.seen().size(), 1U);
  lasts = false;
  EXPECT_EQ(read(url, file, 5), "5678");
  EXPECT_EQ(server.seen().size(), 2U);
  EXPECT_EQ(other.seen().back().target, "/new");
}

TEST_F(WebStoreTest, NoticesAnotherVersion) {
  HttpServer server([](const HttpRequestSeen& seen) { return serve(seen); });
  test::expect_error(ErrorCode::kChanged, "its ETag was 'w' and is 'v'", [&] {
    read(server.url() + "/a", {10, "w", 0}, 0);
  });
}

TEST_F(WebStoreTest, ShowsNoSecretsOfUrls) {
  const auto message = [&](const std::string& url) {
    try {
      store_->find(url);
    } catch (const Error& error) {
      EXPECT_EQ(code_name(error.code()), "USAGE");
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_TRUE(
      message("https://h/a?X-Amz-Signature=hidden").starts_with("https://h/a?...: has a query"));
  for (const char* url : {"https://me:hidden@h/a", "https://me:hidden@h", "https://h/a?hidden"}) {
    EXPECT_NE(message(url), "") << url;
    EXPECT_EQ(message(url).find("hidden"), std::string::npos) << message(url);
  }
}

TEST_F(WebStoreTest, IsOnlyRead) {
  const auto refused = [](auto&& body) {
    test::expect_error(ErrorCode::kUnsupported, "https://h/a: cannot be written", body);
  };
  refused([&] { store_->upload("https://h/a", 1); });
  refused([&] { store_->put("https://h/a", {}, false); });
  refused([&] { store_->remove("https://h/a"); });
}

}  // namespace
}  // namespace fsdp::formats
