// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/offer_work.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

constexpr const char* kTitle = "checking whether ranks can read each other's memory";
constexpr const char* kYes = "yes";

bool for_all(const std::shared_ptr<ProcessGroup>& group, bool here) {
  const auto answers = all_gather_text(group, here ? kYes : "no", kTitle);
  return std::all_of(answers.begin(), answers.end(),
                     [](const std::string& answer) { return answer == kYes; });
}

// Returns null if the board cannot be made or joined.
template <typename... A>
std::shared_ptr<OfferBoard> board_of(const A&... arguments) {
  try {
    return std::make_shared<OfferBoard>(arguments...);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

}  // namespace

std::shared_ptr<OfferBoard> meet_at_board(const std::shared_ptr<ProcessGroup>& group, bool wanted) {
  std::shared_ptr<OfferBoard> board;
  if (group->rank() == 0 && wanted) board = board_of(group->size());
  OfferBoard::Address there = board ? board->address() : OfferBoard::Address();
  const auto texts = all_gather_text(
      group, board ? c10::str(there.process, ' ', there.descriptor, ' ', there.secret) : "",
      kTitle);
  if (group->rank() != 0 && wanted &&
      std::istringstream(texts.front()) >> there.process >> there.descriptor >> there.secret)
    board = board_of(there, group->rank(), group->size());
  if (!for_all(group, board != nullptr)) return nullptr;
  board->close();
  return for_all(group, board->can_read_all()) ? board : nullptr;
}

OfferWork::OfferWork(std::shared_ptr<OfferBoard> board, at::Tensor input, std::int64_t from)
    : board_(std::move(board)),
      input_(std::move(input)),
      from_(from),
      number_(board_->offer(input_.const_data_ptr(), static_cast<std::int64_t>(input_.nbytes()))) {}

void OfferWork::take(const std::function<void(const Blocks&)>& take) {
  std::vector<const char*> here(static_cast<std::size_t>(board_->size()));
  here[static_cast<std::size_t>(board_->rank())] =
      static_cast<const char*>(input_.const_data_ptr()) + from_;
  try {
    take(Blocks(std::move(here), [this](int rank, const std::vector<Blocks::Segment>& segments) {
      board_->read(rank, number_, segments, from_);
    }));
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

}  // namespace fsdp::internal
