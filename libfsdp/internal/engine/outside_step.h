// SPDX-License-Identifier: Apache-2.0
// A scope for reading and loading state between steps.
#pragma once

#include "libfsdp/internal/engine/engine.h"

namespace fsdp::internal {

// While it lives, no forward or summon_full_params of the engine begins, and no unit has memory
// beyond its shards: the next forward sees the shards as the scope leaves them.
// Throws: c10::Error "<what> inside forward or backward", "... inside summon_full_params".
class OutsideStep {
 public:
  OutsideStep(Engine& engine, const char* what) : engine_(engine) { engine_.begin_summon(what); }
  ~OutsideStep() { engine_.end_summon(); }
  OutsideStep(const OutsideStep&) = delete;
  OutsideStep& operator=(const OutsideStep&) = delete;

 private:
  Engine& engine_;
};

}  // namespace fsdp::internal
