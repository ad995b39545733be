// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/offer_work.h"

#include <cstring>
#include <utility>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {

OfferWork::OfferWork(std::shared_ptr<OfferBoard> board, at::Tensor input, std::int64_t from)
    : board_(std::move(board)),
      input_(std::move(input)),
      from_(from),
      number_(board_->offer(input_.const_data_ptr(), static_cast<std::int64_t>(input_.nbytes()))) {}

void OfferWork::take(const std::function<void(const Blocks&)>& take) {
  try {
    take(*this);
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

void OfferWork::leave() noexcept {
  if (!std::exchange(has_left_, true)) board_->took(number_);
}

bool OfferWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = OfferBoard::Clock::now() + timeout;
  const bool done = board_->wait(
      [&] { return has_left_ ? board_->all_took(number_) : board_->all_offered(number_); },
      deadline);
  FSDP_CHECK(done, "not done within ", timeout.count(), " ms");
  if (!has_left_) {
    const int other = board_->of_another_size(number_);
    FSDP_CHECK(other < 0, "rank ", other, " of the group has a block of another size than the ",
               input_.nbytes(), " bytes of this rank");
  }
  return true;
}

bool OfferWork::isCompleted() {
  return isSuccess();
}

bool OfferWork::isSuccess() const {
  return has_left_ && board_->all_took(number_);
}

void OfferWork::copy(int rank, const std::vector<Segment>& segments) const {
  if (rank == board_->rank()) {
    const auto* own = static_cast<const char*>(input_.const_data_ptr()) + from_;
    for (const Segment& segment : segments)
      std::memcpy(segment.to, own + segment.from, static_cast<std::size_t>(segment.bytes));
    return;
  }
  std::vector<Segment> placed = segments;
  for (Segment& segment : placed) segment.from += from_;
  board_->read(rank, number_, placed);
}

const char* OfferWork::view(int rank, std::int64_t from, std::int64_t bytes, char* scratch) const {
  if (rank == board_->rank())
    return static_cast<const char*>(input_.const_data_ptr()) + from_ + from;
  board_->read(rank, number_, {{from_ + from, bytes, scratch}});
  return scratch;
}

}  // namespace fsdp::internal
