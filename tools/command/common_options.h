// SPDX-License-Identifier: Apache-2.0
// The words that every verb takes, declared once: for the command line, its help and what is
// generated from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/common.h"
#include "tools/base/option_set.h"

namespace fsdp::cli {

// The common words as typed.
struct TypedCommon {
  CommonOptions common;
  std::string progress = "auto";
  std::string color = "auto";
  std::optional<std::uint64_t> max_memory;
  std::optional<std::int64_t> threads;
  std::vector<std::string> globals;
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};

// Declares the options except --help.
void declare_common(OptionSet& options, TypedCommon& typed);

// Gives the words their meaning.  Throws: kUsage.
CommonOptions interpret(const TypedCommon& typed);

}  // namespace fsdp::cli
