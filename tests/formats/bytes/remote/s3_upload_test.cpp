// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_upload.h"

#include <gtest/gtest.h>

#include "formats/bytes/remote/digests.h"
#include "formats/bytes/remote/s3_answers.h"
#include "formats/bytes/store/store.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

constexpr std::uint64_t kMiB = 1U << 20U;
const std::string kUrl = "s3://bkt/k";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// The connection ends without an answer.
const HttpReply kLost{200, {}, {}, test::RawReply{"", test::Then::kClose}};

HttpReply refuses(int status, const std::string& code) {
  return {status, {}, "<Error><Code>" + code + "</Code></Error>"};
}

// A bucket with one key.
class Bucket {
 public:
  // What to answer instead; a status of 0: nothing else.
  std::function<HttpReply(const HttpRequestSeen&)> instead;
  std::map<std::string, std::string> parts;
  std::string mark, content;
  bool there = false;
  bool aborted = false;

  HttpReply answer(const HttpRequestSeen& seen) {
    const std::scoped_lock lock(mutex_);
    if (instead) {
      HttpReply reply = instead(seen);
      if (reply.status != 0) return reply;
    }
    return plain(seen);
  }

  HttpReply plain(const HttpRequestSeen& seen) {
    const std::string query =
        seen.target.substr(std::min(seen.target.find('?'), seen.target.size()));
    if (seen.method == "POST" && query == "?uploads=") {
      pending_ = seen.field("x-amz-meta-fsdp-ckpt-upload");
      return {200,
              {},
              "<InitiateMultipartUploadResult><UploadId>u/1</UploadId></"
              "InitiateMultipartUploadResult>"};
    }
    if (seen.method == "HEAD") {
      if (!there) return {404};
      return {200,
              {{"Content-Length", std::to_string(content.size())},
               {"x-amz-meta-fsdp-ckpt-upload", mark}}};
    }
    if (seen.method == "GET") return {200, {}, "<ListBucketResult/>"};
    if (seen.method == "DELETE") {
      EXPECT_EQ(query, "?uploadId=u%2F1");
      aborted = true;
      return {204};
    }
    if (seen.has("if-none-match") && there) return refuses(412, "PreconditionFailed");
    if (seen.method == "PUT") {
      EXPECT_EQ(seen.field("content-md5"), base64_text(md5(bytes_of(seen.body))));
      if (query.empty()) {
        content = seen.body;
        mark = seen.field("x-amz-meta-fsdp-ckpt-upload");
        there = true;
      } else {
        parts[query] = seen.body;
      }
      return {200, {{"ETag", "\"e" + std::to_string(seen.body.size()) + "\""}}};
    }
    EXPECT_EQ(query, "?uploadId=u%2F1");
    if (there) return refuses(404, "NoSuchUpload");
    there = true;
    completion = seen.body;
    mark = pending_;
    for (const auto& [name, part] : parts) content += part;
    return {
        200, {}, "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"};
  }

  std::string completion;

 private:
  std::mutex mutex_;
  std::string pending_;
};

class S3UploadTest : public ::testing::Test {
 protected:
  std::size_t count(const std::string& method) const {
    std::size_t found = 0;
    for (const auto& seen : server_.seen()) found += seen.method == method ? 1U : 0U;
    return found;
  }

  test::Environment environment_{test::store_environment({{"FSDP_CKPT_NETWORK_TRIES", "4"}})};
  Bucket bucket_;
  HttpServer server_{[this](const HttpRequestSeen& seen) { return bucket_.answer(seen); }};
  S3Client client_{S3Settings{Address{"http", server_.authority(), ""}, "r", S3Style::kAuto, false},
                   [](HttpClient&) {
                     return Credentials{"id", Secret("k"), {}, 0};
                   }};
};

