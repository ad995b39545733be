// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/gather_check.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {
namespace {

constexpr std::size_t kMostLater = 32;

}  // namespace

void GatherChecks::check(const Unit& unit, const char* trailer, std::int64_t stride) const {
  const auto trailer_of_rank = [&](int rank) {
    Trailer result;
    std::memcpy(&result, trailer + rank * stride, sizeof(result));
    return result;
  };
  const ProcessGroup& group = unit.sharding->shard();
  const std::uint64_t written = trailer_of_rank(group.rank()).written;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Trailer theirs = trailer_of_rank(rank);
    const std::int64_t id = theirs.unit_id;
    const bool known = id >= 0 && id < static_cast<std::int64_t>(all_.size());
    FSDP_CHECK(id == unit.id, "rank ", group.global_rank(rank), " gathers ",
               known ? "'" + all_[static_cast<std::size_t>(id)]->name + "'" : "something else",
               " where this rank gathers '", unit.name,
               "': the ranks run different operators, but every rank must use the units of the "
               "module in one order");
    FSDP_CHECK(
        theirs.written == written, "forward of rank ", group.global_rank(rank),
        " wrote other values than forward of this rank to parameters of unit '", unit.name, "'",
        unit.last_written == nullptr ? std::string()
                                     : ", here '" + unit.last_written->name() + "' last",
        ": each rank keeps only its rows, so values that forward writes to a parameter must not "
        "depend on the rank or its data; otherwise leave the parameter whole with ignored_states");
  }
}

void GatherChecks::check_later(const Unit& unit, const at::Tensor& trailers) {
  if (later_.size() == kMostLater || is_capturing(unit.sharding->shard())) return;
  const auto fits = std::find_if(spare_.begin(), spare_.end(), [&](const at::Tensor& spare) {
    return spare.numel() == trailers.numel();
  });
  at::Tensor on_host;
  if (fits != spare_.end()) {
    on_host = std::move(*fits);
    spare_.erase(fits);
  } else {
    on_host =
        at::empty({trailers.numel()}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
  on_host.copy_(trailers, /*non_blocking=*/true);
  later_.push_back({&unit, std::move(on_host), streams_.mark(streams_.id(Lane::kUnshard))});
}

void GatherChecks::check_arrived() {
  if (later_.empty() || is_capturing(later_.front().unit->sharding->shard())) return;
  while (!later_.empty() && later_.front().copied.event.query()) {
    Later later = std::move(later_.front());
    later_.pop_front();
    streams_.forget(std::move(later.copied));
    spare_.push_back(later.trailers);
    check(*later.unit, static_cast<const char*>(later.trailers.const_data_ptr()), kTrailerBytes);
  }
}

}  // namespace fsdp::internal
