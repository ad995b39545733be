// SPDX-License-Identifier: Apache-2.0
// Finds the address by which other ranks reach this one, and connects to theirs.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "formats/bytes/files/local_file.h"

namespace fsdp::internal {

constexpr const char* kLoopback = "127.0.0.1";

// Returns this machine's address on the way to `host`, which need not answer: nothing is sent.
// Throws: c10::Error if `host` is unknown or no interface leads there.
std::string address_towards(const std::string& host);

struct Connection {
  formats::FileDescriptor fd;  // empty if the connection failed
  int error = 0;               // the errno of the failure
  std::string unknown;         // why the host has no address; empty if it has one
};

// Connects to a port, trying each address of the host for up to `time`.
Connection connect_to(const std::string& host, std::uint16_t port, std::chrono::milliseconds time);

}  // namespace fsdp::internal
