// SPDX-License-Identifier: Apache-2.0
// The only place that calls c10d's collectives.  All functions are collective: every rank of the
// group calls them in the same order, with tensors of one size and dtype.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/comm/blocks.h"
#include "libfsdp/process_group.h"

namespace fsdp::internal {

// A collective in flight.  If destroyed before wait(), it goes on and keeps its tensors alive.
class Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&&) noexcept = default;

  // Returns whether there is something to wait for.
  explicit operator bool() const noexcept { return call_ != nullptr; }

  // Returns when the tensors hold the result (on CUDA: when work queued on the current stream from
  // now on will see it); this object is then empty.  While it waits, it asks the monitor about once
  // a second whether a rank failed.
  // Throws: PeerError "<what>: <why>; <the monitor's diagnosis>" if a peer is lost, hangs until the
  // timeout, or reported a failure.
  void wait();
  // As wait(), for the results of gather_blocks() and exchange_blocks(), given their buffer: calls
  // `take` with the blocks once they are all there, and returns when this rank's own block may
  // change.
  // Throws: what wait() and `take` throw.
  void read(const at::Tensor& buffer_WN, const std::function<void(const Blocks&)>& take);

  // One call of a backend.
  struct Call;
  explicit Pending(std::shared_ptr<Call> call) : call_(std::move(call)) {}

 private:
  std::shared_ptr<Call> call_;  // null: there is nothing to wait for
};

// Returns the elements of a contiguous tensor as bytes: backends do not support all dtypes.
at::Tensor as_bytes(const at::Tensor& tensor);

// `what` names the collective in errors: "all-gather of blocks.1".  All tensors are contiguous.
Pending all_gather(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_WN,
                   at::Tensor input_N, std::string what);
// Sends block r of the input to rank r; block r of the output came from rank r.
Pending all_to_all(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& output_WN,
                   const at::Tensor& input_WN, std::string what);
// Sends sent[r] rows of the input to each rank r, in order; the output gets received[r] rows from
// each rank r.  Collective even without rows.
Pending all_to_all(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& output,
                   const std::vector<std::int64_t>& received, const at::Tensor& input,
                   const std::vector<std::int64_t>& sent, std::string what);
// As all_gather() and all_to_all() on the CPU, for Pending::read().  If ranks of one host may read
// each other's memory (offer_board.h), has_direct_copies() is true, nothing is copied before
// read(), and no buffer is needed.
// Requires: more than one rank.
Pending gather_blocks(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& buffer_WN,
                      const at::Tensor& input_N, std::string what);
Pending exchange_blocks(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& buffer_WN,
                        const at::Tensor& input_WN, std::string what);
bool has_direct_copies(ProcessGroup& group);
// Sums this rank's block over all ranks.
Pending reduce_scatter(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_N,
                       at::Tensor input_WN, std::string what);
enum class ReduceOp { kSum, kMax, kMin };
Pending all_reduce(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, ReduceOp op,
                   std::string what);
Pending broadcast(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, int root,
                  std::string what);
// Returns once every rank has called it.
void barrier(const std::shared_ptr<ProcessGroup>& group, const std::string& what);

// Returns every rank's text, by rank.  Uses the store, so that ranks can report that they disagree
// about tensors.
// Throws: PeerError naming the ranks that did not come within the timeout.
std::vector<std::string> all_gather_text(const std::shared_ptr<ProcessGroup>& group,
                                         const std::string& text, const std::string& what);

// Returns whether the backend adds while it scatters.  Gloo's reduce_scatter is a copy and an
// all-reduce of everything: all_to_all and a mean are faster there.
bool reduces_while_scattering(const ProcessGroup& group);
// Returns whether the caller captures a graph: see BackendKind::is_capturing.
bool is_capturing(const ProcessGroup& group);

}  // namespace fsdp::internal
