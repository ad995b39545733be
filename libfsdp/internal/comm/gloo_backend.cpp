// SPDX-License-Identifier: Apache-2.0
// Gloo: collectives of CPU tensors over TCP.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include <ATen/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/network_address.h"

namespace fsdp::internal {
namespace {

// All ranks are known to be present when they connect.
constexpr std::chrono::milliseconds kConnect(120'000);
// A rank that waits for a collective gives up at the group's timeout and says who is late.  Gloo's
// own error does not say that, and must not come first.
constexpr std::chrono::milliseconds kAfterTimeout(5000);

std::shared_ptr<::gloo::transport::Device> device_for(const BackendRequest& request) {
  if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
      interface != nullptr && *interface != '\0') {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  return c10d::ProcessGroupGloo::createDeviceForHostname(
      request.one_host ? kLoopback : address_towards(request.towards));
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendRequest& request) {
  auto options = c10d::ProcessGroupGloo::Options::create(std::min(request.timeout, kConnect));
  options->devices = {device_for(request)};
  auto result = c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.rank,
                                                            request.size, std::move(options));
  result->setTimeout(request.timeout + kAfterTimeout);
  return result;
}

bool gloo_reduces(int scalar_type, bool is_sum) {
  const auto type = static_cast<at::ScalarType>(scalar_type);
  switch (type) {
    case at::kFloat:
    case at::kDouble:
      // Gloo's maximum and minimum drop NaN.
      return is_sum;
    case at::kLong:
    case at::kInt:
      return true;
    default:
      return false;
  }
}

}  // namespace

BackendKind gloo_backend() {
  BackendKind kind;
  kind.make = make_gloo;
  kind.gathers_into_a_copy = true;
  kind.reduces = gloo_reduces;
  return kind;
}

}  // namespace fsdp::internal
