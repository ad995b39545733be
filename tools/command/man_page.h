// SPDX-License-Identifier: Apache-2.0
// The manual page, made from the verbs' declarations.
#pragma once

#include <string>

namespace fsdp::cli {

// Returns fsdp-ckpt(1) in the man macros of roff, without a date, so that each build has the same
// page.
std::string man_page();

}  // namespace fsdp::cli
