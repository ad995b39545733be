// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_store.h"

#include <array>
#include <atomic>

#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/store/deep_listing.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

HttpReply refuses(int status, const std::string& code) {
  return {status, {}, "<Error><Code>" + code + "</Code></Error>"};
}

std::vector<std::pair<std::string, std::string>> variables(const HttpServer& server) {
  return test::store_environment({{"AWS_ENDPOINT_URL", server.url()},
                                  {"AWS_ACCESS_KEY_ID", "id"},
                                  {"AWS_SECRET_ACCESS_KEY", "hidden-key"},
                                  {"FSDP_CKPT_NETWORK_TRIES", "3"}});
}

TEST(S3Store, FindsAndReads) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.target == "/bkt/none") return HttpReply{404};
    if (seen.method == "HEAD") return HttpReply{200, {{"Content-Length", "10"}, {"ETag", "\"v\""}}};
    if (!seen.has("range")) return HttpReply{200, {{"ETag", "\"v\""}}, "0123456789"};
    EXPECT_EQ(seen.field("range"), "bytes=2-5");
    if (seen.field("if-match") != "\"v\"") return refuses(412, "PreconditionFailed");
    return HttpReply{206, {{"Content-Range", "bytes 2-5/10"}, {"ETag", "\"v\""}}, "2345"};
  });
  const test::Environment environment(variables(server));
  const auto store = amazon_store();
  const auto file = store->find("s3://bkt/a b");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 10U);
  EXPECT_EQ(file->version, "v");
  EXPECT_EQ(server.seen()[0].target, "/bkt/a%20b");
  EXPECT_FALSE(store->find("s3://bkt/none"));
  EXPECT_FALSE(store->find("s3://bkt"));
  std::array<std::byte, 4> out{};
  store->read("s3://bkt/a b", *file, 2, out);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), 4), "2345");
  test::expect_error(ErrorCode::kChanged,
                     "s3://bkt/a b: changed while it was read: 412 'PreconditionFailed'", [&] {
                       store->read("s3://bkt/a b", {10, "w", 0}, 2, out);
                     });
  test::expect_error(ErrorCode::kNotFound, "s3://bkt/none: no such file",
                     [&] { store->read("s3://bkt/none", *file, 2, out); });
  const auto content = store->fetch("s3://bkt/a b", 10);
  ASSERT_TRUE(content);
  EXPECT_EQ(content->bytes.size(), 10U);
  EXPECT_EQ(content->file.version, "v");
  EXPECT_FALSE(store->fetch("s3://bkt/none", 10));
  test::expect_error(ErrorCode::kLimitSize, "s3://bkt/a b: has 10 bytes",
                     [&] { store->fetch("s3://bkt/a b", 9); });
}

TEST(S3Store, ListsPageByPage) {
  HttpServer server([](const HttpRequestSeen& seen) {
    if (seen.path() == "/none") return refuses(404, "NoSuchBucket");
    if (seen.path() == "/odd") return HttpReply{200, {}, "<html/>"};
    const std::string query = seen.target.substr(seen.target.find('?'));
    const bool second = query.find("continuation-token=a%2Fb") != std::string::npos;
    const std::string base = "delimiter=%2F&encoding-type=url&list-type=2&prefix=runs%2F";
    EXPECT_EQ(query, second ? "?continuation-token=a%2Fb&" + base : "?" + base);
    return HttpReply{200,
                     {},
                     second ? "<ListBucketResult><CommonPrefixes><Prefix>runs/f/</Prefix></"
                              "CommonPrefixes></ListBucketResult>"
                            : "<ListBucketResult><Contents><Key>runs/a</Key><Size>3</Size></"
                              "Contents><IsTruncated>true"
                              "</IsTruncated><NextContinuationToken>a/b</NextContinuationToken></"
                              "ListBucketResult>"};
  });
  const test::Environment environment(variables(server));
  const auto store = amazon_store();
  const auto entries = store->list("s3://bkt/runs");
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].file->bytes, 3U);
  EXPECT_EQ((*entries)[1].name, "f");
  EXPECT_FALSE((*entries)[1].file);
  test::expect_error(ErrorCode::kNotFound, "s3://none/runs: no such bucket: 404 'NoSuchBucket'",
                     [&] { store->list("s3://none/runs"); });
  test::expect_error(ErrorCode::kNetwork,
                     "s3://odd/runs: the answer is XML, but not a list of files",
                     [&] { store->list("s3://odd/runs"); });
}

