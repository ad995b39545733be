// SPDX-License-Identifier: Apache-2.0
// The credentials that the services of these tests hand out.
#pragma once

#include <optional>

#include <gtest/gtest.h>

#include "formats/bytes/remote/credentials.h"

namespace fsdp::test {

// Their end is 2030-01-01T00:00:00Z.
inline void expect_known(const std::optional<formats::Credentials>& found) {
  ASSERT_TRUE(found);
  EXPECT_EQ(found->id, "id");
  EXPECT_EQ(found->key.reveal(), "key");
  EXPECT_EQ(found->token.reveal(), "token");
  EXPECT_EQ(found->expires, 1893456000);
}

}  // namespace fsdp::test
