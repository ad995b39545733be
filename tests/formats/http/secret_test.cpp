// SPDX-License-Identifier: Apache-2.0
#include "formats/http/secret.h"

#include <ostream>
#include <type_traits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

template <typename T>
concept CanBeStreamed = requires(std::ostream& out, const T& value) {
  out << value;
};

static_assert(!CanBeStreamed<Secret>);
static_assert(!std::is_convertible_v<Secret, std::string>);
static_assert(!std::is_convertible_v<std::string, Secret>);

TEST(Secret, LeavesNothingBehind) {
  Secret secret("a key that is longer than any small string");
  const char* const bytes = secret.reveal().data();
  Secret moved(std::move(secret));
  EXPECT_EQ(moved.reveal().data(), bytes);
  EXPECT_TRUE(secret.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
  Secret copy(moved);
  EXPECT_NE(copy.reveal().data(), bytes);
  EXPECT_EQ(copy.reveal(), moved.reveal());
  copy = Secret("b");
  EXPECT_EQ(copy.reveal(), "b");
  copy = moved;
  EXPECT_EQ(copy.reveal(), moved.reveal());
}

TEST(Secret, ShortOnesAreClearedWhereTheyWere) {
  Secret secret("short");
  const Secret moved(std::move(secret));
  EXPECT_EQ(moved.reveal(), "short");
  EXPECT_TRUE(secret.empty());  // NOLINT(bugprone-use-after-move): that is what is tested
}

}  // namespace
}  // namespace fsdp::formats
