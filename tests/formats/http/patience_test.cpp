// SPDX-License-Identifier: Apache-2.0
#include "formats/http/patience.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Patience, PausesGrowAndDiffer) {
  EXPECT_EQ(backoff(1, 0), milliseconds(50));
  EXPECT_EQ(backoff(1, 1), milliseconds(100));
  EXPECT_EQ(backoff(4, 1), milliseconds(800));
  EXPECT_EQ(backoff(8, 0.5), milliseconds(7500));
  EXPECT_EQ(backoff(1000, 1), milliseconds(10'000));
}

TEST(Patience, EndsAfterTheTries) {
  Patience patience("s3://b/k", {3, seconds(60), seconds(1)});
  patience.wait("the server answers 503");
  patience.wait("the server answers 503");
  test::expect_error(ErrorCode::kNetwork, "s3://b/k: the server answers 500; tried 3 times in 0 s",
                     [&] { patience.wait("the server answers 500"); });
  Patience once("u", {3, seconds(60), seconds(1)});
  test::expect_error(ErrorCode::kNetwork, "u: no certificate",
                     [&] { once.wait("no certificate", 1); });
}

TEST(Patience, DoesNotWaitPastTheDeadline) {
  Patience patience("u", {100, seconds(5), seconds(1)});
  const auto before = std::chrono::steady_clock::now();
  test::expect_error(ErrorCode::kNetwork, "u: later",
                     [&] { patience.wait("later", 100, seconds(6)); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(1));
  EXPECT_LE(patience.left(), milliseconds(5000));
  EXPECT_GE(patience.left(), milliseconds(1));
}

TEST(Patience, CountsAnewAfterProgress) {
  Patience patience("u", {2, seconds(60), seconds(1)});
  for (int i = 0; i < 3; ++i) {
    patience.wait("reset");
    patience.progressed();
  }
  patience.wait("reset");
  test::expect_error(ErrorCode::kNetwork, "tried 2 times", [&] { patience.wait("reset"); });
}

TEST(Patience, ReadsItsLimitsFromTheEnvironment) {
  const test::Environment environment({{"FSDP_CKPT_NETWORK_TRIES", "7"},
                                       {"FSDP_CKPT_NETWORK_SECONDS", "8"},
                                       {"FSDP_CKPT_STALL_SECONDS", "none"}});
  test::expect_error(ErrorCode::kUsage,
                     "FSDP_CKPT_STALL_SECONDS is 'none', which is no number from 1 to 1000000",
                     [] { network_limits(); });
  // A value that was refused is looked at again.
  const test::Environment mended("FSDP_CKPT_STALL_SECONDS", "9");
  EXPECT_EQ(network_limits().tries, 7U);
  EXPECT_EQ(network_limits().deadline, seconds(8));
  EXPECT_EQ(network_limits().stall, seconds(9));
}

}  // namespace
}  // namespace fsdp::formats
