// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/rank_0_values.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "libfsdp/internal/comm/collectives.h"

namespace fsdp::internal {
namespace {

// At 1 GB/s a bunch takes a hundred times as long as ranks need to begin a collective.
constexpr std::int64_t kLargeBunch = std::int64_t{16} << 20;

}  // namespace

Rank0Values::Rank0Values(const Mesh& mesh, std::int64_t most_bytes)
    : mesh_(mesh), full_bunch_(std::min(kLargeBunch, most_bytes / 2)) {}

bool Rank0Values::send(const at::Tensor& tensor) {
  bunch_.push_back(tensor.detach());
  bunch_bytes_ += static_cast<std::int64_t>(tensor.nbytes());
  if (bunch_bytes_ < full_bunch_) return false;
  finish();
  return true;
}

void Rank0Values::finish() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> small;
  std::int64_t small_bytes = 0;
  for (const at::Tensor& tensor : bunch_) {
    if (tensor.is_contiguous() && static_cast<std::int64_t>(tensor.nbytes()) >= full_bunch_) {
      broadcast_all(as_bytes(tensor));
    } else {
      small.push_back(tensor);
      small_bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
  }
  bunch_.clear();
  bunch_bytes_ = 0;
  if (small_bytes == 0) return;
  const at::Tensor packed = at::empty({small_bytes}, small.front().options().dtype(at::kByte));
  const auto for_each_place = [&](const auto& f) {
    std::int64_t position = 0;
    for (const at::Tensor& tensor : small) {
      const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
      f(tensor, packed.narrow(0, position, bytes));
      position += bytes;
    }
  };
  for_each_place([](const at::Tensor& tensor, const at::Tensor& place) {
    place.copy_(as_bytes(tensor.contiguous()));
  });
  broadcast_all(packed);
  for_each_place([](const at::Tensor& tensor, const at::Tensor& place) {
    // The place may not be aligned for the dtype.
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options());
    as_bytes(values).copy_(place);
    tensor.copy_(values);
  });
}

void Rank0Values::broadcast_all(const at::Tensor& values) const {
  for (const auto& group : {mesh_.replicate, mesh_.shard}) {
    if (group && group->size() > 1)
      broadcast(group, values, 0, "broadcast of the states of rank 0").wait();
  }
}

}  // namespace fsdp::internal
