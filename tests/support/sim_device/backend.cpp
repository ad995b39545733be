// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sim_device/backend.h"

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "libfsdp/internal/comm/backend_registry.h"
#include "tests/support/sim_device/arena.h"
#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/host_alias.h"
#include "tests/support/sim_device/lock.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Keeps forever the tensors of work that nobody has waited for: the bytes may still move.
void keep(WorkPtr work, Tensors tensors) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::pair<WorkPtr, Tensors>>;
  const std::lock_guard lock(mutex);
  kept->emplace_back(std::move(work), std::move(tensors));
}

struct Collective {
  Collective(const char* of, Tensors from, Tensors to)
      : name(of), reads(std::move(from)), writes(std::move(to)) {}

  const char* name;
  Tensors reads;
  Tensors writes;
  // Both may be called again later, by replays of a graph.
  std::function<WorkPtr()> move;  // starts to move the bytes
  std::function<void()> reduce;   // once they are here; may be empty
  bool host_waits = false;        // wait() also blocks the host
};

class SimWork final : public c10d::Work {
 public:
  SimWork(WorkPtr moving, c10::Stream stream, Collective collective)
      : moving_(std::move(moving)),
        stream_(stream),
        done_(mark_of(stream)),
        reduce_(std::move(collective.reduce)),
        host_waits_(collective.host_waits),
        tensors_(std::move(collective.reads)) {
    tensors_.insert(tensors_.end(), collective.writes.begin(), collective.writes.end());
  }
  ~SimWork() override {
    if (!is_waited_) keep(std::move(moving_), std::move(tensors_));
  }

  bool isCompleted() override { return refuse_question(done_) || moving_->isCompleted(); }
  bool isSuccess() const override { return moving_->isSuccess(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds) override {
    const std::lock_guard lock(mutex_);
    moving_->wait();
    if (reduce_) std::exchange(reduce_, nullptr)();
    wait_on_stream(current_stream(stream_.device_index()), done_);
    if (host_waits_) wait_on_host(done_, &Counters::stream_waits);
    is_waited_ = true;
    tensors_.clear();
    return true;
  }

 private:
  std::mutex mutex_;
  WorkPtr moving_;
  const c10::Stream stream_;
  const Mark done_;
  std::function<void()> reduce_;
  const bool host_waits_;
  Tensors tensors_;
  bool is_waited_ = false;
};

// Reduces the parts of all ranks, of 16-bit dtypes in float32.
void reduce_parts(const at::Tensor& out, const at::Tensor& bytes, int ranks,
                  const c10d::ReduceOp& op) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor parts = bytes.view(out.scalar_type()).view({ranks, out.numel()});
  if (out.is_floating_point() && out.itemsize() < 4) parts = parts.to(at::kFloat);
  const bool is_max = op == c10d::ReduceOp::MAX;
  const bool is_min = op == c10d::ReduceOp::MIN;
  out.view({out.numel()})
      .copy_(is_max   ? parts.amax(0)
             : is_min ? parts.amin(0)
                      : parts.sum(0, false, parts.scalar_type()));
}

class SimBackend final : public c10d::Backend {
 public:
  SimBackend(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size, int device)
      : Backend(rank, size),
        gloo_(std::move(gloo)),
        device_(device),
        stream_(new_stream(device, "comm")) {}

