// SPDX-License-Identifier: Apache-2.0
// Where a machine keeps the certificates of the authorities that it trusts.
#pragma once

#include <string>

namespace fsdp::formats {

// For a libcurl that knows no place itself, since it is linked into a program for any distribution.
// Returns the first that exists of the files where distributions keep them, all in one, else "".
// `root` stands before each.
std::string system_certificates(const std::string& root = "");

}  // namespace fsdp::formats
