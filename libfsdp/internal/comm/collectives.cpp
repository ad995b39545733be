// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/collectives.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/comm/offer_work.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/comm/store_client.h"
#include "libfsdp/internal/comm/waits.h"

namespace fsdp::internal {

struct Pending::Call {
  Call(std::shared_ptr<ProcessGroup> of, c10::intrusive_ptr<c10d::Work> running, std::string title,
       std::function<void()> rest)
      : group(std::move(of)),
        work(std::move(running)),
        what(std::move(title)),
        finish(std::move(rest)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // Returns null if ranks do not read each other's memory.
  OfferWork* offer() const noexcept { return dynamic_cast<OfferWork*>(work.get()); }
  void wait_on_stream() const;
  void wait_in_slices() const;

  const std::shared_ptr<ProcessGroup> group;
  c10::intrusive_ptr<c10d::Work> work;  // null once it is done
  const std::string what;
  const std::function<void()> finish;  // computes the rest after the backend's work; may be null
};

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice(1000);
constexpr milliseconds kBetweenQuestions(1);

// Only one collective is issued at a time in the whole process, not just in a group: LibTorch 2.11
// has one map of all groups (FlightRecorder::all_pg_status_), and changes it without a lock when a
// group issues its first collective, while others read it.
std::mutex& issue_mutex() {
  static std::mutex mutex;
  return mutex;
}

const BackendKind& kind_of(const ProcessGroup& group) {
  return backend_kind(group.backend_name());
}

// Turns "[file.cc:12] Connection closed by peer" into "Connection closed by peer".
std::string without_place(const std::string& message) {
  const auto end = message.find("] ");
  const bool has_place = message.starts_with('[') && end != std::string::npos;
  const std::string first_line = message.substr(0, message.find('\n'));
  return has_place && end < first_line.size() ? first_line.substr(end + 2) : first_line;
}

// Issues a call of the group's backend.  `finish`: computes the rest after the backend's work.
template <typename Issue>
Pending issued(const std::shared_ptr<ProcessGroup>& group, std::string what, const Issue& issue,
               std::function<void()> finish = nullptr) {
  std::string error;
  {
    // Backends run their tensor operations in their own threads, with this thread's state.
    const OwnWork own;
    const std::scoped_lock lock(issue_mutex(), calls_of(*group).mutex);
    enter_collective(*group, what);
    try {
      auto work = issue(*group->backend());
      return Pending(std::make_shared<Pending::Call>(group, std::move(work), std::move(what),
                                                     std::move(finish)));
    } catch (const std::exception& caught) {
      error = without_place(message_of(caught));
    }
  }
  throw_lost(*group, what, error);
}

// Does what any collective does that moves data in a group of one rank.
Pending copied(const at::Tensor& output, const at::Tensor& input) {
  const OwnWork own;
  as_bytes(output).copy_(as_bytes(input));
  return {};
}

at::Tensor room_for(const at::Tensor& tensor, std::int64_t numel) {
  const OwnWork own;
  return at::empty({numel}, tensor.options());
}

void check(bool ok, const std::string& what, const char* expected, const at::Tensor& output,
           const at::Tensor& input) {
  FSDP_CHECK(ok, what, ": expected ", expected, ", but got an output of ", output.numel(), " ",
             output.scalar_type(), " and an input of ", input.numel(), " ", input.scalar_type());
}

c10d::ReduceOp op_of(ReduceOp op) {
  return op == ReduceOp::kMax   ? c10d::ReduceOp::MAX
         : op == ReduceOp::kMin ? c10d::ReduceOp::MIN
                                : c10d::ReduceOp::SUM;
}

// Gloo gathers into a temporary that it allocates each time, and copies.  Broadcasts write in
// place, at half the cost, but need one call for each rank.
constexpr int kMostBroadcasts = 8;

bool gathers_by_broadcasts(const ProcessGroup& group) {
  return group.size() <= kMostBroadcasts && kind_of(group).gathers_into_a_copy;
}

// Sends equal blocks.  `finish`: see issued().
Pending exchanged(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& output_WN,
                  const at::Tensor& input_WN, std::string what,
                  std::function<void()> finish = nullptr) {
  return issued(
      group, std::move(what),
      [&](c10d::Backend& backend) {
        auto output = as_bytes(output_WN);
        auto input = as_bytes(input_WN);
        std::vector<std::int64_t> even;
        return backend.alltoall_base(output, input, even, even);
      },
      std::move(finish));
}

// Offers what other ranks then read: this rank's blocks begin at byte `from` of what each offers.
Pending offered(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& input,
                std::int64_t from, std::string what) {
  return issued(group, std::move(what), [&](c10d::Backend&) {
    return c10::make_intrusive<OfferWork>(calls_of(*group).board, input, from);
  });
}

// Combines several collectives of the backend into one.
class AllOf final : public c10d::Work {
 public:
  explicit AllOf(std::vector<c10::intrusive_ptr<c10d::Work>> works) : works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
  }
  // Each gets the whole time: the caller polls and keeps the deadline itself.
  bool wait(milliseconds timeout) override {
    for (const auto& work : works_) {
      if (!work->wait(timeout)) return false;
    }
    return true;
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Reduces the parts of all ranks.
void reduce_parts(const at::Tensor& output, const at::Tensor& parts, ReduceOp op) {
  auto flat_N = output.view({output.numel()});
  const auto parts_WN = parts.view({-1, output.numel()});
  switch (op) {
    case ReduceOp::kSum:
      at::sum_out(flat_N, parts_WN, {0}, false, output.scalar_type());
      break;
    case ReduceOp::kMax:
      at::amax_out(flat_N, parts_WN, {0});
      break;
    case ReduceOp::kMin:
      at::amin_out(flat_N, parts_WN, {0});
      break;
  }
}

}  // namespace

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({tensor.numel()}).view(at::kByte);
}

// Lets a call that nobody waits for go on.
Pending::Call::~Call() {
  if (!work) return;
  if (OfferWork* const own = offer()) own->leave();
  if (work->isCompleted()) return;
  const std::lock_guard lock(calls_of(*group).mutex);
  auto& abandoned = calls_of(*group).abandoned;
  std::erase_if(abandoned, [](const auto& other) { return other->isCompleted(); });
  abandoned.push_back(work);
}

void Pending::Call::wait_on_stream() const {
  // A rank whose forward threw may go on: it gets as much time as in waits of the thread.
  const auto began = Clock::now();
  while (others_failed(*group) && !work->isCompleted()) {
    if (Clock::now() - began >= kSlice) throw_lost(*group, what, "another rank failed");
    std::this_thread::sleep_for(kBetweenQuestions);
  }
  try {
    work->wait();
  } catch (const std::exception& error) {
    throw_lost(*group, what, without_place(message_of(error)));
  }
}

void Pending::Call::wait_in_slices() const {
  const auto began = Clock::now();
  LongWait long_wait(*group, what);
  while (true) {
    const auto slice_began = Clock::now();
    try {
      work->wait(kSlice);
      return;
    } catch (const std::exception& error) {
      // If several collectives were combined, one may have failed while others still run.
      const bool too_early_for_a_timeout = Clock::now() - slice_began < kSlice;
      if (too_early_for_a_timeout || work->isCompleted()) {
        // It may have succeeded just after the slice.
        if (work->isSuccess()) continue;
        throw_lost(*group, what, without_place(message_of(error)));
      }
    }
    long_wait.look();
    if (others_failed(*group)) throw_lost(*group, what, "another rank failed");
    if (Clock::now() - began >= group->timeout()) {
      throw_lost(*group, what, "not done within " + duration_text(group->timeout()));
    }
  }
}

void Pending::wait() {
  if (!call_) return;
  const bool on_stream = kind_of(*call_->group).waits_on_stream;
  if (on_stream && is_left_out("wait")) return;
  // Leaves nothing to wait for, even if this throws.
  const std::shared_ptr<Call> ending = std::move(call_);
  if (OfferWork* const offer = ending->offer()) offer->leave();
  on_stream ? ending->wait_on_stream() : ending->wait_in_slices();
  if (ending->finish) {
    const OwnWork own;
    ending->finish();
  }
  ending->work.reset();
}

void Pending::read(const at::Tensor& buffer_WN, const std::function<void(const Blocks&)>& take) {
  const OwnWork own;
  const std::shared_ptr<Call> ending = std::move(call_);
  ending->wait_in_slices();
  if (OfferWork* const offer = ending->offer()) {
    // Even if `take` throws, the caller may next write this rank's block, which others still read.
    std::exception_ptr thrown;
    try {
      offer->take(take);
    } catch (const LostOffer& error) {
      throw_lost(*ending->group, ending->what, error.what());
    } catch (...) {
      thrown = std::current_exception();
    }
    try {
      ending->wait_in_slices();
    } catch (...) {
      if (!thrown) throw;
    }
    if (thrown) std::rethrow_exception(thrown);
  } else {
    take(Blocks(buffer_WN, ending->group->size()));
  }
  ending->work.reset();
}

Pending all_gather(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_WN,
                   at::Tensor input_N, std::string what) {
  check(output_WN.numel() == input_N.numel() * group->size() &&
            output_WN.scalar_type() == input_N.scalar_type(),
        what, "an output of one input per rank", output_WN, input_N);
  if (input_N.numel() == 0) return {};
  if (!group->backend()) return copied(output_WN, input_N);
  return issued(group, std::move(what), [&](c10d::Backend& backend) {
    auto output = as_bytes(output_WN);
    auto input = as_bytes(input_N);
    if (!gathers_by_broadcasts(*group)) return backend._allgather_base(output, input);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int rank = 0; rank < group->size(); ++rank) {
      std::vector<at::Tensor> block{output.narrow(0, rank * input.numel(), input.numel())};
      if (rank == group->rank()) block.front().copy_(input);
      c10d::BroadcastOptions options;
      options.rootRank = rank;
      works.push_back(backend.broadcast(block, options));
    }
    return c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<AllOf>(std::move(works)));
  });
}

