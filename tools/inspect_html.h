// SPDX-License-Identifier: Apache-2.0
// `inspect --html`: what is in a checkpoint, as one page that needs nothing from anywhere else.
#pragma once

#include <filesystem>

#include "tools/inspect.h"

namespace fsdp::cli {

// Writes the page: a treemap of bytes by module, which rank or file holds what, a table to search
// and sort.  It appears whole or not at all; an existing file is replaced only with `replace`.
// Throws: kExists and the rest of AtomicFile; kLimitEntries above 250,000 tensors.
void write_inspect_page(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        const std::filesystem::path& destination, bool replace);

// The page around its title and its data (embed_page.cmake makes them of inspect_page.*).
extern const char* const kPageBeforeTitle;
extern const char* const kPageBeforeData;
extern const char* const kPageEnd;

}  // namespace fsdp::cli
