// SPDX-License-Identifier: Apache-2.0
// Copies of the simulated device, which make the host wait where CUDA's do:
//
//   from            to              the host waits
//   device          device          never
//   device          pinned memory   unless non_blocking
//   device          other memory    always
//   pinned memory   device          unless non_blocking; else the source must not change
//   other memory    device          unless non_blocking: the source is staged
//
// A copy that changes dtype or layout goes through other memory of the host.
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/host_alias.h"
#include "tests/support/sim_device/host_copies.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

bool is_plain(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous() &&
         from.sizes() == to.sizes();
}

// Between devices, the current streams of both wait for each other.
void copy_on_device(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream) {
  const c10::Stream source_stream = current_stream(from.device().index());
  order(source_stream, stream);
  const Access work = begin_kernel(stream, "a copy");
  order(stream, source_stream);
  count_kernel(work);
  note_access(work, from, /*write=*/false);
  note_access(work, to, /*write=*/true);
  HostAliases aliases;
  const at::Tensor source = aliases.of(from);
  const at::Tensor target = aliases.of(to);
  target.copy_(source);
  if (is_recorded(work)) record(work, [=](const Access&) { target.copy_(source); });
}

// The source is read when the work is done, if it is pinned and still there.
void record_copy_from_host(const Access& work, const at::Tensor& from, const at::Tensor& target,
                           bool is_pinned) {
  if (is_pinned) {
    record(work, [target, pinned = PinnedBytes(from)](const Access& now) {
      const at::Tensor source = pinned.tensor(now);
      if (!source.defined()) return;
      target.copy_(source);
      queue_copy_from_host(now, source);
    });
    return;
  }
  refuse_in_capture(device_of_stream(work.stream), "a copy from memory that is not pinned");
  record(work, [target, kept = from.clone()](const Access&) { target.copy_(kept); });
}

void copy_to_device(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream,
                    bool non_blocking) {
  const bool unwaited = non_blocking && is_plain(from, to) && is_pinned(from.const_data_ptr());
  const Access work =
      begin_kernel(stream, unwaited ? "a copy from pinned memory" : "a copy from the host");
  count_kernel(work);
  note_access(work, to, /*write=*/true);
  const at::Tensor target = HostAliases().of(to);
  target.copy_(from);
  if (is_recorded(work)) {
    record_copy_from_host(work, from, target, unwaited);
  } else if (unwaited) {
    queue_copy_from_host(work, from);
  }
  if (!non_blocking) wait_on_host(mark_of(stream), &Counters::copy_waits);
}

void copy_to_host(const at::Tensor& from, const at::Tensor& to, const c10::Stream& stream,
                  bool non_blocking) {
  const bool unwaited = non_blocking && is_plain(from, to) && is_pinned(to.const_data_ptr());
  const Access work =
      begin_kernel(stream, unwaited ? "a copy to pinned memory" : "a copy to the host");
  count_kernel(work);
  note_access(work, from, /*write=*/false);
  const at::Tensor source = HostAliases().of(from);
  if (unwaited && is_recorded(work)) {
    record(work, [source, pinned = PinnedBytes(to)](const Access& now) {
      const at::Tensor target = pinned.tensor(now);
      if (!target.defined()) return;
      target.copy_(source);
      queue_copy_to_host(now, target);
    });
    return;
  }
  to.copy_(source);
  if (unwaited) {
    queue_copy_to_host(work, to);
  } else {
    wait_on_host(mark_of(stream), &Counters::copy_waits);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (to.numel() == 0) return to;
  const int device = (is_on_device(to) ? to : from).device().index();
  const c10::Stream stream = current_stream(device);
  if (!is_on_device(from)) {
    copy_to_device(from, to, stream, non_blocking);
  } else if (!is_on_device(to)) {
    copy_to_host(from, to, stream, non_blocking);
  } else {
    copy_on_device(from, to, stream);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar item(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::Stream stream = current_stream(self.device().index());
  note_access(begin_kernel(stream, "item()"), self, /*write=*/false);
  wait_on_host(mark_of(stream), &Counters::item_waits);
  return HostAliases().of(self).item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &item);
}

}  // namespace
}  // namespace fsdp::test::sim
