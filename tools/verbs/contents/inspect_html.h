// SPDX-License-Identifier: Apache-2.0
// `inspect --html`: the content of a checkpoint as one page without external resources.
#pragma once

#include <filesystem>

#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {

// Writes the page: a treemap of bytes by module, which rank or file holds what, a table to search
// and sort.  The file appears as a whole or not at all; an existing file is replaced only with
// `replace`. Throws: kExists and the rest of AtomicFile; kLimitEntries above 250,000 tensors.
void write_inspect_page(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        const std::filesystem::path& destination, bool replace);

// The parts of the page around its title and its data (embed_page.cmake makes them from
// inspect_page.*).
extern const char* const kPageBeforeTitle;
extern const char* const kPageBeforeData;
extern const char* const kPageEnd;

}  // namespace fsdp::cli
