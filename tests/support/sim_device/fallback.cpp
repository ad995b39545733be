// SPDX-License-Identifier: Apache-2.0
// Runs every operator that the device does not have itself: the CPU's kernel on the same memory.
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "tests/support/sim_device/counting.h"
#include "tests/support/sim_device/device_allocator.h"
#include "tests/support/sim_device/host_alias.h"
#include "tests/support/sim_device/recorded_call.h"
#include "tests/support/sim_device/recording.h"
#include "tests/support/sim_device/timeline.h"

namespace fsdp::test::sim {
namespace {

// Returns a name that lives forever.
const char* kept_name(const std::string& name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names->insert(name).first->c_str();
}

// Operators whose results have a size that only the device knows: the host waits for it.
bool sizes_by_values(std::string_view name) {
  return name == "aten::nonzero" || name == "aten::masked_select" ||
         name.find("unique") != std::string_view::npos;
}

// Operators that take tensors of the CPU beside those of a device: indices, and the comparison
// of tests with what they expect.
bool mixes_devices(std::string_view name) {
  return name == "aten::equal" || name == "aten::index" || name == "aten::index_put_" ||
         name == "aten::_index_put_impl_" || name == "aten::_unsafe_index";
}

// Operators that write arguments without saying so in their schema: running statistics.
bool writes_silently(std::string_view name, std::size_t argument) {
  return name == "aten::native_batch_norm" && (argument == 3 || argument == 4);
}

class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack arguments)
      : op_(op), stack_(std::move(arguments)) {}

  // Returns the results.
  torch::jit::Stack run() {
    take_arguments();
    const c10::Device device = found_device();
    draw_from(device);
    work_ = begin_kernel(current_stream(device.index()), kept_name(op_.schema().name()));
    count_kernel(work_);
    for (const Taken& taken : taken_) {
      if (!taken.is_sized_by_operator) note_access(work_, taken.tensor, taken.is_written);
    }
    if (is_recorded(work_)) begin_to_record();
    op_.callBoxed(&stack_);
    for (Taken& taken : taken_) give_size(taken, device);
    wait_for_values(device);
    const torch::jit::Stack results = stack_;
    for (c10::IValue& value : stack_)
      change_tensors(value, [&](const at::Tensor& tensor) { return on_device(tensor, device); });
    if (recorded_) {
      recorded_->set_results(results);
      record(work_, [call = std::move(recorded_)](const Access&) { call->run(); });
    }
    return std::move(stack_);
  }

 private:
  // An argument that is on the device.
  struct Taken {
    at::Tensor tensor;
    at::Tensor alias;
    bool is_written = false;
    bool is_sized_by_operator = false;  // an output without elements
  };

  at::Tensor take(const at::Tensor& tensor, bool is_written) {
    if (!tensor.defined()) return tensor;
    const bool may_differ =
        tensor.is_cpu() && (tensor.dim() == 0 || mixes_devices(op_.schema().name()));
    if (!may_differ) {
      if (!device_) device_ = tensor.device();
      TORCH_CHECK(device_->type() == tensor.device().type() &&
                      (!device_->has_index() || device_->index() == tensor.device().index()),
                  op_.schema().name(), ": expected all tensors on one device, but found some on ",
                  *device_, " and on ", tensor.device());
    }
    if (!is_on_device(tensor)) {
      takes_from_host_ = takes_from_host_ || tensor.dim() != 0;
      return tensor;
    }
    const bool is_list_operator = op_.schema().name().find("_foreach") != std::string::npos;
    Taken taken{tensor, {}, is_written, is_written && tensor.numel() == 0 && !is_list_operator};
    taken.alias = taken.is_sized_by_operator ? at::empty({0}, tensor.options().device(at::kCPU))
                                             : aliases_.of(tensor);
    taken_.push_back(taken);
    return taken.alias;
  }

