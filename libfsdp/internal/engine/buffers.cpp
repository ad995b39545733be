// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/engine/buffers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/internal/comm/left_out.h"

namespace fsdp::internal {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLargePage = std::int64_t{1} << 20;

// Rounds sizes up, so that gathers and reductions of similar units have equal buffers.
std::int64_t size_class(std::int64_t bytes) {
  const std::int64_t step = bytes < kLargePage ? kPage : kLargePage;
  return std::max(step, (bytes + step - 1) / step * step);
}

std::int64_t bytes_of(const c10::Storage& storage) {
  return static_cast<std::int64_t>(storage.nbytes());
}

}  // namespace

Buffers::Buffers(Streams& streams, bool limited)
    : streams_(streams), limited_(limited || streams.on_cpu()) {}

Buffers::~Buffers() {
  for (Pool& pool : pools_) {
    while (!pool.free.empty()) drop(pool, pool.free.begin());
  }
}

std::int64_t Buffers::free_bytes() const noexcept {
  std::int64_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.free_bytes;
  return sum;
}

std::size_t Buffers::free_count() const noexcept {
  std::size_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.free.size();
  return sum;
}

Buffers::Place Buffers::smallest(Pool& pool, std::int64_t bytes, std::int64_t most) {
  Place best = pool.free.end();
  for (Place place = pool.free.begin(); place != pool.free.end(); ++place) {
    const std::int64_t size = bytes_of(place->storage);
    if (size >= bytes && size <= most &&
        (best == pool.free.end() || size < bytes_of(best->storage)))
      best = place;
  }
  return best;
}

// Returns a free buffer for `size` bytes; the end if a new one is needed.  A slightly larger buffer
// is better than a new one.  Units of many sizes would leave as many buffers, so all buffers
// together take at most twice the most that was ever lent at once.
Buffers::Place Buffers::fitting(Pool& pool, std::int64_t size) {
  const Place close = smallest(pool, size, size + size / 4);
  if (close != pool.free.end()) return close;
  const std::int64_t most = 2 * std::max(pool.most_lent_bytes, pool.lent_bytes + size);
  const auto is_too_much = [&] { return pool.lent_bytes + pool.free_bytes + size > most; };
  if (!is_too_much()) return pool.free.end();
  const Place larger = smallest(pool, size, std::numeric_limits<std::int64_t>::max());
  if (larger != pool.free.end()) return larger;
  while (!pool.free.empty() && is_too_much()) drop(pool, pool.free.begin());
  return pool.free.end();
}

at::Tensor Buffers::tensor_of(const c10::Storage& storage, std::int64_t bytes) const {
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(streams_.device()))
      .set_(storage, 0, {bytes}, {1});
}

void Buffers::note_returned(Pool& pool, Use use, std::int64_t bytes) {
  lent_[index(use)] -= bytes;
  pool.lent_bytes -= bytes;
}

at::Tensor Buffers::take(std::int64_t bytes, Use use, Lane lane) {
  Pool& pool = pool_of(lane);
  const std::int64_t size = size_class(bytes);
  const Place place = reuses(use) ? fitting(pool, size) : pool.free.end();
  at::Tensor buffer;
  if (place != pool.free.end()) {
    for (StreamPoint& point : place->until) streams_.pass(std::move(point), lane);
    pool.free_bytes -= bytes_of(place->storage);
    buffer = tensor_of(place->storage, bytes);
    pool.free.erase(place);
  } else {
    const auto entered = streams_.enter(lane);
    buffer = at::empty({size}, at::TensorOptions().dtype(at::kByte).device(streams_.device()))
                 .narrow(0, 0, bytes);
  }
  const std::int64_t lent = bytes_of(buffer.storage());
  lent_[index(use)] += lent;
  peak_[index(use)] = std::max(peak_[index(use)], lent_[index(use)]);
  pool.lent_bytes += lent;
  pool.most_lent_bytes = std::max(pool.most_lent_bytes, pool.lent_bytes);
  return buffer;
}

void Buffers::give(at::Tensor&& buffer, Use use, Lane lane,
                   const std::vector<c10::StreamId>& others) {
  if (!buffer.defined()) return;
  const bool is_named = !others.empty() && !is_left_out("give");
  Pool& pool = pool_of(lane);
  const std::int64_t bytes = bytes_of(buffer.storage());
  note_returned(pool, use, bytes);
  if (reuses(use)) {
    Free& free = pool.free.emplace_back(Free{buffer.storage(), {}});
    pool.free_bytes += bytes;
    if (!streams_.on_cpu() && is_named) {
      for (const c10::StreamId other : others) free.until.push_back(streams_.mark(other));
    }
  } else if (is_named) {
    for (const c10::StreamId other : others) streams_.used_on(buffer, other);
  }
  buffer.reset();
}

void Buffers::abandon(at::Tensor&& buffer, Use use, Lane lane) {
  if (!buffer.defined()) return;
  note_returned(pool_of(lane), use, bytes_of(buffer.storage()));
  for (const Lane user : {Lane::kCompute, Lane::kUnshard, Lane::kReduce})
    streams_.used_on(buffer, streams_.id(user));
  buffer.reset();
}

// Drops a buffer; the allocator may reuse its memory now.
void Buffers::drop(Pool& pool, Place place) {
  const std::int64_t bytes = bytes_of(place->storage);
  pool.free_bytes -= bytes;
  for (StreamPoint& point : place->until) {
    streams_.used_on(tensor_of(place->storage, bytes), point.stream);
    streams_.forget(std::move(point));
  }
  pool.free.erase(place);
}

}  // namespace fsdp::internal