TEST_F(S3UploadTest, PartsFitTheLimitsOfStores) {
  EXPECT_EQ(s3_part_bytes(1), 16 * kMiB);
  EXPECT_EQ(s3_part_bytes(160'000 * kMiB), 16 * kMiB);
  EXPECT_EQ(s3_part_bytes(160'000 * kMiB + 1), 17 * kMiB);
  for (const std::uint64_t bytes : {5 * kMiB * kMiB, std::uint64_t{4'999'999'999'999}}) {
    const std::uint64_t part = s3_part_bytes(bytes);
    EXPECT_LE((bytes + part - 1) / part, 10'000U);
    EXPECT_LT(part, 5'000 * kMiB);
  }
}

TEST_F(S3UploadTest, SendsPartsAndCompletes) {
  const std::string first(16 * kMiB, 'a');
  const std::string second = "bc";
  S3Upload upload(client_, kUrl, first.size() + second.size());
  EXPECT_EQ(upload.part_bytes(), 16 * kMiB);
  upload.put(1, bytes_of(second));
  upload.put(0, bytes_of(first));
  EXPECT_FALSE(bucket_.there);
  upload.complete(true);
  EXPECT_EQ(bucket_.content, first + second);
  EXPECT_EQ(bucket_.completion, s3_completion({"e16777216", "e2"}));
  EXPECT_FALSE(bucket_.aborted);
  EXPECT_EQ(server_.seen().back().field("if-none-match"), "*");
}

TEST_F(S3UploadTest, TakesBackWhatIsNotCompleted) {
  {
    S3Upload upload(client_, kUrl, 2);
    upload.put(0, bytes_of("bc"));
  }
  EXPECT_TRUE(bucket_.aborted);
  EXPECT_FALSE(bucket_.there);
}

TEST_F(S3UploadTest, FilesThatAreThereStay) {
  bucket_.there = true;
  bucket_.content = "theirs";
  {
    S3Upload upload(client_, kUrl, 2);
    upload.put(0, bytes_of("bc"));
    test::expect_error(ErrorCode::kExists, "s3://bkt/k: exists", [&] { upload.complete(true); });
  }
  EXPECT_TRUE(bucket_.aborted);
  test::expect_error(ErrorCode::kExists, "s3://bkt/k: exists",
                     [&] { put_s3_file(client_, kUrl, bytes_of("x"), true); });
  EXPECT_EQ(bucket_.content, "theirs");
  put_s3_file(client_, kUrl, bytes_of("x"), false);
  EXPECT_EQ(bucket_.content, "x");
}

// See Note [answers that are lost].
TEST_F(S3UploadTest, KnowsItsOwnFileAfterALostAnswer) {
  bool lost = false;
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    const bool makes_it = (seen.method == "PUT" && seen.target == "/bkt/k") ||
                          (seen.method == "POST" && seen.target != "/bkt/k?uploads=");
    if (!makes_it || lost) return HttpReply{0};
    lost = true;
    bucket_.plain(seen);
    return kLost;
  };
  put_s3_file(client_, kUrl, bytes_of("x"), true);
  EXPECT_EQ(bucket_.content, "x");
  EXPECT_EQ(count("PUT"), 2U);
  bucket_.there = false;
  bucket_.content.clear();
  for (const bool only_new : {true, false}) {
    lost = false;
    bucket_.there = false;
    bucket_.content.clear();
    bucket_.parts.clear();
    bucket_.aborted = false;
    {
      S3Upload upload(client_, kUrl, 2);
      upload.put(0, bytes_of("bc"));
      upload.complete(only_new);
      EXPECT_EQ(bucket_.content, "bc");
      // Before the look; the upload is gone by then.
      EXPECT_TRUE(bucket_.aborted);
      bucket_.aborted = false;
    }
    EXPECT_FALSE(bucket_.aborted);
  }
}

// Whether the file appeared is asked, and if nobody says so, it is told.
TEST_F(S3UploadTest, TellsThatNobodyKnowsWhetherTheFileIsThere) {
  const auto expect_uncertain = [](const std::string& symptom, const auto& body) {
    try {
      body();
      ADD_FAILURE() << "no error";
    } catch (const UncertainError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNetwork);
      EXPECT_EQ(std::string(error.what()).find("s3://bkt/k: "), 0U) << error.what();
      EXPECT_NE(std::string(error.what()).find(symptom), std::string::npos) << error.what();
    }
  };
  const auto makes_it = [](const HttpRequestSeen& seen) {
    return (seen.method == "PUT" && seen.target == "/bkt/k") ||
           (seen.method == "POST" && seen.target != "/bkt/k?uploads=");
  };
  const std::string words = "; the server does not say whether the file is in place";
  // The answers are lost, and those to the look too.
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    if (makes_it(seen)) bucket_.plain(seen);
    return makes_it(seen) || seen.method == "HEAD" ? kLost : HttpReply{0};
  };
  expect_uncertain(words, [&] { put_s3_file(client_, kUrl, bytes_of("x"), true); });
  EXPECT_TRUE(bucket_.there);
  bucket_.there = false;
  {
    S3Upload upload(client_, kUrl, 2);
    upload.put(0, bytes_of("bc"));
    expect_uncertain(words, [&] { upload.complete(false); });
  }
  EXPECT_TRUE(bucket_.there);
  EXPECT_TRUE(bucket_.aborted);
  // A 404 of a server that lists the file.
  bool listed = true;
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    if (makes_it(seen)) return kLost;
    if (seen.method == "HEAD") return HttpReply{404};
    if (seen.method != "GET") return HttpReply{0};
    EXPECT_EQ(seen.target, "/bkt?encoding-type=url&list-type=2&max-keys=1&prefix=k");
    return HttpReply{200,
                     {},
                     listed ? "<ListBucketResult><Contents><Key>k</Key></Contents>"
                              "</ListBucketResult>"
                            : "<ListBucketResult><Contents><Key>k2</Key></Contents>"
                              "</ListBucketResult>"};
  };
  expect_uncertain(words, [&] { put_s3_file(client_, kUrl, bytes_of("x"), false); });
  listed = false;
  try {
    put_s3_file(client_, kUrl, bytes_of("x"), false);
    ADD_FAILURE();
  } catch (const UncertainError& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNetwork) << error.what();
  }
  // What is refused at once is not there.
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    return seen.method == "PUT" ? refuses(403, "AccessDenied") : kLost;
  };
  test::expect_error(ErrorCode::kAccess, "s3://bkt/k: the server refuses: 403 'AccessDenied'",
                     [&] { put_s3_file(client_, kUrl, bytes_of("x"), false); });
}

