// SPDX-License-Identifier: Apache-2.0
// Outputs in a store.  See Note [outputs in a store].
#pragma once

#include <filesystem>
#include <memory>

#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"

namespace fsdp::formats {

// `destination`: a URL.
// Throws: kUnsupported (no store has it, a team writes it, or it is to be resumed); what
// StoredOutput throws.
std::unique_ptr<AtomicFile> new_stored_file(const std::filesystem::path& destination,
                                            const OutputOptions& options);
std::unique_ptr<AtomicFolder> new_stored_folder(const std::filesystem::path& destination,
                                                const OutputOptions& options);

}  // namespace fsdp::formats
