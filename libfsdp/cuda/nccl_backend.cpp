// SPDX-License-Identifier: Apache-2.0
// NCCL: collectives of CUDA tensors.  Programs that link fsdp::cuda have it under the name "nccl".
#include <c10/core/Device.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libfsdp/internal/comm/backend_registry.h"

namespace fsdp {
using namespace internal;
namespace {

c10::Device device_of(const BackendRequest& request) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(request.local_rank)};
}

void check_device(const BackendRequest& request) {
  const c10::DeviceIndex count = c10::cuda::device_count();
  TORCH_CHECK(count > 0,
              "backend nccl needs a CUDA device, and this machine shows none; check the "
              "driver and CUDA_VISIBLE_DEVICES, or use backend gloo");
  TORCH_CHECK(request.local_rank < count,
              "backend nccl needs a CUDA device for each rank, and the "
              "one of local rank ",
              request.local_rank, " is missing: this machine shows ", static_cast<int>(count));
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  options->group_name = request.group;
  const auto device = device_of(request);
  const c10::cuda::CUDAGuard guard(device);
  auto result = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank,
                                                            request.size, std::move(options));
  // Ranks connect here and not in the first collective.  There one of them would wait for the
  // others while it holds what other groups of its process need to issue theirs.
  result->setBoundDeviceId(device);
  result->eagerConnectSingleDevice(device);
  return result;
}

bool nccl_reduces(int scalar_type, bool is_sum) {
  const auto type = static_cast<c10::ScalarType>(scalar_type);
  // NCCL does not specify maxima and minima of NaN.
  return c10::isFloatingType(type) ? is_sum : c10::isIntegralType(type, false);
}

BackendKind nccl_backend() {
  BackendKind kind;
  kind.check = check_device;
  kind.make = make_nccl;
  kind.for_one_rank = true;
  kind.reduces_while_scattering = true;
  kind.waits_on_stream = true;
  kind.reduces = nccl_reduces;
  kind.is_capturing = [] {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  };
  return kind;
}

[[maybe_unused]] const bool kRegistered = [] {
  register_backend("nccl", nccl_backend());
  return true;
}();

}  // namespace
}  // namespace fsdp
