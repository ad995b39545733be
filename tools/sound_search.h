// SPDX-License-Identifier: Apache-2.0
// Looks for the newest sound checkpoints of a run: the common part of latest and prune.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/runs/steps.h"
#include "tools/common.h"
#include "tools/examination.h"

namespace fsdp::cli {

// A checkpoint that is not sound.
struct PassedOver {
  std::string path;
  std::string code;      // of the first finding, or of the error
  std::string message;   // of the same
  std::size_t more = 0;  // findings beside it
};

struct SoundCheckpoints {
  std::vector<std::string> sound;  // the newest first
  std::vector<PassedOver> passed;  // examined, and not sound; the newest first
};

// Returns the steps of a run, the newest first; empty if it holds none.
// Throws: kNotFound (no such folder); kUsage if it is not a folder, or is one step itself;
// kUnsupported if names do not tell which files are one step, or a number has more than 64 bits;
// what formats::look_through throws.
std::vector<formats::Step> run_steps(const CommonOptions& common);

// Examines `steps` in their order until `wanted` of those that `counts` accepts are sound and lack
// nothing that an older one has.
// What is no checkpoint after all, went away, or is being written meanwhile is passed over.
// Throws: what says nothing about a checkpoint (kIo, kOutOfMemory, ...): an older one must not take
// the place of one that could not be read; kInterrupted.
SoundCheckpoints find_sound(const std::vector<formats::Step>& steps, std::size_t wanted,
                            const std::function<bool(const std::string& path)>& counts,
                            ExaminationOptions options, const std::string& verb,
                            const Streams& streams);

// Tells people why checkpoints were passed over, on standard error.
void note_passed_over(const std::vector<PassedOver>& passed, const CommonOptions& common,
                      const Streams& streams);

// [{"path", "step", "code", "message"}].
formats::Json passed_over_json(const std::vector<PassedOver>& passed);

// null, or the number.
formats::Json step_json(const std::string& path);

}  // namespace fsdp::cli
