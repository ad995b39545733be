// SPDX-License-Identifier: Apache-2.0
// Collectives in which ranks read each other's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libfsdp/internal/comm/blocks.h"
#include "libfsdp/internal/comm/offer_board.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// Collective over the group, whose backend must work.  Returns null on every rank if a rank cannot
// read the memory of another (on another host, in another PID namespace, or where the kernel
// forbids it), or does not want to.
std::shared_ptr<OfferBoard> meet_at_board(const std::shared_ptr<ProcessGroup>& group, bool wanted);

class OfferWork final : public c10d::Work {
 public:
  // Offers `input`, contiguous, and keeps it until the others have taken it.  This rank's blocks
  // are bytes [from, from + bytes) of what each rank offers.
  OfferWork(std::shared_ptr<OfferBoard> board, at::Tensor input, std::int64_t from);

  // Calls `take` with the blocks of all ranks.  Requires: wait() has returned true, take() or
  // leave() was not called.
  void take(const std::function<void(const Blocks&)>& take);
  // Tells that this rank needs no blocks, or no more of them.
  void leave() noexcept;

  // Before take() or leave(): returns true once all ranks have offered their blocks.  Afterwards:
  // once the others have taken this rank's blocks.
  // Throws: c10::Error at the timeout, and if a rank offers another number of bytes.
  bool wait(std::chrono::milliseconds timeout) override;
  // Returns whether the others have taken this rank's blocks, and this rank needs none.
  bool isCompleted() override { return isSuccess(); }
  bool isSuccess() const override { return has_left_ && board_->all_took(number_); }

 private:
  const std::shared_ptr<OfferBoard> board_;
  at::Tensor input_;
  const std::int64_t from_;
  const std::uint64_t number_;
  bool has_left_ = false;
};

}  // namespace fsdp::internal