  void take_arguments() {
    const auto& arguments = op_.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = stack_[i];
      const auto* const alias = arguments[i].alias_info();
      const bool is_written =
          (alias != nullptr && alias->isWrite()) || writes_silently(op_.schema().name(), i);
      change_tensors(value, [&](const at::Tensor& tensor) { return take(tensor, is_written); });
      if (value.isDevice() && value.toDevice().is_privateuseone()) {
        if (!device_) device_ = value.toDevice();
        value = c10::Device(c10::kCPU);
      }
    }
  }

  c10::Device found_device() const {
    if (device_ && device_->has_index()) return *device_;
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
  }

  void begin_to_record() {
    const int device = device_of_stream(work_.stream);
    std::vector<at::Tensor> aliases;
    std::vector<at::Tensor> outputs;
    for (const Taken& taken : taken_)
      (taken.is_sized_by_operator ? outputs : aliases).push_back(taken.alias);
    recorded_ = std::make_shared<RecordedCall>(op_, stack_, aliases, outputs);
    for (const c10::IValue& value : stack_) {
      if (value.isGenerator()) record_draws(device, value.toGenerator());
    }
    if (takes_from_host_)
      refuse_in_capture(device, std::string(work_.name) + " copies a tensor of the host");
  }

  // Results that are numbers and not tensors go to the host, which waits for them.
  void wait_for_values(c10::Device device) {
    const bool has_number = std::any_of(stack_.begin(), stack_.end(), [](const c10::IValue& value) {
      return value.isBool() || value.isInt() || value.isDouble() || value.isScalar();
    });
    if (!has_number && !sizes_by_values(op_.schema().name())) return;
    wait_on_host(mark_of(current_stream(device.index())), &Counters::item_waits);
  }

  // Draws random numbers from the device's generator.
  void draw_from(c10::Device device) {
    const auto& arguments = op_.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool is_generator = arguments[i].type()->str().find("Generator") != std::string::npos;
      if (is_generator && stack_[i].isNone())
        stack_[i] = at::globalContext().defaultGenerator(device);
    }
  }

  void give_size(Taken& taken, c10::Device device) {
    if (!taken.is_sized_by_operator || taken.alias.numel() == 0) return;
    const at::Tensor made = moved_to_device(taken.alias, device, work_);
    c10::TensorImpl& impl = *taken.tensor.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(made.storage());
    impl.set_sizes_and_strides(made.sizes(), made.strides(), 0);
    if (recorded_) recorded_->moves(taken.alias, HostAliases().of(made));
  }

  // Returns the argument that a result is, a view of the argument that it lies in, or new memory.
  at::Tensor on_device(const at::Tensor& result, c10::Device device) {
    if (!result.defined() || !result.device().is_cpu()) return result;
    for (const Taken& taken : taken_) {
      if (taken.alias.is_same(result)) return taken.tensor;
    }
    at::Tensor& made = results_[result.unsafeGetTensorImpl()];
    if (made.defined()) return made;
    for (const Taken& taken : taken_) {
      if (taken.is_sized_by_operator || result.numel() == 0 ||
          !result.storage().is_alias_of(taken.alias.storage()))
        continue;
      made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW,
                                                      c10::Storage(taken.tensor.storage()),
                                                      taken.tensor.key_set(), result.dtype());
      made.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                        result.storage_offset());
      return made;
    }
    made = moved_to_device(result, device, work_);
    if (recorded_) recorded_->moves(result, HostAliases().of(made));
    return made;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack stack_;
  HostAliases aliases_;
  std::vector<Taken> taken_;
  std::optional<c10::Device> device_;
  Access work_;
  std::map<const c10::TensorImpl*, at::Tensor> results_;
  bool takes_from_host_ = false;  // memory, and not a number
  std::shared_ptr<RecordedCall> recorded_;
};

void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::size_t count = op.schema().arguments().size();
  HostCall call(op, torch::jit::last(*stack, count).vec());
  torch::jit::drop(*stack, count);
  for (c10::IValue& value : call.run()) stack->push_back(std::move(value));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

// Operators that LibTorch composes of others on most devices, and runs as one kernel on CUDA.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  for (const char* const name :
       {"_chunk_cat.out", "split_with_sizes_copy.out", "_foreach_add_.List", "_foreach_mul_.Tensor",
        "_foreach_norm.Scalar"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}

}  // namespace
}  // namespace fsdp::test::sim
