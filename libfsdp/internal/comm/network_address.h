// SPDX-License-Identifier: Apache-2.0
// By which address other ranks reach this one.
#pragma once

#include <string>

namespace fsdp {

constexpr const char* kLoopback = "127.0.0.1";

// This machine's address on the way to `host`, which need not answer: nothing is sent.
// Throws: c10::Error where `host` is unknown or no interface leads there.
std::string address_towards(const std::string& host);

}  // namespace fsdp
