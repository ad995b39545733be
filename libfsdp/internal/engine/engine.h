// SPDX-License-Identifier: Apache-2.0
// Runs a step of a sharded module: decides when units are gathered, resharded and reduced.
//
// Note [one step]:
//   begin_forward   leftovers of a failed backward are dropped; every unit is resharded
//   use             an operator takes parameters (see observer.h): their units are gathered, the
//                   next unit's gather is started, units that are neither above nor below are
//                   resharded
//   end_forward     without gradients, every unit is resharded; else those of the last operators
//   stay first use or gradient of a backward
//                   counts which gradients each unit will get; asks autograd for a call at the end
//   gradient_ready  the gradient is staged and dropped; the last of a unit starts its reduction
//   end_backward    the rest is reduced, every reduction is finished, every unit is resharded
//   backward_died   instead, if the backward threw: its leftovers are dropped
//
// Note [no bracket]: fully_shard() leaves a module its own forward, which tells neither its begin
// nor its end.  The first use outside of forward and backward begins a forward, and it ends when a
// backward begins or state is read.  Another forward begins at a use if the unit's shards were
// written since it was gathered, or if gradients are recorded now and were not before.
//
// Note [one thread]: every rank must gather in the same order, and two threads of one forward would
// not keep an order.  Operators of a forward must run in the thread that began it; operators that a
// kernel runs in its own threads may read unsharded parameters while the kernel runs.
//
// Thread-safe: one mutex; autograd's threads and the caller's may differ.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/context.h"
#include "libfsdp/internal/engine/reduction.h"
#include "libfsdp/internal/engine/schedule.h"
#include "libfsdp/internal/trace/trace.h"
#include "libfsdp/internal/units/module_units.h"
#include "libfsdp/internal/units/unit.h"
#include "libfsdp/options.h"

namespace fsdp {
class ShardedModule;
}

namespace fsdp::internal {

// Counts what an engine has done since it was made.
struct EngineStats {
  std::int64_t gathers = 0;  // collectives
  std::int64_t gathered_units = 0;
  std::int64_t prefetched_units = 0;  // started before their first use
  std::int64_t prefetch_hits = 0;     // and then used
  std::int64_t reductions = 0;        // collectives
  std::int64_t uses = 0;              // operators seen
};

// Outlives the engine: graphs and threads ask it whether the engine still exists.
struct EngineLife {
  Engine* engine = nullptr;
  // Held during calls of the engine that may outlive the caller of backward.
  std::mutex mutex;
  // If another engine took over the units: that engine's life, and the name of their root in it.
  std::shared_ptr<EngineLife> outer;
  std::string name_in_outer;
};

// Returns null once the engine is gone.
inline Engine* engine_of(const std::shared_ptr<EngineLife>& life) noexcept {
  return life ? life->engine : nullptr;
}
inline Engine* engine_of(const std::weak_ptr<EngineLife>& life) noexcept {
  return engine_of(life.lock());
}

// Tells how a forward begins and ends.
enum class Bracket {
  kCalled,  // by begin_forward() and end_forward()
  kNone,    // see Note [no bracket]
};

// What one forward and its backward hold: see Note [one step].
struct Step {
  std::atomic<bool> in_forward = false;
  std::atomic<std::thread::id> thread;  // of the forward
  bool grad_mode = true;                // of the forward
  bool failed = false;                  // other ranks were told of a failure
  std::atomic<int> kernels = 0;         // operators running: of the forward or backward
  std::atomic<int> strangers = 0;       // operators running in other threads
  // The unit the last operator used, unsharded; further operators on it need nothing.
  std::atomic<Unit*> current = nullptr;
  std::atomic<int> current_task = -1;    // the graph task it was used in
  std::vector<int> graph_tasks;          // of this backward, reentrant ones last
  std::vector<Reduction::Part> pending;  // to be reduced together
  std::int64_t pending_bytes = 0;
  std::deque<Reduction> in_flight;
  std::vector<Arriving> arriving;

