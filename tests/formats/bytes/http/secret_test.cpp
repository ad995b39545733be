// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/secret.h"

#include <array>
#include <cstddef>
#include <new>
#include <ostream>
#include <type_traits>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

template <typename T>
concept Streams = requires(std::ostream& out, const T& value) {
  out << value;
};
template <typename T>
concept Compares = requires(const T& a, const T& b) {
  a == b;
};

// cat() and the assertions of tests stream: that a Secret cannot is what keeps it out of messages.
static_assert(Streams<std::string> && !Streams<Secret>);
static_assert(Compares<std::string> && !Compares<Secret>);
static_assert(!std::is_convertible_v<Secret, std::string>);
static_assert(!std::is_convertible_v<Secret, std::string_view>);
static_assert(!std::is_convertible_v<std::string, Secret>);
static_assert(std::is_nothrow_move_constructible_v<Secret>);

TEST(Secret, holds_what_it_was_given) {
  EXPECT_TRUE(Secret().empty());
  Secret secret("key");
  EXPECT_EQ(secret.reveal(), "key");
  const Secret copy = secret;
  Secret moved = std::move(secret);
  EXPECT_EQ(copy.reveal(), "key");
  EXPECT_EQ(moved.reveal(), "key");
  moved = copy;
  moved = *&moved;
  EXPECT_EQ(moved.reveal(), "key");
  moved = Secret("other");
  EXPECT_EQ(moved.reveal(), "other");
}

// A Secret in memory of the test's own, so that its bytes can be looked at when it is gone.
class SecretBytes : public testing::Test {
 protected:
  // Short enough to stand within the string itself.
  static constexpr std::string_view kText = "k3yk3yk3y";

  Secret* make() { return new (memory_.data()) Secret(std::string(kText)); }
  std::string bytes() const {
    return {reinterpret_cast<const char*>(memory_.data()), memory_.size()};
  }

  alignas(Secret) std::array<std::byte, sizeof(Secret)> memory_{};
};

TEST_F(SecretBytes, are_cleared_when_it_goes) {
  Secret* secret = make();
  ASSERT_NE(bytes().find(kText), std::string::npos);
  secret->~Secret();
  EXPECT_EQ(bytes().find(kText.substr(1)), std::string::npos);
}

TEST_F(SecretBytes, are_cleared_when_they_are_moved_away) {
  Secret* secret = make();
  const Secret moved = std::move(*secret);
  EXPECT_EQ(moved.reveal(), kText);
  // Behind the first byte, which the string itself clears.
  EXPECT_EQ(bytes().find(kText.substr(1)), std::string::npos);
  secret->~Secret();
}

}  // namespace
}  // namespace fsdp::formats
