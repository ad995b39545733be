// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt verify: names every damage of a checkpoint.
#pragma once

#include "tools/common.h"

namespace fsdp::cli {

struct VerifyCommand {
  CommonOptions common;
  bool fast = false;               // metadata and sizes alone
  bool strict = false;             // warnings count as findings
  bool require_checksums = false;  // data without a checksum is a finding
};

// Returns 0 where the checkpoint is sound, 1 where it is not.
// Throws: Error where it could not be looked at (not found, no checkpoint at all, I/O).
int verify(const VerifyCommand& command, const Streams& streams);

}  // namespace fsdp::cli