  bool in_backward() const noexcept { return !graph_tasks.empty(); }
};

class Engine {
 public:
  // Takes ownership of the units, the root first, and gives them their numbers.
  Engine(FsdpOptions options, std::shared_ptr<WrappedModule> wrapped, c10::Device compute_device,
         std::vector<std::unique_ptr<Unit>> units, Bracket bracket);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const FsdpOptions& options() const noexcept { return options_; }
  const std::vector<std::unique_ptr<Unit>>& units() const noexcept { return units_; }
  const std::shared_ptr<WrappedModule>& wrapped() const noexcept { return wrapped_; }
  // The groups of the root.
  const std::shared_ptr<ProcessGroup>& shard_group() const noexcept {
    return units_.front()->sharding->mesh.shard;
  }
  const std::shared_ptr<ProcessGroup>& replicate_group() const noexcept {
    return units_.front()->sharding->mesh.replicate;
  }
  bool has_run() const noexcept { return has_run_; }
  // Gives the units to the engine of a module around this one.  This engine must not be used
  // afterwards.  Requires: not has_run().
  std::vector<std::unique_ptr<Unit>> release_units();
  Streams& streams() noexcept { return streams_; }
  Buffers& buffers() noexcept { return buffers_; }
  const EngineStats& stats() const noexcept { return stats_; }
  void begin_forward();
  void end_forward();
  // Call if the forward threw.
  void abandon_forward(const char* what) noexcept;

  // Call when an operator is about to run on parameters of these units (each listed once); call
  // end_use() after it ran.  Returns: whether the operator belongs to the forward or backward (see
  // Note [one thread]).
  // Throws: c10::Error outside forward, backward and summon_full_params, and in another thread than
  // the forward's.
  bool use(const std::vector<Unit*>& units);
  // Returns whether the unit's parameters can be read from their shards, which are whole: NO_SHARD,
  // outside of forward and backward.
  bool reads_shards(const Unit& unit) const noexcept;
  void end_use(bool own) noexcept { --(own ? step_.kernels : step_.strangers); }
  // Call after the operator `writer` wrote the unsharded parameter, see written_parameters.h.
  // Throws: c10::Error if the shard cannot take the written values.
  void written(Parameter& parameter, const std::string& writer);
  // Adds `pins`, which may be negative: a unit with pins stays unsharded once it is.
  void pin(Unit& unit, int pins);
  const std::shared_ptr<EngineLife>& life() const noexcept { return life_; }

  // Drops all gradients of these units, reduced and kept ones, or makes them zero.
  void zero_grad(const std::vector<Unit*>& units, bool set_to_none);
  // Makes the next forward throw `why`, because values were lost.
  void spoil(const std::string& why);

  void set_comm_hook(const std::vector<Unit*>& units, const CommHook& hook);
  // Calls change(unit) for each, while no step reads them.
  template <typename Change>
  void change(const std::vector<Unit*>& units, const Change& change) {
    const std::lock_guard lock(mutex_);
    for (Unit* unit : units) change(*unit);
  }
  // If false, a backward leaves its last reduction in flight.
  void set_is_last_backward(bool last) noexcept { is_last_backward_ = last; }
  // Throws: c10::Error if a backward has left a reduction in flight.
  void require_finished(const char* what) const;

  // Starts gathering a unit, which stays gathered until it was used, or reshard_now().
  // Throws: c10::Error inside summon_full_params; for a wrapper's unit, outside forward and
  // backward.
  void unshard(Unit& unit);
  // Lets the caller's stream use the unit.
  void finish_unshard(Unit& unit);
  // Frees a unit's gathered parameters.  For the root: ends a forward that nothing else ends.
  void reshard_now(Unit& unit);

  // While full parameters are summoned, or state is read or loaded, no forward may run, and no unit
  // has memory beyond its shards.  `what` names the caller's action, for errors.
  // Throws: c10::Error inside forward or backward, or if a summon is in progress already.
  void begin_summon(const char* what);
  void end_summon() noexcept;
  // Call after a parameter's tensor was replaced temporarily: autograd's nodes may be new ones.
  void hook_gradients(Parameter& parameter);

  // Records spans from now on; drops earlier spans.
  void start_trace();
  // Null: tracing is off.
  const Trace* trace() const noexcept { return trace_.get(); }

  // Called by autograd, for a graph task of a backward, see engine_backward.cpp.
  void gradient_ready(Parameter& parameter);
  void end_backward(int graph_task);
  void backward_died(int graph_task) noexcept;

