// SPDX-License-Identifier: Apache-2.0
// What something throws, as text.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace fsdp {

// The message of what `body` throws, without a backtrace; fails the test where it throws nothing.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace fsdp
