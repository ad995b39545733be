// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/budget.h"

#include <atomic>
#include <limits>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Bytes that a thread may take or give back before it updates the count of all threads.
constexpr std::int64_t kUntold = 64 << 10;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

constinit std::atomic<std::int64_t> taken{0};
constinit std::atomic<std::int64_t> memory_limit{kNoLimit};
constinit thread_local std::int64_t untold = 0;

constinit std::atomic<std::uint64_t> expanded{0};
constinit std::atomic<std::uint64_t> gone_through{0};
constinit Budget current{};

void charge(std::atomic<std::uint64_t>& sum, std::uint64_t bytes, std::uint64_t most,
            std::string_view what) {
  if (most == 0 || sum.fetch_add(bytes) + bytes <= most) return;
  throw OverWork(
      cat(what, " more than ", human_bytes(most), ", far more than files of this size need"));
}

}  // namespace

BudgetScope::BudgetScope(const Budget& budget) noexcept {
  current = budget;
  expanded = 0;
  gone_through = 0;
  if (budget.memory_bytes == 0) return;
  const std::int64_t before = taken.load() + untold;
  const auto most = static_cast<std::uint64_t>(kNoLimit - before);
  memory_limit = budget.memory_bytes >= most
                     ? kNoLimit
                     : before + static_cast<std::int64_t>(budget.memory_bytes);
}

BudgetScope::~BudgetScope() {
  memory_limit = kNoLimit;
  current = {};
}

void charge_memory(std::size_t bytes) {
  // A sum of such sizes would overflow.
  if (bytes > static_cast<std::size_t>(kNoLimit / 4)) throw OverBudget();
  const auto size = static_cast<std::int64_t>(bytes);
  untold += size;
  if (untold < kUntold) return;
  const std::int64_t told = untold;
  const std::int64_t sum = taken.fetch_add(told, std::memory_order_relaxed) + told;
  untold = 0;
  if (sum <= memory_limit.load(std::memory_order_relaxed)) return;
  untold = -size;
  throw OverBudget();
}

void release_memory(std::size_t bytes) noexcept {
  untold -= static_cast<std::int64_t>(bytes);
  if (untold > -kUntold) return;
  taken.fetch_add(untold, std::memory_order_relaxed);
  untold = 0;
}

std::uint64_t memory_left() noexcept {
  const std::int64_t most = memory_limit.load();
  if (most == kNoLimit) return UINT64_MAX;
  const std::int64_t sum = taken.load() + untold;
  return sum >= most ? 0 : static_cast<std::uint64_t>(most - sum);
}

void charge_expansion(std::uint64_t bytes) {
  charge(expanded, bytes, current.expanded_bytes, "compressed data expand to");
}

void charge_pickle(std::uint64_t bytes) {
  charge(gone_through, bytes, current.pickle_bytes, "all pickles together have");
}

}  // namespace fsdp::formats
