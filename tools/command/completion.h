// SPDX-License-Identifier: Apache-2.0
// Shell completions, made from the verbs' declarations.
#pragma once

#include <string>

namespace fsdp::cli {

// Returns the completion script for "bash", "zsh" or "fish".  Throws: kUsage for any other shell.
std::string completion_script(const std::string& shell);

}  // namespace fsdp::cli
