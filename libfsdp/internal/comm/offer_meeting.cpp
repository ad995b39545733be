// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/offer_meeting.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/collectives.h"

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

std::string text_of(const OfferBoard::Address& address) {
  std::ostringstream text;
  text << address.process << ' ' << address.descriptor << ' ' << address.secret;
  return text.str();
}

}  // namespace

std::shared_ptr<OfferBoard> meet_at_board(const std::shared_ptr<ProcessGroup>& group, bool wanted) {
  std::shared_ptr<OfferBoard> board;
  if (group->rank() == 0 && wanted) board = board_of(group->size());
  const auto texts = all_gather_text(group, board ? text_of(board->address()) : "", kTitle);
  OfferBoard::Address there;
  if (group->rank() != 0 && wanted &&
      std::istringstream(texts.front()) >> there.process >> there.descriptor >> there.secret)
    board = board_of(there, group->rank(), group->size());
  if (!for_all(group, board != nullptr)) return nullptr;
  board->close();
  return for_all(group, board->can_read_all()) ? board : nullptr;
}

}  // namespace fsdp::internal
