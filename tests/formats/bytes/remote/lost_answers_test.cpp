// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/lost_answers.h"

#include <set>

#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/remote/s3_upload.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;

const S3Place kPlace{"bkt", "a/k"};
const std::string kUrl = "s3://bkt/a/k";

std::string upload_text(const std::string& key, const std::string& id, const std::string& time) {
  return "<Upload><Key>" + key + "</Key><UploadId>" + id + "</UploadId><Initiated>" + time +
         "</Initiated></Upload>";
}

class LostAnswersTest : public ::testing::Test {
 protected:
  ~LostAnswersTest() override { interrupt_signal = 0; }

  HttpReply answer(const HttpRequestSeen& seen) {
    const std::scoped_lock lock(mutex_);
    if (seen.method == "HEAD") return {200, {{"X-Amz-Meta-Fsdp-Ckpt-Upload", "mine"}}};
    if (seen.method == "POST") {
      EXPECT_EQ(seen.target, "/bkt/a/k?uploads=");
      if (lost_ != 0) {
        --lost_;
        return {200, {}, {}, test::RawReply{"", test::Then::kClose}};
      }
      if (refused_) return {403};
      return {200, {}, "<A><UploadId>mine</UploadId></A>"};
    }
    if (seen.method == "GET" && seen.target.starts_with("/bkt?")) {
      EXPECT_EQ(seen.target, "/bkt?encoding-type=url&prefix=a%2Fk&uploads=");
      return {200,
              {{"Date", "Wed, 21 Oct 2015 07:28:05 GMT"}},
              "<ListMultipartUploadsResult>" + begun_ + "</ListMultipartUploadsResult>"};
    }
    const std::string id = seen.target.substr(seen.target.find('=') + 1);
    EXPECT_EQ(seen.path(), "/bkt/a/k");
    if (seen.method == "GET") {
      return {200, {}, "<ListPartsResult>" + parts_[id] + "</ListPartsResult>"};
    }
    if (seen.method == "DELETE") aborted_.insert(id);
    return {204};
  }

  // Of an upload whose beginning is lost `times` times, and which is then given up.
  std::set<std::string> aborted_after(int times) {
    lost_ = times;
    aborted_.clear();
    try {
      S3Upload(client_, kUrl, 2);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), refused_ ? ErrorCode::kAccess : ErrorCode::kNetwork) << error.what();
    }
    return aborted_;
  }

  std::mutex mutex_;
  int lost_ = 0;
  bool refused_ = false;
  std::string begun_;
  std::map<std::string, std::string> parts_;
  std::set<std::string> aborted_;
  test::Environment environment_{test::store_environment({{"FSDP_CKPT_NETWORK_TRIES", "3"}})};
  HttpServer server_{[this](const HttpRequestSeen& seen) { return answer(seen); }};
  S3Client client_{S3Settings{Address{"http", server_.authority(), ""}, "r", S3Style::kAuto, false},
                   [](HttpClient&) {
                     return Credentials{"id", Secret("k"), {}, 0};
                   }};
};

using Ids = std::set<std::string>;

TEST_F(LostAnswersTest, AnUploadWhoseBeginningWasLostIsAborted) {
  begun_ = upload_text("a/k", "mine", "2015-10-21T07:28:05Z") +
           upload_text("a/k", "lost", "2015-10-21T07:28:04Z");
  EXPECT_EQ(aborted_after(1), (Ids{"mine", "lost"}));
}

TEST_F(LostAnswersTest, UploadsOfOthersStay) {
  begun_ = upload_text("a/k", "mine", "2015-10-21T07:28:05Z") +
           upload_text("a/k", "lost", "2015-10-21T07:28:04Z") +
           upload_text("a/k", "before", "2015-10-21T07:27:01Z") +
           upload_text("a/k", "behind", "2015-10-21T07:28:15Z") +
           upload_text("a/k", "without-time", "") +
           upload_text("a/k", "with-parts", "2015-10-21T07:28:04Z") +
           upload_text("a/k2", "of-another-key", "2015-10-21T07:28:04Z");
  parts_["with-parts"] = "<Part><PartNumber>1</PartNumber></Part>";
  EXPECT_EQ(aborted_after(1), (Ids{"mine", "lost"}));
  // Nothing was lost.
  EXPECT_EQ(aborted_after(0), (Ids{"mine"}));
  // More than can be its own.
  begun_ += upload_text("a/k", "of-somebody", "2015-10-21T07:28:04Z");
  EXPECT_EQ(aborted_after(1), (Ids{"mine"}));
  EXPECT_EQ(aborted_after(2), (Ids{"mine", "lost", "of-somebody"}));
}

TEST_F(LostAnswersTest, WithoutTheTimeOfTheOwnUploadNoneIsAborted) {
  begun_ = upload_text("a/k", "lost", "2015-10-21T07:28:04Z");
  EXPECT_EQ(aborted_after(1), (Ids{"mine"}));
  begun_ += upload_text("a/k", "mine", "");
  EXPECT_EQ(aborted_after(1), (Ids{"mine"}));
}

TEST_F(LostAnswersTest, WhereEveryAnswerWasLostTheServersDateTells) {
  begun_ = upload_text("a/k", "1", "2015-10-21T07:28:04Z") +
           upload_text("a/k", "2", "2015-10-21T07:28:05Z") +
           upload_text("a/k", "before", "2015-10-21T07:27:55Z");
  EXPECT_EQ(aborted_after(3), (Ids{"1", "2"}));
}

TEST_F(LostAnswersTest, ALostBeginningBeforeARefusalIsAborted) {
  begun_ = upload_text("a/k", "lost", "2015-10-21T07:28:04Z");
  refused_ = true;
  EXPECT_EQ(aborted_after(1), (Ids{"lost"}));
  // A refusal alone begins nothing.
  EXPECT_EQ(aborted_after(0), Ids{});
}

TEST_F(LostAnswersTest, LooksThoughASignalCame) {
  for (const int signal : {0, 15}) {
    interrupt_signal = signal;
    EXPECT_EQ(is_in_place(client_, kPlace, {"mine", 2}), true);
    EXPECT_EQ(is_in_place(client_, kPlace, {"theirs", 2}), false);
  }
}

TEST_F(LostAnswersTest, ABeginningIsNotSentAgainByTheLibrary) {
  // A connection that is open already.
  Patience patience("");
  client_.send(
      patience,
      {"GET", {"bkt", ""}, {{"encoding-type", "url"}, {"prefix", "a/k"}, {"uploads", ""}}});
  aborted_after(0);
  EXPECT_EQ(server_.connection_count(), 2U);
}

}  // namespace
}  // namespace fsdp::formats
