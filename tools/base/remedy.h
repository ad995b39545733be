// SPDX-License-Identifier: Apache-2.0
// Words the remedy of an error for the command line.
#pragma once

#include <string>

#include "formats/bytes/base/error.h"
#include "formats/state/model/finding.h"

namespace fsdp::cli {

// Returns "; " and the option that helps; empty if there is none.
std::string remedy_text(const Hint& hint);

// Returns the message and, after a semicolon, the option that helps, if there is one.
std::string message_of(const Error& error);
std::string message_of(const formats::Finding& finding);

}  // namespace fsdp::cli
