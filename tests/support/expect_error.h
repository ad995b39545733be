// SPDX-License-Identifier: Apache-2.0
// Expects an fsdp::Error with a code and a message that contains a fragment.
#pragma once

#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"

namespace fsdp::test {

template <typename Body>
void expect_error(ErrorCode code, std::string_view fragment, Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(code_name(e.code()), code_name(code)) << e.what();
    EXPECT_THAT(e.what(), ::testing::HasSubstr(std::string(fragment)));
    return;
  }
  ADD_FAILURE() << "expected " << code_name(code) << ": " << fragment;
}

}  // namespace fsdp::test
