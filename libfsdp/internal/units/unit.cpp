// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/unit.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include <ATen/Functions.h>
#include <c10/core/StorageImpl.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/internal/units/shard_tensor.h"

namespace fsdp::internal {
namespace {

// oneDNN and MKL work best on addresses with this alignment.
constexpr std::int64_t kAlignment = 64;

// The flag is private, and no function clears it.  An explicit instantiation may name private
// members ([temp.spec.general]/6).
using Flag = bool c10::StorageImpl::*;
template <Flag flag>
struct Reach {
  friend Flag throw_flag() { return flag; }
};
Flag throw_flag();
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// If `locked`, data_ptr(), accessor() and anything else that asks for the memory throws the
// storage's message from now on; otherwise it no longer does.  LibTorch offers only the first (see
// StorageImpl::release_data_and_set_meta_custom_data_ptr_error_msg_).
// Requires: the message was set once by that function; a set_data_ptr_noswap() follows.
void set_locked(c10::StorageImpl& storage, bool locked) noexcept {
  storage.*throw_flag() = locked;
}

// Marks the storages of parameters: a DataPtr with this deleter has the Parameter as its context.
void keep_parameter(void*) {}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void point(Parameter& parameter, void* data, c10::Device device) {
  c10::StorageImpl* storage = storage_of(parameter.home);
  set_locked(*storage, false);
  storage->set_data_ptr_noswap(at::DataPtr(data, &parameter, &keep_parameter, device));
  storage->set_nbytes(static_cast<std::size_t>(parameter.layout.numel()) *
                      static_cast<std::size_t>(parameter.full.element_size()));
}

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

// Adds a group's parts to the unit's: see Unit::gather_parts.
void add_parts(Unit& unit, const FlatGroup& group, std::int64_t item) {
  std::int64_t end = group.gather_offset;
  const auto add = [&](std::int64_t bytes) {
    if (bytes != 0) unit.gather_parts.push_back(bytes);
    end += bytes;
  };
  for (const Parameter* parameter : group.parameters) {
    const std::int64_t share = parameter->layout.padded_numel() * item;
    add(share);
    add(parameter->reserved * item - share);
  }
  add(unit.gather_bytes - end);
}

// Returns the place of a parameter's rows in the unit's buffer.
at::Tensor rows_of(const Parameter& parameter, int rank) {
  return parameter.unit->groups[parameter.group]
      .local.narrow(0, parameter.offset, parameter.layout.numel_of(rank))
      .view(parameter.layout.shape_of(rank));
}

// Returns a tensor without memory whose storage says `why`.
at::Tensor locked_tensor(const at::Tensor& full, c10::ScalarType dtype,
                         std::optional<c10::DispatchKey> observer, std::string why) {
  at::Tensor result =
      tensor_without_memory(at::DataPtr(nullptr, full.device()), full, dtype, observer);
  storage_of(result)->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(why));
  return result;
}

// Returns " where parameters 0-2, 5 of 9 train", or nothing if all do.
std::string text_of_trained(const FlatGroup& group) {
  const auto& all = group.parameters;
  if (group.trained.size() == all.size()) return {};
  std::ostringstream text;
  const char* separator = " where parameters ";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i]->trainable) continue;
    const std::size_t first = i;
    while (i + 1 < all.size() && all[i + 1]->trainable) ++i;
    text << separator << first;
    if (i != first) text << '-' << i;
    separator = ", ";
  }
  text << " of " << all.size() << " train";
  return text.str();
}

// Shares one version counter in the whole unit, because every operator asks whether any of it was
// written.
void share_version(Unit& unit) {
  const auto& version = unit.parameters.front()->shard.unsafeGetTensorImpl()->version_counter();
  for (const FlatGroup& group : unit.groups) {
    group.flat.unsafeGetTensorImpl()->set_version_counter(version);
    for (const Parameter* parameter : group.parameters)
      parameter->shard.unsafeGetTensorImpl()->set_version_counter(version);
  }
}

}  // namespace

at::Tensor tensor_without_memory(at::DataPtr pointer, const at::Tensor& like, c10::ScalarType dtype,
                                 std::optional<c10::DispatchKey> observer) {
  // A tensor takes its device from the storage it is made with.
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                       std::size_t{0}, std::move(pointer),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  const at::Tensor empty = at::empty({0}, like.options().dtype(dtype).requires_grad(false));
  c10::DispatchKeySet keys = empty.key_set();
  if (observer) keys = keys.add(*observer);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                               keys, empty.dtype());
  result.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  return result;
}

std::string flat_name(const std::string& unit_name, const Unit& unit, const FlatGroup& group) {
  std::string name = unit_name.empty() ? "_flat_param" : unit_name + "._flat_param";
  if (unit.groups.size() > 1) name += std::string("_") + c10::toString(group.dtype);
  return name;
}