// A connection that was kept open ends where an answer is due: libcurl would ask again by itself,
// and the second answer would look like that to a first request.
TEST_F(S3UploadTest, CountsTheTriesOnConnectionsThatWereKeptOpen) {
  bool lost = false;
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    if (seen.method == "HEAD" || seen.method == "GET") return refuses(403, "AccessDenied");
    const bool makes_it = (seen.method == "PUT" && seen.target == "/bkt/k") ||
                          (seen.method == "POST" && seen.target != "/bkt/k?uploads=");
    if (!makes_it || lost) return HttpReply{0};
    lost = true;
    bucket_.plain(seen);
    return kLost;
  };
  {
    S3Upload upload(client_, kUrl, 2);
    upload.put(0, bytes_of("bc"));
    EXPECT_THROW(upload.complete(true), UncertainError);
  }
  EXPECT_TRUE(bucket_.there);
  lost = false;
  bucket_.there = false;
  EXPECT_THROW(put_s3_file(client_, kUrl, bytes_of("x"), true), UncertainError);
  EXPECT_TRUE(bucket_.there);
}

TEST_F(S3UploadTest, AnotherOnesFileIsNotTakenForItsOwn) {
  int tries = 0;
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    if (seen.method != "PUT" || ++tries > 1) return HttpReply{0};
    bucket_.there = true;
    bucket_.content = "y";
    bucket_.mark = "theirs";
    return kLost;
  };
  test::expect_error(ErrorCode::kExists, "s3://bkt/k: exists",
                     [&] { put_s3_file(client_, kUrl, bytes_of("x"), true); });
  EXPECT_EQ(bucket_.content, "y");
}

TEST_F(S3UploadTest, FailuresInAnAnswerOf200AreFailures) {
  int tries = 0;
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    const bool completes = seen.method == "POST" && seen.target != "/bkt/k?uploads=";
    return completes && ++tries == 1 ? refuses(200, "InternalError") : HttpReply{0};
  };
  S3Upload upload(client_, kUrl, 2);
  upload.put(0, bytes_of("bc"));
  upload.complete(true);
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(bucket_.content, "bc");
}

TEST_F(S3UploadTest, NamesWhatTheServerRefuses) {
  bucket_.instead = [&](const HttpRequestSeen& seen) {
    if (seen.method == "PUT") return HttpReply{200};
    return HttpReply{0};
  };
  {
    S3Upload upload(client_, kUrl, 2);
    test::expect_error(ErrorCode::kNetwork,
                       "s3://bkt/k: the server accepted part 1 without an ETag",
                       [&] { upload.put(0, bytes_of("bc")); });
  }
  bucket_.instead = [&](const HttpRequestSeen&) { return refuses(403, "AccessDenied"); };
  test::expect_error(ErrorCode::kAccess, "s3://bkt/k: the server refuses: 403 'AccessDenied'",
                     [&] { S3Upload(client_, kUrl, 2); });
  bucket_.instead = [&](const HttpRequestSeen&) { return HttpReply{200, {}, "<A/>"}; };
  test::expect_error(ErrorCode::kNetwork,
                     "s3://bkt/k: the answer that begins the upload has no upload id",
                     [&] { S3Upload(client_, kUrl, 2); });
}

}  // namespace
}  // namespace fsdp::formats