 private:
  // Requires, as all below: mutex_ is held.
  void open_forward();
  // See Note [no bracket].
  bool is_another_forward(const std::vector<Unit*>& units) const noexcept;
  // `keeps_units`: a backward may use what is unsharded.
  void close_forward(bool keeps_units);
  // `replaceable`: accept another tensor in a parameter's place if its values can be taken.
  void check_taken(bool replaceable = false) const;
  // Throws: c10::Error if, since the library let go of the parameters, something wrote one that has
  // no memory, or put a hook on a shard.
  void check_untouched() const;
  void let_go_of_parameters() noexcept;
  // See Note [freezing] in freezing.h.
  void follow_freezing();
  void follow_freezing(Unit& unit);
  // Takes the values of tensors in the place of parameters, and restores the parameters' own
  // tensors.
  void take_replacements();
  void keep_replacements() noexcept;
  void start_gather(Unit& first, Phase phase);
  void finish_gather(Unit& unit);
  // Lets the caller's stream use unsharded units.
  void hand_over(const std::vector<Unit*>& units);
  // `keeps_piece`: keeps this rank's part of what was gathered.
  void reshard(Unit& unit, bool keeps_piece = false);
  void reshard_unrelated(const std::vector<Unit*>& units, Phase phase);
  void reshard_all();
  // Does the same as settle_shards(), for gathers that are given up.  Call after an error, before
  // other ranks are told.
  void let_gathers_read() noexcept;
  // Orders writes to shards from now on, by the caller's stream or by the host, after every gather
  // that reads them.  Writes of the host to shards in its memory come after the work that is on
  // `lane` now.
  void settle_shards(Lane lane);
  // Has the host wait for copies of offloaded shards.
  void wait_for_shards(Lane lane);
  void prefetch(Unit& unit, Phase phase);
  void enter_backward();
  // Autograd adds gradients in the stream that was current when it first asked: makes it ask again
  // if the caller uses another stream now.
  void follow_with_gradients();
  void reduce(Unit& unit);
  void start_pending_reductions();
  void finish_reductions(std::size_t left);
  // Drops what is left of a backward that threw.  On an accelerator the caller may go on before
  // autograd's own thread has reported the end of that backward.
  void drop_backward() noexcept;
  // Does the same after an error, and tells other ranks of it.
  void fail_backward() noexcept;
  void forget_order() noexcept;
  void make_available(Unit& unit, Phase phase);
  // Ends the compute span of the last used unit, and begins that of `unit` (null: none).
  void trace_compute(const Unit* unit, Phase phase);

  const FsdpOptions options_;
  std::vector<std::unique_ptr<Unit>> units_;
  const Bracket bracket_;
  const std::shared_ptr<WrappedModule> wrapped_;
  Streams streams_;
  Buffers buffers_;
  GatherChecks gather_checks_;
  EngineContext context_;
  Schedule schedule_;
  Step step_;
  EngineStats stats_;
  std::unique_ptr<Trace> trace_;

  std::mutex mutex_;
  std::atomic<bool> summoned_ = false;
  const std::shared_ptr<EngineLife> life_ = std::make_shared<EngineLife>();
  std::string spoiled_;  // the reason if the module cannot be used; else empty
  c10::StreamId gradient_stream_ = 0;
  bool offloads_ = false;  // any unit
  bool is_last_backward_ = true;
  bool has_run_ = false;  // a forward has begun
};

// A scope for reading and loading state between steps.  While it lives, no forward or
// summon_full_params of the engine begins, and no unit has memory beyond its shards: the next
// forward sees the shards as the scope leaves them.
// Throws: c10::Error "<what> inside forward or backward", "... inside summon_full_params".
class OutsideStep {
 public:
  OutsideStep(Engine& engine, const char* what) : engine_(engine) { engine_.begin_summon(what); }
  ~OutsideStep() { engine_.end_summon(); }
  OutsideStep(const OutsideStep&) = delete;
  OutsideStep& operator=(const OutsideStep&) = delete;

 private:
  Engine& engine_;
};

// Throws: c10::Error if the sharded module around this one has been destroyed.
Engine& engine_of(const ShardedModule& module);

}  // namespace fsdp::internal
