// SPDX-License-Identifier: Apache-2.0
// What tests of the simulated device share.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/sim_device/counters.h"
#include "tests/support/sim_device/device.h"
#include "tests/support/sim_device/findings.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {

// A device with two streams.  What is found has to be taken, or the test fails.
class SimDevice : public testing::Test {
 protected:
  const c10::Device device_ = device_at(0);
  const c10::impl::VirtualGuardImpl guard_{c10::kPrivateUse1};
  const c10::Stream main_ = guard_.getStream(device_);
  const c10::Stream side_ = new_stream(0, "side");

  // Work queued on `later` from now on runs after the work on `earlier`.
  static void order_by_event(const c10::Stream& earlier, const c10::Stream& later) {
    c10::Event event(c10::kPrivateUse1);
    event.record(earlier);
    event.block(later);
  }

  // Returns a tensor of the main stream.
  torch::Tensor values(std::vector<std::int64_t> shape) const {
    return torch::full(shape, 2, torch::TensorOptions().device(device_).dtype(torch::kFloat));
  }

  template <typename Body>
  static void on(const c10::Stream& stream, const Body& body) {
    const c10::StreamGuard entered(stream);
    body();
  }
};

}  // namespace fsdp::test::sim
