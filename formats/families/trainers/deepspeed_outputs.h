// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's folders for another number of ranks: `plan_output` of trainers.h chooses.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/families/trainers/trainers.h"

namespace fsdp::formats::deepspeed {

// DeepSpeed puts this program beside the tag folders.
constexpr const char* kProgram = "zero_to_fp32.py";

// Plans a universal checkpoint, which is the same for any number of ranks.  Throws: kUsage,
// kGlobal.
std::unique_ptr<Output> plan_universal_output(const Checkpoint& source,
                                              const std::filesystem::path& destination,
                                              OutputOptions options, const FrameworkOptions& how,
                                              const std::filesystem::path& universal);

}  // namespace fsdp::formats::deepspeed
