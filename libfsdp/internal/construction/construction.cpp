// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/construction/construction.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/construction/materialization.h"
#include "libfsdp/meta_device.h"

namespace fsdp::internal {
namespace {

using torch::nn::Module;

// Gives every rank the values that tensors have on rank 0.  Broadcasts in bunches, because a
// collective costs as much as some megabytes of data.  All functions are collective.
class Rank0Values {
 public:
  // Broadcasts among replicas first, then inside each sharding group.  `most_bytes`: the limit for
  // the whole tensors of a bunch and their packed copy.
  Rank0Values(const Mesh& mesh, std::int64_t most_bytes)
      : mesh_(mesh), full_bunch_(std::min(kLargeBunch, most_bytes / 2)) {}

  // The tensor, on the device of the collectives, has its values when send() returns true, or
  // finish() has returned.
  bool send(const at::Tensor& tensor) {
    bunch_.push_back(tensor.detach());
    bunch_bytes_ += static_cast<std::int64_t>(tensor.nbytes());
    if (bunch_bytes_ < full_bunch_) return false;
    finish();
    return true;
  }

  // Sends what is left.
  void finish() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> small;
    std::vector<at::Tensor> bytes;
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& tensor : std::exchange(bunch_, {})) {
      const auto size = static_cast<std::int64_t>(tensor.nbytes());
      if (tensor.is_contiguous() && size >= full_bunch_) {
        broadcast_all(as_bytes(tensor));
      } else if (size != 0) {
        small.push_back(tensor);
        bytes.push_back(as_bytes(tensor.contiguous()));
        sizes.push_back(size);
      }
    }
    bunch_bytes_ = 0;
    if (small.empty()) return;
    const at::Tensor packed = at::cat(bytes);
    bytes.clear();
    broadcast_all(packed);
    const std::vector<at::Tensor> places = packed.split_with_sizes(sizes);
    // A place may not be aligned for the dtype.
    for (std::size_t i = 0; i < small.size(); ++i)
      small[i].copy_(places[i].clone().view(small[i].scalar_type()).view(small[i].sizes()));
  }

 private:
  // At 1 GB/s a bunch takes a hundred times as long as ranks need to begin a collective.
  static constexpr std::int64_t kLargeBunch = std::int64_t{16} << 20;

  void broadcast_all(const at::Tensor& values) const {
    for (const auto& group : {mesh_.replicate, mesh_.shard}) {
      if (group && group->size() > 1)
        broadcast(group, values, 0, "broadcast of the states of rank 0").wait();
    }
  }

  const Mesh& mesh_;
  const std::int64_t full_bunch_;  // in bytes
  std::vector<at::Tensor> bunch_;
  std::int64_t bunch_bytes_ = 0;
};

class Construction {
 public:
  Construction(Module& root, const std::vector<Unit*>& units, const FsdpOptions& options,
               const Ignored& ignored, const Mesh& mesh, c10::Device device)
      : root_(root), ignored_(ignored), mesh_(mesh), device_(device) {
    if (options.sync_module_states) {
      values_.emplace(mesh_, largest_unit(units));
      how_.with_values =
          mesh.shard->rank() == 0 && (!mesh.replicate || mesh.replicate->rank() == 0);
    }
    how_.device = device;
    how_.param_init_fn = options.param_init_fn;
    how_.ignored = ignored.modules;
    how_.done = [this](Module& module) { module_is_done(module); };
    how_.kept = [this](const at::Tensor& tensor) {
      return waiting_.count(tensor.unsafeGetTensorImpl()) == 0 ? 0 : 1;
    };
    for (const auto& unit : units) {
      for (const auto& parameter : unit->parameters) {
        waiting_.emplace(parameter->full.unsafeGetTensorImpl(), Waiting{parameter.get()});
        parameters_.emplace(parameter->full.unsafeGetTensorImpl(), parameter.get());
      }
    }
    std::unordered_set<const Module*> seen;
    for (const auto& module : root.modules()) {
      if (!seen.insert(module.get()).second) continue;
      for (const at::Tensor& tensor : own_parameters(*module)) {
        const auto found = waiting_.find(tensor.unsafeGetTensorImpl());
        if (found != waiting_.end()) ++found->second.owners;
      }
    }
  }