Pending all_to_all(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& output_WN,
                   const at::Tensor& input_WN, std::string what) {
  check(output_WN.numel() == input_WN.numel() && input_WN.numel() % group->size() == 0 &&
            output_WN.scalar_type() == input_WN.scalar_type(),
        what, "an output and an input of one block per rank", output_WN, input_WN);
  if (input_WN.numel() == 0) return {};
  if (!group->backend()) return copied(output_WN, input_WN);
  return exchanged(group, output_WN, input_WN, std::move(what));
}

Pending all_to_all(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& output,
                   const std::vector<std::int64_t>& received, const at::Tensor& input,
                   const std::vector<std::int64_t>& sent, std::string what) {
  const auto add_up = [&](const std::vector<std::int64_t>& counts, const at::Tensor& rows) {
    return counts.size() == static_cast<std::size_t>(group->size()) &&
           std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == rows.size(0);
  };
  check(add_up(received, output) && add_up(sent, input) &&
            output.sizes().slice(1) == input.sizes().slice(1) &&
            output.scalar_type() == input.scalar_type(),
        what, "as many rows as are sent and received", output, input);
  if (!group->backend()) return copied(output, input);
  const std::int64_t row_bytes =
      c10::multiply_integers(input.sizes().slice(1)) * static_cast<std::int64_t>(input.itemsize());
  const auto in_bytes = [&](std::vector<std::int64_t> counts) {
    for (std::int64_t& count : counts) count *= row_bytes;
    return counts;
  };
  return issued(group, std::move(what), [&](c10d::Backend& backend) {
    auto to = as_bytes(output);
    auto from = as_bytes(input);
    auto received_bytes = in_bytes(received);
    auto sent_bytes = in_bytes(sent);
    return backend.alltoall_base(to, from, received_bytes, sent_bytes);
  });
}

