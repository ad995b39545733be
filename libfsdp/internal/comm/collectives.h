// SPDX-License-Identifier: Apache-2.0
// The only place that calls c10d's collectives.  All are collective: every rank of the group calls
// them in the same order, with tensors of one size and dtype.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "libfsdp/process_group.h"

namespace c10d {
class Work;
}

namespace fsdp {

// A collective in flight.  Destroyed before wait(): the collective goes on, its tensors stay alive.
class Pending {
 public:
  Pending();
  Pending(std::shared_ptr<ProcessGroup> group, c10::intrusive_ptr<c10d::Work> work,
          std::string what, std::function<void()> finish = nullptr);
  ~Pending();
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;

  // Whether there is something to wait for.
  explicit operator bool() const noexcept;

  // Returns when the tensors hold the result (on CUDA: when work queued on the current stream from
  // now on will see it); then empty.  While it waits it asks the monitor about once a second
  // whether a rank failed.
  // Throws: PeerError "<what>: <why>; <the monitor's diagnosis>" where a peer is lost, hangs until
  // the timeout, or said that it failed.
  void wait();

 private:
  void wait_in_slices();
  void wait_on_stream();
  void abandon() noexcept;

  std::shared_ptr<ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::string what_;
  std::function<void()> finish_;  // what is left to compute when the data is here
};

// `what` names the collective in errors: "all-gather of blocks.1".  All tensors are contiguous.
Pending all_gather(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_WN,
                   at::Tensor input_N, std::string what);
// Block r of the input goes to rank r; block r of the output came from it.
Pending all_to_all(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_WN,
                   at::Tensor input_WN, std::string what);
// The sum of every rank's block of this rank.
Pending reduce_scatter(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_N,
                       at::Tensor input_WN, std::string what);
enum class ReduceOp { kSum, kMax, kMin };
Pending all_reduce(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, ReduceOp op,
                   std::string what);
Pending broadcast(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, int root,
                  std::string what);
// Returns when every rank has come here.
void barrier(const std::shared_ptr<ProcessGroup>& group, const std::string& what);

// Every rank's text, by rank; through the store, so that ranks that disagree about tensors can
// still say so.
// Throws: PeerError naming the ranks that did not come within the timeout.
std::vector<std::string> all_gather_text(const std::shared_ptr<ProcessGroup>& group,
                                         const std::string& text, const std::string& what);

// Whether the backend adds while it scatters.  Gloo's reduce_scatter is a copy and an all-reduce of
// everything: all_to_all and a mean are faster there.
bool reduces_while_scattering(const ProcessGroup& group);

}  // namespace fsdp