  // Returns the names of parameters that something outside of the modules' registries may
  // initialize.
  std::set<std::string> held() const {
    std::set<std::string> result;
    for (const Parameter* const parameter : waiting_in_order()) {
      const auto owners =
          static_cast<std::size_t>(waiting_.at(parameter->full.unsafeGetTensorImpl()).owners);
      // Each owner has two references, in its registry and in a member; the unit has one.
      if (parameter->full.use_count() > 2 * owners + 1) result.insert(parameter->name());
    }
    return result;
  }

  // `held`: parameters that are cut at the end, the same on every rank.
  void run(std::set<std::string> held) {
    held_ = std::move(held);
    const at::NoGradGuard no_grad;
    std::exception_ptr error;
    try {
      internal::run(how_, root_);
      all_ready();
    } catch (const PeerError&) {
      throw;
    } catch (...) {
      if (!values_) throw;
      error = std::current_exception();
      go_on_without_values();
    }
    if (values_) values_->finish();
    cut_all();
    move_buffers();
    if (error) std::rethrow_exception(error);
    require_what_was_cut();
  }

 private:
  struct Waiting {
    Parameter* parameter = nullptr;
    int owners = 0;  // modules that have it in their registries
    int done = 0;    // owners that are done
  };

  // Returns the bytes of its parameters.
  static std::int64_t largest_unit(const std::vector<Unit*>& units) {
    std::int64_t largest = 0;
    for (const auto& unit : units) {
      std::int64_t bytes = 0;
      for (const auto& parameter : unit->parameters)
        bytes += parameter->full.numel() * item_bytes(parameter->full.scalar_type());
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  static std::vector<at::Tensor> own_parameters(const Module& module) {
    std::vector<at::Tensor> result;
    std::unordered_set<const c10::TensorImpl*> seen;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
        result.push_back(item.value());
    }
    return result;
  }

  void module_is_done(const Module& module) {
    std::vector<Parameter*> now;
    for (const at::Tensor& tensor : own_parameters(module)) {
      const auto found = waiting_.find(tensor.unsafeGetTensorImpl());
      if (found == waiting_.end()) continue;
      Waiting& waiting = found->second;
      ++waiting.done;
      if (waiting.done == waiting.owners && held_.count(waiting.parameter->name()) == 0)
        now.push_back(waiting.parameter);
    }
    for (Parameter* const parameter : now) ready(*parameter);
  }

  // Other ranks wait for this one in broadcasts: goes through these until all can exchange errors.
  void go_on_without_values() {
    has_failed_ = true;
    for (auto& [tensor, waiting] : waiting_) waiting.done = 0;
    how_.param_init_fn = [this](Module& module) { to_empty(module, device_, /*recurse=*/false); };
    internal::run(how_, root_);
    all_ready();
  }

  // Returns the parameters in the order of units, which is the same on every rank.
  std::vector<Parameter*> waiting_in_order() const {
    std::vector<Parameter*> result;
    for (const auto& [tensor, waiting] : waiting_) result.push_back(waiting.parameter);
    std::sort(result.begin(), result.end(), [](const Parameter* a, const Parameter* b) {
      return a->unit->id != b->unit->id ? a->unit->id < b->unit->id : a->name() < b->name();
    });
    return result;
  }

  void all_ready() {
    for (Parameter* const parameter : waiting_in_order()) ready(*parameter);
  }

  // Finds parameters that set_data() or a registration changed after they were cut.  An operator
  // that writes such a parameter throws by itself.
  void require_what_was_cut() const {
    for (const auto& item : root_.named_parameters()) {
      const auto* const tensor = item.value().unsafeGetTensorImpl();
      if (ignored_.tensors.count(tensor) != 0) continue;
      const auto known = parameters_.find(tensor);
      FSDP_CHECK(known != parameters_.end(), "parameter '", item.key(),
                 "' was registered during initialization (param_init_fn, reset_parameters), after "
                 "the parameters were divided into units: register it earlier");
      FSDP_CHECK(still_taken(*known->second), "parameter '", item.key(),
                 "' got other memory after it was sharded: param_init_fn and reset_parameters() "
                 "must write only their own module's parameters");
    }
  }

  // Call when the parameter has its values, as far as this rank can tell.
  void ready(Parameter& parameter) {
    at::Tensor& full = parameter.full;
    const c10::IntArrayRef shape = parameter.layout.shape;
    const c10::ScalarType dtype = parameter.unit->groups[parameter.group].dtype;
    if (full.sizes() != shape || full.scalar_type() != dtype) {
      FSDP_CHECK(has_failed_, "parameter '", parameter.name(), "' was ", dtype, " ", shape,
                 " on the meta device, but its initialization made it ", full.scalar_type(), " ",
                 full.sizes());
      full.set_data(at::empty(shape, at::TensorOptions().dtype(dtype).device(device_)));
    }
    FSDP_CHECK(has_failed_ || full.requires_grad() == parameter.trainable, "parameter '",
               parameter.name(), "' ", parameter.trainable ? "required" : "did not require",
               " a gradient on the meta device, but its initialization changed that: freeze "
               "parameters before the module is wrapped");
    waiting_.erase(full.unsafeGetTensorImpl());
    if (full.device() != device_) full.set_data(full.to(device_));
    whole_.push_back(&parameter);
    if (!values_ || values_->send(full)) cut_all();
  }

  void cut_all() {
    for (Parameter* const parameter : std::exchange(whole_, {})) cut(*parameter);
  }

  void move_buffers() {
    for (at::Tensor& buffer : root_.buffers()) {
      if (!buffer.defined() || ignored_.tensors.count(buffer.unsafeGetTensorImpl()) != 0) continue;
      if (buffer.device() != device_ && !buffer.is_meta()) buffer.set_data(buffer.to(device_));
      if (values_) values_->send(buffer);
    }
    if (values_) values_->finish();
  }

  Module& root_;
  const Ignored& ignored_;
  const Mesh& mesh_;
  const c10::Device device_;
  Materialization how_;
  std::optional<Rank0Values> values_;  // none: each rank keeps its own
  std::unordered_map<const c10::TensorImpl*, Waiting> waiting_;
  std::unordered_map<const c10::TensorImpl*, const Parameter*> parameters_;  // of all units
  std::set<std::string> held_;
  bool has_failed_ = false;
  std::vector<Parameter*> whole_;  // ready, and not cut
};

}  // namespace

void construct(Module& module, const std::vector<Unit*>& units, const FsdpOptions& options,
               const Ignored& ignored, const Mesh& mesh, c10::Device device) {
  Construction construction(module, units, options, ignored, mesh, device);
  std::set<std::string> held = construction.held();
  if (options.sync_module_states) {
    // Ranks must broadcast in one order, whatever each of them refers to; also replicas, which may
    // be in a group of their own.
    for (const auto& group : {options.process_group, mesh.replicate}) {
      if (!group) continue;
      std::string mine;
      for (const std::string& name : held) mine += name + '\n';
      for (const std::string& names :
           agree_and_tell(group, "wrapping the module", [&] { return mine; })) {
        std::istringstream lines(names);
        for (std::string name; std::getline(lines, name);) held.insert(name);
      }
    }
  }
  // A rank that fails goes through the others' broadcasts before it reports.
  agree(options.process_group, "wrapping the module", [&] {
    for (const auto& unit : units) lay_out(*unit, device);
    construction.run(std::move(held));
  });
}

}  // namespace fsdp::internal
