// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/reduce.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
using namespace internal;
namespace {

ReduceOp op_of(ReduceKind kind) {
  return kind == ReduceKind::kMin   ? ReduceOp::kMin
         : kind == ReduceKind::kMax ? ReduceOp::kMax
                                    : ReduceOp::kSum;
}

// Each rank computes operations that not every backend has, from the tensors of all ranks.
at::Tensor combined(const at::Tensor& a, const at::Tensor& b, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kBitwiseAnd:
      return at::bitwise_and(a, b);
    case ReduceKind::kBitwiseOr:
      return at::bitwise_or(a, b);
    case ReduceKind::kBitwiseXor:
      return at::bitwise_xor(a, b);
    default:
      return at::mul(a, b);
  }
}

at::Tensor combined_over_ranks(const at::Tensor& own, const std::shared_ptr<ProcessGroup>& group,
                               ReduceKind kind) {
  if (group->size() == 1) return own;
  const at::Tensor flat = own.reshape({-1});
  const at::Tensor all = at::empty({group->size() * flat.numel()}, flat.options());
  all_gather(group, as_bytes(all), as_bytes(flat), "reduce").wait();
  at::Tensor result = all.narrow(0, 0, flat.numel());
  for (int rank = 1; rank < group->size(); ++rank)
    result = combined(result, all.narrow(0, rank * flat.numel(), flat.numel()), kind);
  return result.reshape(own.sizes());
}

}  // namespace

ReduceKind reduce_kind(std::string_view name) {
  using Entry = std::pair<std::string_view, ReduceKind>;
  constexpr std::array<Entry, 9> kNames{{{"mean", ReduceKind::kMean},
                                         {"avg", ReduceKind::kMean},
                                         {"sum", ReduceKind::kSum},
                                         {"product", ReduceKind::kProduct},
                                         {"min", ReduceKind::kMin},
                                         {"max", ReduceKind::kMax},
                                         {"band", ReduceKind::kBitwiseAnd},
                                         {"bor", ReduceKind::kBitwiseOr},
                                         {"bxor", ReduceKind::kBitwiseXor}}};
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto found = std::find_if(kNames.begin(), kNames.end(),
                                  [&](const Entry& entry) { return entry.first == lower; });
  FSDP_CHECK(found != kNames.end(), "reduce: expected mean, sum, product, min, max, band, bor or ",
             "bxor, found '", name, "'");
  return found->second;
}

at::Tensor reduce(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group,
                  ReduceKind kind) {
  const at::NoGradGuard no_grad;
  const c10::Device device = collective_device(*group);
  at::Tensor result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  if (!is_host(device)) result = result.to(device);
  if (kind == ReduceKind::kMean || op_of(kind) != ReduceOp::kSum || kind == ReduceKind::kSum) {
    all_reduce(group, result, op_of(kind), "reduce").wait();
    if (kind == ReduceKind::kMean) result = result / group->size();
  } else {
    result = combined_over_ranks(result, group, kind);
  }
  return result.to(tensor.device());
}

}  // namespace fsdp
