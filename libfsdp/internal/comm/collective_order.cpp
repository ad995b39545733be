// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/collective_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {

void CollectiveOrder::next(const std::string& what) {
  if (group_->size() == 1) return;
  const auto known = after_.find(before_last_ + '\n' + last_);
  if (known == after_.end() || known->second != what) {
    agree(what);
    after_[before_last_ + '\n' + last_] = what;
  }
  before_last_ = std::exchange(last_, what);
}

void CollectiveOrder::forget() noexcept {
  after_.clear();
  before_last_.clear();
  last_.clear();
  ++forgotten_;
}

void CollectiveOrder::agree(const std::string& what) {
  const std::string mine = what + '\n' + std::to_string(forgotten_);
  std::vector<std::string> texts;
  try {
    texts = all_gather_text(group_, mine, what);
  } catch (...) {
    forget();
    throw;
  }
  std::uint64_t most = forgotten_;
  bool alike = true;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const std::size_t end = texts[rank].rfind('\n');
    const std::string theirs = texts[rank].substr(0, end);
    if (theirs != what) {
      forget();
      FSDP_CHECK(false, "rank ", group_->global_rank(static_cast<int>(rank)),
                 " is about to start the ", theirs, " where this rank starts the ", what,
                 ": the ranks run different operators, but every rank must use the units of the "
                 "module in one order; a branch in forward must not depend on the rank or its "
                 "data, unless every rank uses the parameters of both branches");
    }
    const std::uint64_t times = std::stoull(texts[rank].substr(end + 1));
    alike = alike && times == forgotten_;
    most = std::max(most, times);
  }
  if (alike) return;
  forget();
  forgotten_ = most + 1;
}

}  // namespace fsdp::internal
