// SPDX-License-Identifier: Apache-2.0
// Returns the error that something throws, as text.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace fsdp {

// Returns the message that `body` throws, without a backtrace; fails the test if it throws nothing.
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