std::string Unit::first_name() const {
  return parameters.empty() ? name : "'" + parameters.front()->name() + "'";
}

std::uint32_t shard_version(const Parameter& parameter) noexcept {
  return parameter.shard.unsafeGetTensorImpl()->version_counter().current_version();
}

std::uint32_t Unit::version() const noexcept {
  return parameters.empty() ? 0 : shard_version(*parameters.front());
}

std::string changed_since_forward(const Unit& unit) {
  const auto& parameters = unit.parameters;
  const auto found = std::find_if(parameters.begin(), parameters.end(), [](const auto& parameter) {
    return shard_version(*parameter) != parameter->version;
  });
  return "parameter '" + (found == parameters.end() ? parameters.front() : *found)->name() +
         "' of unit '" + unit.name +
         "' was changed (by an optimizer's step, a load, or a write to its shard) between its "
         "forward and this backward, which needs the old values: call backward before the step, or "
         "run forward again";
}

Trailer& trailer_of(Unit& unit) noexcept {
  auto* end = static_cast<char*>(unit.local.mutable_data_ptr()) + unit.local.nbytes();
  return *reinterpret_cast<Trailer*>(end - kTrailerBytes);
}

std::optional<std::string> name_in(const std::string& path, const std::string& name) {
  if (path.empty()) return name;
  if (name == path) return std::string();
  if (name.size() <= path.size() || name[path.size()] != '.' || !name.starts_with(path))
    return std::nullopt;
  return name.substr(path.size() + 1);
}

bool related(const Unit& a, const Unit& b) noexcept {
  const auto is_in = [](const Unit* unit, const Unit* other) {
    while (unit != nullptr && unit != other) unit = unit->parent;
    return unit != nullptr;
  };
  return is_in(&a, &b) || is_in(&b, &a);
}

Parameter* parameter_of(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const at::DataPtr& pointer = storage_of(tensor)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &keep_parameter ? static_cast<Parameter*>(pointer.get_context())
                                                  : nullptr;
}

void set_id(Unit& unit, std::int64_t id) {
  const OwnWork own;
  unit.id = id;
  const at::Tensor bytes = at::tensor({id}, at::kLong).view(at::kByte);
  unit.local.narrow(0, unit.local.numel() - kTrailerBytes, bytes.numel()).copy_(bytes);
}

ShardLayout layout_over(const Parameter& parameter, int world_size) {
  if (parameter.placed.placements.empty()) return shard_layout(parameter.full.sizes(), world_size);
  return shard_layout(parameter.placed.shape, layout_of(parameter.placed).cuts, world_size);
}

bool casts(const Unit& unit) noexcept {
  return std::any_of(unit.groups.begin(), unit.groups.end(),
                     [](const FlatGroup& group) { return group.compute_dtype != group.dtype; });
}

std::int64_t set_offsets(Unit& unit) {
  std::int64_t local_bytes = 0;
  for (FlatGroup& group : unit.groups) {
    const auto local_item = item_bytes(group.dtype);
    const auto compute_item = item_bytes(group.compute_dtype);
    const std::int64_t step = kAlignment / std::min({local_item, compute_item, kAlignment});
    for (Parameter* parameter : group.parameters) {
      parameter->offset = group.numel;
      parameter->reserved = rounded_up(parameter->layout.padded_numel(), step);
      group.numel += parameter->reserved;
    }
    set_grad_offsets(group);
    group.local_offset = local_bytes;
    group.gather_offset = unit.gather_bytes;
    local_bytes += rounded_up(group.numel * local_item, kAlignment);
    unit.gather_bytes += rounded_up(group.numel * compute_item, kAlignment);
    add_parts(unit, group, compute_item);
  }
  unit.gather_bytes += kTrailerBytes;
  unit.gather_parts.push_back(kTrailerBytes);
  return local_bytes + kTrailerBytes;
}

void set_grad_offsets(FlatGroup& group) {
  group.trained.clear();
  group.grad_numel = 0;
  for (Parameter* parameter : group.parameters) {
    if (!parameter->trainable) continue;
    parameter->grad_offset = group.grad_numel;
    group.grad_numel += parameter->reserved;
    group.trained.push_back(parameter);
  }
  group.trained_text = text_of_trained(group);
}

