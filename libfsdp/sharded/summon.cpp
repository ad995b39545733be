// SPDX-License-Identifier: Apache-2.0
// ShardedModule::summon_full_params: makes parameters readable and writable as without
// sharding.
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/left_out.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp {
using namespace internal;

class FullParams::Scope {
 public:
  Scope(const ShardedModule& model, const SummonOptions& options)
      : engine_(engine_of(model)), life_(engine_.life()), units_(model.units()), options_(options) {
    engine_.begin_summon("summon_full_params");
    try {
      if (options_.with_grads) require_reduced(units_, "summon_full_params with with_grads");
      const OwnWork own;
      for (Unit* unit : units_) {
        // An optimizer may have dropped gradients since they were shown.
        show_gradients(*unit);
        if (!options_.recurse && unit != units_.front()) continue;
        for (FlatGroup& group : unit->groups) summon(*unit, group);
      }
    } catch (...) {
      put_back();
      engine_.end_summon();
      throw;
    }
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void close() {
    if (closed_) return;
    closed_ = true;
    FSDP_CHECK(life_->engine != nullptr,
               "full parameters outlive their sharded module, and writes to them are lost: end the "
               "scope of summon_full_params first");
    std::exception_ptr error;
    try {
      const OwnWork own;
      write_back();
    } catch (...) {
      error = std::current_exception();
    }
    put_back();
    engine_.end_summon();
    if (error) std::rethrow_exception(error);
  }
  void spoil(const std::string& why) {
    if (life_->engine != nullptr) engine_.spoil(why);
  }

 private:
  // With NO_SHARD written values persist, as in PyTorch, unless other ranks do not see them.
  bool persists(const Unit& unit) const {
    return options_.writeback ||
           (unit.sharding->strategy == ShardingStrategy::kNoShard && !options_.rank0_only);
  }
  bool shows() const {
    return !options_.rank0_only || engine_.options().process_group->rank() == 0;
  }

  void summon(Unit& unit, FlatGroup& group) {
    const at::Tensor blocks =
        gather_blocks(unit, group.local, "all-gather of parameters of '" + unit.name + "'");
    for (Parameter* parameter : group.parameters) {
      if (!shows()) continue;
      summoned_.push_back(parameter);
      // The parameter is whole already, and writes to it persist.
      if (unit.always_unsharded && persists(unit)) continue;
      at::Tensor full = joined(blocks, parameter->layout, parameter->offset);
      if (options_.offload_to_cpu) full = full.cpu();
      parameter->full.set_data(full);
    }
    if (options_.with_grads) summon_gradients(unit, group);
  }

  // Ranks may have gradients for different parameters; all must take part in the collective.
  void summon_gradients(Unit& unit, FlatGroup& group) {
    const at::Tensor local = at::zeros({group.numel}, group.local.options());
    bool any = false;
    for (const Parameter* parameter : group.parameters) {
      if (!parameter->shard.grad().defined()) continue;
      any = true;
      local.narrow(0, parameter->offset, parameter->shard.numel())
          .copy_(parameter->shard.grad().reshape({-1}));
    }
    const at::Tensor blocks =
        gather_blocks(unit, local, "all-gather of gradients of '" + unit.name + "'");
    if (!any || !shows()) return;
    for (Parameter* parameter : group.parameters) {
      if (!parameter->shard.grad().defined()) continue;
      hide_from_module(*parameter);
      parameter->full.mutable_grad() = joined(blocks, parameter->layout, parameter->offset);
      with_gradient_.push_back(parameter);
    }
  }

  void write_back() {
    for (Parameter* parameter : summoned_) {
      if (!persists(*parameter->unit)) continue;
      FSDP_CHECK(parameter->full.sizes() == at::IntArrayRef(parameter->layout.shape), "parameter '",
                 parameter->name(), "' was given the shape ", parameter->full.sizes(),
                 " inside summon_full_params; it is ", at::IntArrayRef(parameter->layout.shape));
      if (still_taken(*parameter)) continue;
      const at::Tensor rows =
          rows_of(parameter->full.detach(), parameter->layout, parameter->unit->sharding->rank());
      // Parameters that were only read may still have their backward ahead.
      if (rows.scalar_type() == parameter->shard.scalar_type() &&
          rows.device() == parameter->shard.device() && at::equal(rows, parameter->shard))
        continue;
      // Copies below autograd, so no views are created.
      parameter->shard.detach().copy_(rows);
      shard_was_written(*parameter);
    }
    for (Parameter* parameter : with_gradient_) {
      if (persists(*parameter->unit) && parameter->full.grad().defined())
        parameter->shard.mutable_grad().copy_(
            rows_of(parameter->full.grad(), parameter->layout, parameter->unit->sharding->rank()));
    }
  }

  void put_back() {
    for (Parameter* parameter : summoned_) {
      {
        const OwnWork own;
        parameter->full.set_data(parameter->home);
      }
      // Another dtype or device made autograd forget its node of the parameter.
      engine_.hook_gradients(*parameter);
    }
    for (Parameter* parameter : with_gradient_) parameter->full.mutable_grad().reset();
    for (Unit* unit : units_) {
      if (unit->always_unsharded) make_unsharded(*unit);
      show_gradients(*unit);
    }
    summoned_.clear();
    with_gradient_.clear();
  }

  Engine& engine_;
  const std::shared_ptr<EngineLife> life_;
  const std::vector<Unit*> units_;
  const SummonOptions options_;
  std::vector<Parameter*> summoned_;
  std::vector<Parameter*> with_gradient_;
  bool closed_ = false;
};

FullParams::FullParams(std::unique_ptr<Scope> scope) : scope_(std::move(scope)) {}
FullParams::FullParams(FullParams&&) noexcept = default;

FullParams::~FullParams() {
  try {
    close();
  } catch (const std::exception& error) {
    scope_->spoil(std::string("full parameters could not be written back: ") + message_of(error));
  }
}

void FullParams::close() {
  if (scope_) scope_->close();
}

FullParams ShardedModule::summon_full_params(const SummonOptions& given) {
  SummonOptions options = given;
  leave_out_option(options);
  FSDP_CHECK(!(options.writeback && options.rank0_only),
             "summon_full_params with writeback and rank0_only: values that only rank 0 writes "
             "would make the ranks differ; set one of the two to false");
  FSDP_CHECK(!(options.with_grads && options.offload_to_cpu),
             "summon_full_params with with_grads and offload_to_cpu is not supported");
  FSDP_CHECK(!(options.with_grads && has_flat_parameters()),
             "summon_full_params with with_grads needs use_orig_params");
  return FullParams(std::make_unique<FullParams::Scope>(*this, options));
}

}  // namespace fsdp
