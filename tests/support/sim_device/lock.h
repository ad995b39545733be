// SPDX-License-Identifier: Apache-2.0
// One lock for the whole simulated device: its parts call each other, and calls are short.
#pragma once

#include <mutex>

namespace fsdp::test::sim {

// Never destroyed: tensors may outlive static objects of other files.
inline std::recursive_mutex& device_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

class Lock {
 public:
  Lock() : lock_(device_mutex()) {}

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace fsdp::test::sim
