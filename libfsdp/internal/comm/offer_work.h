// SPDX-License-Identifier: Apache-2.0
// A collective in which ranks read each other's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "libfsdp/internal/comm/blocks.h"
#include "libfsdp/internal/comm/offer_board.h"

namespace fsdp::internal {

class OfferWork final : public c10d::Work, private Blocks {
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
  bool isCompleted() override;
  bool isSuccess() const override;

 private:
  void copy(int rank, const std::vector<Segment>& segments) const override;
  const char* view(int rank, std::int64_t from, std::int64_t bytes, char* scratch) const override;

  const std::shared_ptr<OfferBoard> board_;
  at::Tensor input_;
  const std::int64_t from_;
  const std::uint64_t number_;
  bool has_left_ = false;
};

}  // namespace fsdp::internal
