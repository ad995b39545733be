// SPDX-License-Identifier: Apache-2.0
// Decides how much memory and work a verb may spend on its input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/budget.h"

namespace fsdp::cli {

// The limit is --max-memory if given.  Otherwise it follows from the size of the files: 24 MiB plus
// 24 times their bytes, up to 256 MiB; more only if 4 times the bytes of a folder's metadata
// (.metadata, JSON) exceed that.
//
// Compressed data may expand to 128 MiB plus 64 times the files' bytes, and scanned pickles may
// reach 8 MiB plus 24 times as much, with each reading counted twice.
struct InputSize {
  std::uint64_t bytes = 0;           // of all files
  std::uint64_t metadata_bytes = 0;  // of metadata that are read as a whole
};

// --max-memory divided by this is for blocks and copying; the rest is for the index, headers and
// the program itself.
inline constexpr std::uint64_t kBufferShare = 4;

// Returns the size of the files at these paths, each counted once, folders with their contents;
// paths that cannot be examined count as nothing.
InputSize size_of(const std::vector<std::string>& paths);

formats::Budget budget_for(const InputSize& input, std::optional<std::uint64_t> max_memory);

// Returns the end of the message about an exceeded budget: "24.1 MiB, which is what 4.0 KiB of
// files may take; --max-memory SIZE allows more".
std::string budget_words(const InputSize& input, const formats::Budget& budget,
                         std::optional<std::uint64_t> max_memory);

// Returns whether operator new counts allocations (counted_new.cpp).
bool counts_memory() noexcept;

}  // namespace fsdp::cli