bool has_direct_copies(ProcessGroup& group) {
  return calls_of(group).board != nullptr;
}

Pending gather_blocks(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& buffer_WN,
                      const at::Tensor& input_N, std::string what) {
  if (has_direct_copies(*group)) return offered(group, input_N, 0, std::move(what));
  return all_gather(group, buffer_WN, input_N, std::move(what));
}

Pending exchange_blocks(const std::shared_ptr<ProcessGroup>& group, const at::Tensor& buffer_WN,
                        const at::Tensor& input_WN, std::string what) {
  const auto block = static_cast<std::int64_t>(input_WN.nbytes()) / group->size();
  if (has_direct_copies(*group))
    return offered(group, input_WN, group->rank() * block, std::move(what));
  return all_to_all(group, buffer_WN, input_WN, std::move(what));
}

Pending reduce_scatter(const std::shared_ptr<ProcessGroup>& group, at::Tensor output_N,
                       at::Tensor input_WN, std::string what) {
  check(input_WN.numel() == output_N.numel() * group->size() &&
            output_N.scalar_type() == input_WN.scalar_type(),
        what, "an input of one output per rank", output_N, input_WN);
  if (output_N.numel() == 0) return {};
  if (!group->backend()) return copied(output_N, input_WN);
  if (reduces_while_scattering(*group)) {
    return issued(group, std::move(what), [&](c10d::Backend& backend) {
      auto output = output_N.view({output_N.numel()});
      auto input = input_WN.view({input_WN.numel()});
      return backend._reduce_scatter_base(output, input);
    });
  }
  const at::Tensor parts_WN = room_for(input_WN, input_WN.numel());
  return exchanged(group, parts_WN, input_WN, std::move(what),
                   [output_N, parts_WN] { reduce_parts(output_N, parts_WN, ReduceOp::kSum); });
}

