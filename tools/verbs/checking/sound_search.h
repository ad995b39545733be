// SPDX-License-Identifier: Apache-2.0
// Looks for the newest sound checkpoints of a run: the common part of latest and prune.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/runs/steps.h"
#include "tools/base/common.h"
#include "tools/verbs/checking/examination.h"

namespace fsdp::cli {

// A checkpoint that is not sound.
struct PassedOver {
  std::string path;
  std::string code;      // of the first finding, or of the error
  std::string message;   // of the same finding or error
  std::size_t more = 0;  // the number of other findings
};

struct SoundCheckpoints {
  std::vector<std::string> sound;  // the newest first
  std::vector<PassedOver> passed;  // examined and not sound, the newest first
};

// Returns the steps of a run, the newest first; empty if it holds none.
// Throws: kNotFound (no such folder); kUsage if it is not a folder, or is one step itself;
// kUnsupported if names do not tell which files form a step, or a number exceeds 64 bits; what
// formats::look_through throws.
std::vector<formats::Step> run_steps(const CommonOptions& common);

// Examines those of `steps` that `counts` accepts, in order, until `wanted` of them are sound and
// lack nothing that an older one has.
// Passes over steps that are not checkpoints, have disappeared, or are being written.
// Throws: errors that say nothing about a checkpoint (kIo, kOutOfMemory, ...), because an older one
// must not replace one that could not be read; kInterrupted.
SoundCheckpoints find_sound(const std::vector<formats::Step>& steps, std::size_t wanted,
                            const std::function<bool(const std::string& path)>& counts,
                            ExaminationOptions options, const std::string& verb,
                            const Streams& streams);

// Prints on standard error why checkpoints were passed over.
void note_passed_over(const std::vector<PassedOver>& passed, const CommonOptions& common,
                      const Streams& streams);

// Returns [{"path", "step", "code", "message"}].
formats::Json passed_over_json(const std::vector<PassedOver>& passed);

// Returns the step's number, or null.
formats::Json step_json(const std::string& path);

}  // namespace fsdp::cli
