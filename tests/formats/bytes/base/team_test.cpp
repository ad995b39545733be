// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "tests/support/expect_error.h"
#include "tests/support/thread_team.h"

namespace fsdp::formats {
namespace {

using test::run_team;
using testing::Each;
using testing::ElementsAre;

TEST(Team, GivesEveryMemberWhatAllGave) {
  const auto errors = run_team(3, [](Team& team) {
    const std::string own(team.rank() * 1000, static_cast<char>('a' + team.rank()));
    const auto all = team.exchange("step", own);
    EXPECT_THAT(all, ElementsAre("", std::string(1000, 'b'), std::string(2000, 'c')));
    EXPECT_EQ(team.leads(), team.rank() == 0);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Team, AMemberThatFailsAloneMakesAllFail) {
  const auto errors = run_team(4, [](Team& team) {
    team.exchange("one");
    if (team.rank() == 2) throw Error(ErrorCode::kNoSpace, "out: no space", {Remedy::kReplace});
    team.exchange("two");
    ADD_FAILURE() << "went on";
  });
  EXPECT_THAT(errors, Each("rank 2: out: no space"));
}

TEST(Team, WhatFailsEverywhereOrInTheLeaderIsNobodysOwn) {
  EXPECT_THAT(run_team(3, [](Team&) { throw Error(ErrorCode::kNotFound, "x: no such file"); }),
              Each("x: no such file"));
  EXPECT_THAT(run_team(3,
                       [](Team& team) {
                         if (team.leads()) throw Error(ErrorCode::kExists, "out: exists");
                         team.exchange("made");
                       }),
              Each("out: exists"));
}

TEST(Team, KeepsCodeAndHintOfAnothersError) {
  run_team(2, [](Team& team) {
    if (team.rank() == 1) throw Error(ErrorCode::kGlobal, "g", {Remedy::kAllowGlobal, "a.b"});
    try {
      team.exchange("step");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kGlobal);
      EXPECT_EQ(error.hint().remedy, Remedy::kAllowGlobal);
      EXPECT_EQ(error.hint().subject, "a.b");
      EXPECT_TRUE(team.failed());
      test::expect_error(ErrorCode::kGlobal, "rank 1: g", [&] { team.exchange("later"); });
      throw;
    }
    ADD_FAILURE() << "did not fail";
  });
}

TEST(Team, NamesTheMemberThatDiffers) {
  const auto errors = run_team(3, [](Team& team) {
    team.agree("arguments", "same", "has other arguments");
    team.agree("source", team.rank() == 1 ? "b" : "a", "sees another checkpoint");
  });
  EXPECT_THAT(errors, Each("rank 1 sees another checkpoint than rank 0"));
}

TEST(Team, SaysWhereMembersAreThatTookOtherSteps) {
  const auto errors =
      run_team(2, [](Team& team) { team.exchange(team.leads() ? "checks" : "source"); });
  EXPECT_EQ(errors[0], "rank 1 is at step 'source', but rank 0 is at step 'checks'");
  EXPECT_EQ(errors[1], "rank 0 is at step 'checks', but rank 1 is at step 'source'");
}

TEST(Packed, IsTakenApartInTheSameOrder) {
  struct Pair {
    int a;
    double b;
  };
  const std::string bytes =
      Packed().number(7).text(std::string("a\0b", 3)).object(Pair{1, 2.5}).text("").take();
  Unpacked fields(bytes);
  EXPECT_EQ(fields.number(), 7U);
  EXPECT_EQ(fields.text(), std::string_view("a\0b", 3));
  EXPECT_EQ(fields.object<Pair>().b, 2.5);
  EXPECT_EQ(fields.text(), "");
  EXPECT_TRUE(fields.empty());
  test::expect_error(ErrorCode::kTruncated, "ends early", [&] { fields.number(); });
  const std::string longer = Packed().number(5).take();
  test::expect_error(ErrorCode::kTruncated, "ends early", [&] { Unpacked(longer).text(); });
}

TEST(Team, TheLeadersTextComesWholeInPortions) {
  const std::string text = std::string(40U << 20U, 'x') + "the end";
  const auto errors = test::run_team(3, [&](Team& team) {
    EXPECT_EQ(team.from_leader("text", team.leads() ? text : "of another"), text);
    EXPECT_EQ(team.from_leader("nothing"), "");
  });
  EXPECT_THAT(errors, testing::Each(""));
}

}  // namespace
}  // namespace fsdp::formats