Pending all_reduce(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, ReduceOp op,
                   std::string what) {
  if (tensor.numel() == 0 || !group->backend()) return {};
  const auto& kind = kind_of(*group);
  if (kind.reduces(static_cast<int>(tensor.scalar_type()), op == ReduceOp::kSum)) {
    return issued(group, std::move(what), [&](c10d::Backend& backend) {
      std::vector<at::Tensor> tensors{tensor.view({tensor.numel()})};
      c10d::AllreduceOptions options;
      options.reduceOp = op_of(op);
      return backend.allreduce(tensors, options);
    });
  }
  const at::Tensor parts_WN = room_for(tensor, tensor.numel() * group->size());
  return issued(
      group, std::move(what),
      [&](c10d::Backend& backend) {
        auto output = as_bytes(parts_WN);
        auto input = as_bytes(tensor);
        return backend._allgather_base(output, input);
      },
      [tensor, parts_WN, op] { reduce_parts(tensor, parts_WN, op); });
}

Pending broadcast(const std::shared_ptr<ProcessGroup>& group, at::Tensor tensor, int root,
                  std::string what) {
  FSDP_CHECK(root >= 0 && root < group->size(), what, ": expected a rank below ", group->size(),
             ", but got ", root);
  if (tensor.numel() == 0 || !group->backend()) return {};
  return issued(group, std::move(what), [&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}

void barrier(const std::shared_ptr<ProcessGroup>& group, const std::string& what) {
  if (!group->backend()) return;
  issued(group, what, [](c10d::Backend& backend) { return backend.barrier(); }).wait();
}

bool reduces_while_scattering(const ProcessGroup& group) {
  return kind_of(group).reduces_while_scattering;
}

bool is_capturing(const ProcessGroup& group) {
  const BackendKind& kind = kind_of(group);
  return kind.is_capturing && kind.is_capturing();
}

}  // namespace fsdp::internal