void lay_out(Unit& unit, c10::Device compute_device) {
  const int rank = unit.sharding->rank();
  const int world_size = unit.sharding->world_size();
  const c10::Device device = unit.sharding->is_offloaded ? c10::Device(c10::kCPU) : compute_device;
  for (const auto& parameter : unit.parameters)
    parameter->layout = layout_over(*parameter, world_size);
  const std::int64_t local_bytes = set_offsets(unit);
  const bool pinned = device.is_cpu() && !unit.parameters.empty() && !compute_device.is_cpu();
  unit.compute_device = compute_device;
  unit.local = at::zeros({local_bytes},
                         at::TensorOptions().dtype(at::kByte).device(device).pinned_memory(pinned));
  for (FlatGroup& group : unit.groups) {
    const auto item = item_bytes(group.dtype);
    group.local = unit.local.narrow(0, group.local_offset, group.numel * item).view(group.dtype);
    for (Parameter* parameter : group.parameters) {
      parameter->shard = shard_tensor(rows_of(*parameter, rank), parameter->layout.whole_shape());
      parameter->shard.set_requires_grad(parameter->trainable);
    }
    group.flat = shard_tensor(group.local, {}, /*is_flat=*/true);
    group.flat.set_requires_grad(!group.trained.empty());
  }
  if (!unit.parameters.empty()) share_version(unit);
  unit.resident =
      world_size == 1 && !unit.parameters.empty() && device == compute_device && !casts(unit);
}

void cut(Parameter& parameter) {
  const at::NoGradGuard no_grad;
  const ShardLayout& layout = parameter.layout;
  const int rank = parameter.unit->sharding->rank();
  at::Tensor& full = parameter.full;
  const at::Tensor rows = rows_of(parameter, rank);
  if (rows.numel() != 0) {
    rows.copy_(rows_of(full.detach(), layout, rank));
  }
  parameter.home = locked_tensor(
      full, full.scalar_type(), /*observer=*/std::nullopt,
      "parameter '" + parameter.name() +
          "' has no memory now: it is sharded already, while later modules are being initialized; "
          "param_init_fn and reset_parameters() must write only their own module's parameters");
  full.set_data(parameter.home);
}

void take_over(Unit& unit, std::optional<c10::DispatchKey> observer) {
  for (FlatGroup& group : unit.groups) {
    for (Parameter* parameter : group.parameters) {
      at::Tensor& full = parameter->full;
      parameter->home = locked_tensor(
          full, group.compute_dtype, observer,
          "parameter '" + parameter->name() +
              "' has no memory now: its module is sharded, and it is whole only while an operator "
              "uses it; hold an fsdp::Gathered of it where forward asks for its memory "
              "(data_ptr(), accessor(), a kernel of your own), and read or write it inside "
              "summon_full_params() anywhere else");
      full.set_data(parameter->home);
    }
  }
  make_sharded(unit);
}

void let_go(Unit& unit) noexcept {
  for (const auto& parameter : unit.parameters) {
    if (!parameter->home.defined()) continue;
    c10::StorageImpl* storage = storage_of(parameter->home);
    // Clears the context, because the Parameter ends here.
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, parameter->full.device()));
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "the parameter belonged to a sharded module that has been destroyed");
    if (parameter->accumulator) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter->full, nullptr);
    }
  }
}

void make_unsharded(Unit& unit) {
  for (FlatGroup& group : unit.groups) {
    const auto item = item_bytes(group.compute_dtype);
    for (Parameter* parameter : group.parameters) {
      const int world_size = parameter->layout.world_size;
      char* base = unit.resident ? static_cast<char*>(unit.local.data_ptr()) + group.local_offset
                                 : static_cast<char*>(unit.full.data_ptr()) +
                                       group.gather_offset * world_size;
      point(*parameter, base + parameter->offset * item * world_size, parameter->full.device());
    }
  }
  unit.state = UnitState::kUnsharded;
}

// The storage of a sharded parameter is locked, and claims to be on the meta device.  Code that
// reads it without an operator gets an error, or (a serializer) finds that the devices of the
// tensor and its storage differ.
void make_sharded(Unit& unit) {
  for (const auto& parameter : unit.parameters) {
    c10::StorageImpl* storage = storage_of(parameter->home);
    set_locked(*storage, true);
    storage->set_data_ptr_noswap(
        at::DataPtr(nullptr, parameter.get(), &keep_parameter, c10::Device(c10::kMeta)));
    storage->set_nbytes(std::size_t{0});
  }
  unit.state = UnitState::kSharded;
}

bool was_let_go(const at::Tensor& tensor) noexcept {
  return tensor.defined() && tensor.has_storage() && !tensor.is_meta() && tensor.numel() != 0 &&
         storage_of(tensor)->_mutable_data_ptr_no_checks().get() == nullptr;
}

bool still_taken(const Parameter& parameter) noexcept {
  return parameter.full.has_storage() && storage_of(parameter.full) == storage_of(parameter.home);
}

void shard_was_written(Parameter& parameter) noexcept {
  parameter.shard.unsafeGetTensorImpl()->bump_version();
  // For graphs that saved the module's tensor, which may lie in the shard.
  parameter.full.unsafeGetTensorImpl()->bump_version();
  ++parameter.full_version;
}

}  // namespace fsdp::internal