TEST(S3Store, ListsWhatIsBelowInSoManyAnswers) {
  HttpServer server([](const HttpRequestSeen& seen) {
    const std::string base = "encoding-type=url&list-type=2&prefix=runs%2F";
    const bool first = seen.target == "/bkt?" + base;
    EXPECT_TRUE(first || seen.target == "/bkt?continuation-token=t1&" + base) << seen.target;
    const std::string key = first ? "runs/1/a" : "runs/2/b";
    return HttpReply{200,
                     {},
                     "<ListBucketResult><Contents><Key>" + key +
                         "</Key><Size>1</Size></Contents><IsTruncated>true</IsTruncated>"
                         "<NextContinuationToken>" +
                         (first ? "t1" : "t2") + "</NextContinuationToken></ListBucketResult>"};
  });
  const test::Environment environment(variables(server));
  const auto store = amazon_store();
  const auto* const deep = dynamic_cast<const DeepListing*>(store.get());
  ASSERT_NE(deep, nullptr);
  const auto below = deep->list_below("s3://bkt/runs", 2);
  EXPECT_FALSE(below.whole);
  ASSERT_EQ(below.files.size(), 2U);
  EXPECT_EQ(below.files[1].name, "2/b");
  EXPECT_EQ(server.seen().size(), 2U);
}

TEST(S3Store, RemovesAndRefuses) {
  HttpServer server([](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.method, "DELETE");
    return seen.target == "/bkt/mine" ? HttpReply{204} : refuses(403, "AccessDenied");
  });
  const test::Environment environment(variables(server));
  const auto store = amazon_store();
  store->remove("s3://bkt/mine");
  interrupt_signal = 15;
  store->remove("s3://bkt/mine");
  interrupt_signal = 0;
  try {
    store->remove("s3://bkt/other");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(code_name(error.code()), "ACCESS");
    EXPECT_EQ(std::string(error.what()), "s3://bkt/other: the server refuses: 403 'AccessDenied'");
  }
  test::expect_error(ErrorCode::kUsage, "s3://bkt: names a bucket, but no file in it",
                     [&] { store->remove("s3://bkt"); });
}

// A file that is not there is none to remove, unless the server lists it.
TEST(S3Store, Believes404OfARemovalAsLongAsTheFileIsNotListed) {
  std::atomic<int> answers{0};
  HttpServer server([&](const HttpRequestSeen& seen) {
    if (seen.method == "DELETE") {
      ++answers;
      return seen.path() == "/bkt/slow" && answers == 3 ? HttpReply{204}
                                                        : refuses(404, "NoSuchKey");
    }
    EXPECT_EQ(seen.path(), "/bkt");
    const bool gone = seen.target.ends_with("prefix=x%2Fgone");
    return HttpReply{200,
                     {},
                     gone ? "<ListBucketResult><Contents><Key>x/gone2</Key></Contents>"
                            "</ListBucketResult>"
                          : "<ListBucketResult><Contents><Key>" +
                                seen.target.substr(seen.target.rfind('=') + 1) +
                                "</Key></Contents></ListBucketResult>"};
  });
  const test::Environment environment(variables(server));
  const auto store = amazon_store();
  store->remove("s3://bkt/x/gone");
  EXPECT_EQ(answers, 1);
  answers = 0;
  store->remove("s3://bkt/slow");
  EXPECT_EQ(answers, 3);
  test::expect_error(ErrorCode::kNetwork,
                     "s3://bkt/stays: the server lists the file, but answers its removal with 404 "
                     "'NoSuchKey'; tried 3",
                     [&] { store->remove("s3://bkt/stays"); });
}

TEST(S3Store, OfGoogle) {
  HttpServer server([](const HttpRequestSeen& seen) {
    EXPECT_NE(seen.field("authorization").find("Credential=GOOG1/"), std::string::npos);
    EXPECT_NE(seen.field("authorization").find("/auto/s3/aws4_request"), std::string::npos);
    return HttpReply{200, {{"Content-Length", "3"}}};
  });
  const test::Environment environment(test::store_environment({{"GS_ENDPOINT_URL", server.url()},
                                                               {"GS_ACCESS_KEY_ID", "GOOG1"},
                                                               {"GS_SECRET_ACCESS_KEY", "k"}}));
  EXPECT_EQ(google_store()->find("gs://bkt/a")->bytes, 3U);
  EXPECT_EQ(server.seen().at(0).target, "/bkt/a");
}

}  // namespace
}  // namespace fsdp::formats
