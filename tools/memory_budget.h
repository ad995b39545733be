// SPDX-License-Identifier: Apache-2.0
// How much memory and work a verb may spend on what it was given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/budget.h"

namespace fsdp::cli {

// Where --max-memory is given, that.  Otherwise what files of this size justify: 24 MiB, and 24
// times their bytes, up to 256 MiB; more only where the metadata of a folder (.metadata, JSON) are
// themselves so large that 4 times their bytes is more.
//
// Compressed data may expand to 128 MiB and 64 times the files' bytes, and pickles come to 8 MiB
// and 24 times as much, each reading counted twice.
struct InputSize {
  std::uint64_t bytes = 0;           // of all files
  std::uint64_t metadata_bytes = 0;  // of those that are read as a whole
};

// Of the files at these paths, each counted once, folders with what lies in them; what cannot be
// looked at counts nothing.
InputSize size_of(const std::vector<std::string>& paths);

formats::Budget budget_for(const InputSize& input, std::optional<std::uint64_t> max_memory);

// "24.1 MiB, which is what 4.0 KiB of files may take; --max-memory SIZE allows more": how the
// message on exceeding it ends.
std::string budget_words(const InputSize& input, const formats::Budget& budget,
                         std::optional<std::uint64_t> max_memory);

// Whether operator new counts what is taken (counted_new.cpp).
bool counts_memory() noexcept;

}  // namespace fsdp::cli
