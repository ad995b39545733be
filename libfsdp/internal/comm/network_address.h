// SPDX-License-Identifier: Apache-2.0
// Finds the address by which other ranks reach this one.
#pragma once

#include <string>

namespace fsdp::internal {

constexpr const char* kLoopback = "127.0.0.1";

// Returns this machine's address on the way to `host`, which need not answer: nothing is sent.
// Throws: c10::Error if `host` is unknown or no interface leads there.
std::string address_towards(const std::string& host);

}  // namespace fsdp::internal
