// SPDX-License-Identifier: Apache-2.0
// NCCL: collectives of CUDA tensors.  Programs that link fsdp::cuda have it under the name "nccl".
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/flight_record.h"

namespace fsdp {
using namespace internal;
namespace {

// Returns the same text in memory that is never freed: NCCL's configurations are copied with a
// pointer to it.
const char* kept(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

template <typename T>
void set_if_given(int& place, const std::optional<T>& value) {
  if (value) place = static_cast<int>(*value);
}

[[maybe_unused]] void refuse_if_given(bool given, const char* name) {
  TORCH_CHECK(!given, "NcclConfig::", name,
              " needs a newer NCCL than the one of this build; leave it out");
}

void configure(ncclConfig_t& config, const NcclConfig& given) {
  set_if_given(config.blocking, given.blocking);
  set_if_given(config.cgaClusterSize, given.cga_cluster_size);
  set_if_given(config.minCTAs, given.min_ctas);
  set_if_given(config.maxCTAs, given.max_ctas);
  set_if_given(config.splitShare, given.split_share);
  if (!given.net_name.empty()) config.netName = kept(given.net_name);
#ifdef NCCL_HAS_QOS
  set_if_given(config.trafficClass, given.traffic_class);
#else
  refuse_if_given(given.traffic_class.has_value(), "traffic_class");
#endif
#ifdef NCCL_HAS_COLLNET
  set_if_given(config.collnetEnable, given.collnet_enable);
#else
  refuse_if_given(given.collnet_enable.has_value(), "collnet_enable");
#endif
#ifdef NCCL_HAS_CTA_POLICY
  set_if_given(config.CTAPolicy, given.cta_policy);
#else
  refuse_if_given(given.cta_policy.has_value(), "cta_policy");
#endif
#ifdef NCCL_HAS_NVLS_CTAS
  set_if_given(config.nvlsCTAs, given.nvls_ctas);
#else
  refuse_if_given(given.nvls_ctas.has_value(), "nvls_ctas");
#endif
}

// NCCL's watchdog ends the process at a timeout, and before gives its record to this writer.
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

// The first group of the process that names a file has NCCL's own dumps, too: there is one writer.
void use_for_dumps(const std::shared_ptr<FlightRecord>& record, int rank) {
  static std::once_flag once;
  std::call_once(once, [&] {
    c10d::DebugInfoWriter::registerWriter(std::make_unique<RecordWriter>(record, rank));
  });
}

c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> options_of(const BackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create(request.nccl.is_high_priority_stream);
  options->timeout = request.timeout;
  options->group_name = request.group;
  options->global_ranks_in_group = request.global_ranks;
  configure(options->config, request.nccl.config);
  const auto parent = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(request.parent);
  if (parent && request.nccl.split_from_parent) {
    options->split_from = parent;
    options->split_color = request.color;
  }
  return options;
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
                                                            request.size, options_of(request));
  // Ranks connect here and not in the first collective.  There one of them would wait for the
  // others while it holds what other groups of its process need to issue theirs.
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
  kind.check = [](const BackendRequest&) {};
  kind.make = make_nccl;
  kind.device_type = c10::DeviceType::CUDA;
  kind.for_one_rank = true;
  kind.reduces_while_scattering = true;
  kind.waits_on_stream = true;
  kind.reduces = nccl_reduces;
  kind.flight_record = nccl_flight_record;
  return kind;
}

[[maybe_unused]] const bool kRegistered = [] {
  register_backend("nccl", nccl_backend());
  return true;
}();

}  // namespace
}  // namespace fsdp