  const std::string getBackendName() const override { return "sim"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool is_root = options.rootRank == getRank();
    Collective collective("broadcast", is_root ? tensors : Tensors(),
                          is_root ? Tensors() : tensors);
    Tensors bytes{bytes_of(tensors.front())};
    collective.move = [gloo = gloo_, bytes, options]() mutable {
      return gloo->broadcast(bytes, options);
    };
    return issue(std::move(collective));
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor out = host_of(tensors.front());
    const at::Tensor from = bytes_of(tensors.front());
    at::Tensor mine = at::empty_like(from);
    at::Tensor parts = at::empty({getSize() * mine.numel()}, at::kByte);
    Collective collective("all_reduce", tensors, tensors);
    collective.move = [gloo = gloo_, parts, mine, from]() mutable {
      mine.copy_(from);
      return gloo->_allgather_base(parts, mine);
    };
    collective.reduce = [out, parts, ranks = getSize(), op = options.reduceOp] {
      reduce_parts(out, parts, ranks, op);
    };
    return issue(std::move(collective));
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    Collective collective("all_gather", {input}, {output});
    collective.move = [gloo = gloo_, to, from]() mutable {
      return gloo->_allgather_base(to, from);
    };
    return issue(std::move(collective));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    const at::Tensor out = host_of(output);
    at::Tensor from = bytes_of(input);
    at::Tensor parts = at::empty_like(from);
    Collective collective("reduce_scatter", {input}, {output});
    collective.move = [gloo = gloo_, parts, from]() mutable {
      std::vector<std::int64_t> even;
      return gloo->alltoall_base(parts, from, even, even);
    };
    collective.reduce = [out, parts, ranks = getSize(), op = options.reduceOp] {
      reduce_parts(out, parts, ranks, op);
    };
    return issue(std::move(collective));
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions&) override {
    at::Tensor to = bytes_of(output);
    at::Tensor from = bytes_of(input);
    Collective collective("all_to_all", {input}, {output});
    collective.move = [gloo = gloo_, to, from, output_sizes, input_sizes]() mutable {
      return gloo->alltoall_base(to, from, output_sizes, input_sizes);
    };
    return issue(std::move(collective));
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Collective collective("barrier", {}, {});
    collective.host_waits = true;
    collective.move = [gloo = gloo_, options] { return gloo->barrier(options); };
    return issue(std::move(collective));
  }

 private:
  // Returns a tensor of the group's device as one of the CPU.
  at::Tensor host_of(const at::Tensor& tensor) const {
    TORCH_CHECK(is_on_device(tensor) && tensor.device().index() == device_, "the group of ",
                device_at(device_), " got a tensor on ", tensor.device());
    return HostAliases().of(tensor);
  }
  at::Tensor bytes_of(const at::Tensor& tensor) const {
    return host_of(tensor).view({tensor.numel()}).view(at::kByte);
  }

  WorkPtr issue(Collective collective) {
    order(current_stream(device_), stream_);
    const Access work = begin_kernel(stream_, collective.name);
    count_kernel(work);
    for (const at::Tensor& tensor : collective.reads) note_access(work, tensor, false);
    for (const at::Tensor& tensor : collective.writes) note_access(work, tensor, true);
    WorkPtr moving = collective.move();
    if (is_recorded(work)) {
      record(work, [move = collective.move, reduce = collective.reduce](const Access&) {
        move()->wait();
        if (reduce) reduce();
      });
    }
    return c10::make_intrusive<SimWork>(std::move(moving), stream_, std::move(collective));
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int device_;
  const c10::Stream stream_;
};

}  // namespace

void register_backend_sim() {
  internal::BackendKind kind;
  kind.check = [](const internal::BackendRequest&) {};
  kind.make = [](const internal::BackendRequest& request) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<SimBackend>(internal::backend_kind("gloo").make(request),
                                           request.rank, request.size, request.device.index());
  };
  kind.device_type = c10::kPrivateUse1;
  kind.for_one_rank = true;
  kind.reduces_while_scattering = true;
  kind.waits_on_stream = true;
  kind.is_capturing = [] {
    const Lock lock;
    return recording_of(current_device()) != nullptr;
  };
  kind.reduces = [](int scalar_type, bool is_sum) {
    const auto type = static_cast<c10::ScalarType>(scalar_type);
    return c10::isFloatingType(type) ? is_sum : c10::isIntegralType(type, /*includeBool=*/false);
  };
  internal::register_backend("sim", std::move(kind));
  internal::register_device_type(c10::kPrivateUse1, "sim");
}

}  // namespace fsdp::test::sim
