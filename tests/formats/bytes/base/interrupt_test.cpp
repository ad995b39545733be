// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/interrupt.h"

#include <signal.h>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace fsdp::formats {
namespace {

using fsdp::test::expect_error;

TEST(Interrupt, is_thrown_once_a_signal_asked_to_stop) {
  EXPECT_NO_THROW(throw_if_interrupted());
  interrupt_signal = SIGTERM;
  EXPECT_TRUE(interrupted());
  expect_error(ErrorCode::kInterrupted, "interrupted", [] { throw_if_interrupted(); });
  interrupt_signal = 0;
}

}  // namespace
}  // namespace fsdp::formats
