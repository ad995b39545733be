// SPDX-License-Identifier: Apache-2.0
// NCCL: collectives of CUDA tensors.  Programs that link fsdp::cuda have it under the name "nccl".
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/flight_record.h"
#include "libfsdp/internal/cuda/nccl_config.h"

namespace fsdp {
using namespace internal;
namespace {

// Writes the record that NCCL's watchdog gives it before it ends the process at a timeout.
class RecordWriter final : public c10d::DebugInfoWriter {
 public:
  RecordWriter(std::shared_ptr<FlightRecord> record, int rank)
      : DebugInfoWriter(record->file().native(), rank), record_(std::move(record)) {
    filename_ = record_->file().native();
  }
  void write(const std::string& trace) override { record_->write(trace); }

 private:
  const std::shared_ptr<FlightRecord> record_;
};

// Only the first group of the process that names a file gets NCCL's own dumps: there is one writer.
void use_for_dumps(const std::shared_ptr<FlightRecord>& record, int rank) {
  static std::once_flag once;
  std::call_once(once, [&] {
    c10d::DebugInfoWriter::registerWriter(std::make_unique<RecordWriter>(record, rank));
  });
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendRequest& request) {
  // The recorder reads its size once, when NCCL is used for the first time.
  if (request.nccl.trace_buffer_size) {
    const std::string size = std::to_string(*request.nccl.trace_buffer_size);
    ::setenv("TORCH_FR_BUFFER_SIZE", size.c_str(), /*replace=*/1);
  }
  if (request.flight_record)
    use_for_dumps(
        request.flight_record,
        static_cast<int>(request.global_ranks.at(static_cast<std::size_t>(request.rank))));
  const c10::cuda::CUDAGuard guard(request.device);
  auto result = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank,
                                                            request.size, nccl_options_of(request));
  // Ranks connect here and not in the first collective.  There a rank would wait for the others
  // while it holds the lock that other groups of its process need to issue theirs.
  result->setBoundDeviceId(request.device);
  result->eagerConnectSingleDevice(request.device);
  return result;
}

bool nccl_reduces(int scalar_type, bool is_sum) {
  const auto type = static_cast<c10::ScalarType>(scalar_type);
  // NCCL does not specify maxima and minima of NaN.
  return c10::isFloatingType(type) ? is_sum : c10::isIntegralType(type, false);
}

// Returns the record as PyTorch's tools read it, a pickle, without the stacks of Python.
std::string nccl_flight_record() {
  return c10d::dump_nccl_trace(/*includeCollectives=*/true, /*includeStackTraces=*/false,
                               /*onlyActive=*/false);
}

BackendKind nccl_backend() {
  BackendKind kind;
  kind.make = make_nccl;
  kind.device_type = c10::DeviceType::CUDA;
  kind.for_one_rank = true;
  kind.reduces_while_scattering = true;
  kind.waits_on_stream = true;
  kind.reduces = nccl_reduces;
  kind.is_capturing = [] {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  };
  kind.flight_record = nccl_flight_record;
  return kind;
}

[[maybe_unused]] const bool kRegistered = [] {
  register_backend("nccl", nccl_backend());
  return true;
}();

}  // namespace
}  // namespace fsdp
