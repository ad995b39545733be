// SPDX-License-Identifier: Apache-2.0
// Bases of classes whose objects stay where they are.
#pragma once

namespace fsdp::formats {

// Neither copied nor moved.
struct NotCopied {
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;
};

// The same, and deleted through a pointer to the base.
struct Interface : NotCopied {
  virtual ~Interface() = default;
};

}  // namespace fsdp::formats
