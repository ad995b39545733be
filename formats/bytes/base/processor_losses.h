// SPDX-License-Identifier: Apache-2.0
// Detects that other work takes the processor from threads that write.
#pragma once

namespace fsdp::formats {

class ProcessorLosses {
 public:
  void add(bool lost) {
    if (score_ != 0) --score_;
    if (lost) score_ = score_ + kLoss < kMost ? score_ + kLoss : kMost;
  }
  bool many() const { return score_ > kMany; }

 private:
  // Writes after which a loss is forgotten.  On an idle machine one write in 100 to 200 is
  // interrupted; beside one busy core, one in ten.
  static constexpr unsigned kLoss = 30;
  static constexpr unsigned kMany = 60;
  static constexpr unsigned kMost = 300;
  unsigned score_ = 0;
};

}  // namespace fsdp::formats
