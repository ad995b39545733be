// SPDX-License-Identifier: Apache-2.0
// The backward part of an engine: see Note [one step] in engine.h.
#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/staging.h"
#include "libfsdp/internal/units/written_parameters.h"

namespace fsdp::internal {
namespace {

// Limits reductions in flight while backward goes on: one hides behind the next unit's gradients,
// and more would only hold memory.
constexpr std::size_t kReductionsInFlight = 1;

// Observes the end of a graph task: autograd calls back if the task ran to its end, and destroys
// the callback silently if the task threw.
class TaskEnd {
 public:
  TaskEnd(std::weak_ptr<EngineLife> life, int graph_task)
      : life_(std::move(life)), graph_task_(graph_task) {}
  TaskEnd(const TaskEnd&) = delete;
  TaskEnd& operator=(const TaskEnd&) = delete;
  ~TaskEnd() {
    const auto life = life_.lock();
    if (reached_ || !life) return;
    const std::lock_guard lock(life->mutex);
    if (life->engine != nullptr) life->engine->backward_died(graph_task_);
  }

  // If this throws, the backward has died as well.
  void reached() {
    if (Engine* const engine = engine_of(life_)) engine->end_backward(graph_task_);
    reached_ = true;
  }

 private:
  const std::weak_ptr<EngineLife> life_;
  const int graph_task_;
  bool reached_ = false;
};

// Hides the stand-in, because autograd would add to it.
struct BeforeGradient : torch::autograd::FunctionPreHook {
  BeforeGradient(std::weak_ptr<EngineLife> of, Parameter* p) : life(std::move(of)), hooked(p) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    if (engine_of(life) != nullptr) hide_from_module(*hooked);
    return gradients;
  }
  std::weak_ptr<EngineLife> life;
  Parameter* hooked;
};

struct AfterGradient : torch::autograd::PostAccumulateGradHook {
  AfterGradient(Engine* e, Parameter* p) : engine(e), hooked(p) {}
  void operator()(const at::Tensor&) override { engine->gradient_ready(*hooked); }
  Engine* engine;
  Parameter* hooked;
};

// Returns whether one collective can reduce both parts.
bool go_together(const Reduction::Part& a, const Reduction::Part& b) {
  const Mesh& mesh = a.first->sharding->mesh;
  const Mesh& other = b.first->sharding->mesh;
  return a.second->reduce_dtype == b.second->reduce_dtype && mesh.shard == other.shard &&
         mesh.replicate == other.replicate && a.first->all_reduces == b.first->all_reduces &&
         !a.first->comm_hook && !b.first->comm_hook;
}

}  // namespace

void Engine::hook_gradients(Parameter& parameter) {
  if (!parameter.full.requires_grad()) return;
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode grad(true);
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter.full);
  if (accumulator != parameter.accumulator) {
    accumulator->add_pre_hook(std::make_unique<BeforeGradient>(life_, &parameter));
    parameter.accumulator = std::move(accumulator);
  }
  torch::autograd::impl::set_post_acc_grad_hooks(parameter.full,
                                                 std::make_unique<AfterGradient>(this, &parameter));
}

void Engine::follow_with_gradients() {
  if (streams_.id(Lane::kCompute) == gradient_stream_) return;
  gradient_stream_ = streams_.id(Lane::kCompute);
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      parameter->accumulator.reset();
      hook_gradients(*parameter);
    }
  }
}

// Reentrant backwards (checkpointing) come as separate graph tasks, inside another one.
void Engine::enter_backward() {
  const int graph_task = torch::autograd::get_current_graph_task_id();
  if (step_.in_backward() && step_.graph_tasks.back() == graph_task) return;
  step_.graph_tasks.push_back(graph_task);
  if (step_.graph_tasks.size() == 1) {
    if (bracket_ == Bracket::kNone && step_.in_forward) close_forward(/*keeps_units=*/true);
    schedule_.begin_phase();
    if (step_.failed) monitor_of(*options_.process_group).recovered();
    step_.failed = false;
  }
  const auto task = std::make_shared<TaskEnd>(life_, graph_task);
  torch::autograd::Engine::get_default_engine().queue_callback([task] { task->reached(); });
  if (step_.graph_tasks.size() == 1) follow_freezing();
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* infos = torch::autograd::get_current_graph_task_exec_info();
  for (const auto& unit : units_) {
    for (const auto& parameter : unit->parameters) {
      torch::autograd::Node* node = parameter->accumulator.get();
      if (!parameter->trainable || node == nullptr || nodes == nullptr || nodes->count(node) == 0)
        continue;
      if (infos != nullptr && !infos->empty()) {
        // autograd::grad: only nodes that lead to its inputs are computed.
        const auto info = infos->find(node);
        if (info == infos->end() || !info->second.needed_) continue;
      }
      ++unit->expected;
    }
  }
}

void Engine::gradient_ready(Parameter& parameter) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  enter_backward();
  Unit& unit = *parameter.unit;
  FSDP_CHECK(!parameter.replaced_at || parameter.replaced_at == unit.version(),
             changed_since_forward(unit));
  ++unit.ready;
  if (!unit.syncs_gradients)
    keep_gradient(parameter);
  else if (streams_.on_cpu())
    stage_gradient(context_, parameter);
  if (!unit.done()) return;
  if (unit.syncs_gradients) {
    stage_gradients(context_, unit);
    reduce(unit);
  }
  if (unit.state == UnitState::kUnsharded && unit.pins == 0 && unit.reshards_after_backward &&
      (unit.reshards_after_forward || unit.syncs_gradients)) {
    if (step_.current == &unit) step_.current = nullptr;
    reshard(unit);
  }
  for (Unit* next : schedule_.ahead_of_made(unit)) prefetch(*next, Phase::kBackward);
}

void Engine::reduce(Unit& unit) {
  for (FlatGroup& group : unit.groups) {
    const Reduction::Part part(&unit, &group);
    if (!group.staging.defined() ||
        std::find(step_.pending.begin(), step_.pending.end(), part) != step_.pending.end())
      continue;
    const auto bytes = static_cast<std::int64_t>(group.staging.nbytes());
    if (!step_.pending.empty() && (!go_together(step_.pending.front(), part) ||
                                   step_.pending_bytes + bytes > options_.bucket_bytes))
      start_pending_reductions();
    step_.pending.push_back(part);
    step_.pending_bytes += bytes;
    if (step_.pending_bytes >= options_.bucket_bytes || unit.comm_hook) start_pending_reductions();
  }
}

void Engine::start_pending_reductions() {
  if (step_.pending.empty()) return;
  ++stats_.reductions;
  step_.pending_bytes = 0;
  try {
    const std::string title = Reduction::full_title(step_.pending);
    const Mesh& mesh = step_.pending.front().second->sharding->mesh;
    const bool sharded = mesh.shard->size() > 1;
    schedule_.next(sharded || !mesh.replicate ? mesh.shard : mesh.replicate, title);
    if (sharded && mesh.replicate && step_.pending.front().first->all_reduces)
      schedule_.next(mesh.replicate, title + " over replicas");
  } catch (const std::exception& error) {
    // Other ranks wait for this one in another collective: tell them why this rank does not come.
    step_.failed = true;
    monitor_of(*options_.process_group).failed("its backward threw: " + message_of(error));
    throw;
  }
  step_.in_flight.emplace_back(context_, std::exchange(step_.pending, {}));
  finish_reductions(kReductionsInFlight);
}

void Engine::finish_reductions(std::size_t left) {
  while (step_.in_flight.size() > left) {
    Reduction reduction = std::move(step_.in_flight.front());
    step_.in_flight.pop_front();
    try {
      reduction.finish(step_.arriving);
    } catch (...) {
      forget_order();
      throw;
    }
  }
}

void Engine::end_backward(int graph_task) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  if (step_.graph_tasks.size() > 1) {
    std::erase(step_.graph_tasks, graph_task);
    return;
  }
  trace_compute(nullptr, Phase::kBackward);
  for (const auto& unit : units_) {
    if (!unit->syncs_gradients) continue;
    stage_gradients(context_, *unit);
    reduce(*unit);
  }
  start_pending_reductions();
  if (is_last_backward_) finish_reductions(0);
  streams_.order(Lane::kReduce, Lane::kCompute);
  step_.graph_tasks.clear();
  for (const auto& unit : units_) {
    unit->outlives_backward =
        !unit->reshards_after_backward || (!unit->syncs_gradients && !unit->reshards_after_forward);
    if (!unit->outlives_backward || unit->state == UnitState::kGathering) reshard(*unit);
  }
  gather_checks_.check_arrived();
  // The order above puts this lane after the copies of gradients, too.
  settle_shards(Lane::kCompute);
  for (const Arriving& more : std::exchange(step_.arriving, {}))
    add_to_gradients(context_, *more.group, more.gradients);
  for (const auto& unit : units_) {
    unit->expected = unit->ready = 0;
    show_gradients(*unit);
  }
  step_.current = nullptr;
  schedule_.begin_phase();
  check_taken(/*replaceable=*/true);
  take_replacements();
  let_go_of_parameters();
}

void Engine::drop_backward() noexcept {
  step_.graph_tasks.clear();
  trace_compute(nullptr, Phase::kBackward);
  step_.pending.clear();
  step_.pending_bytes = 0;
  step_.in_flight.clear();
  step_.arriving.clear();
  for (const auto& unit : units_) {
    unit->expected = unit->ready = 0;
    for (FlatGroup& group : unit->groups) {
      buffers_.abandon(std::move(group.staging), Use::kGradients, Lane::kCompute);
      group.staging.reset();
    }
    for (const auto& parameter : unit->parameters) {
      parameter->staged = parameter->kept_sent = false;
      if (stand_in_of(parameter->full.grad()) == nullptr) parameter->full.mutable_grad().reset();
    }
    show_gradients(*unit);
  }
  let_gathers_read();
  for (const auto& unit : units_) forget_written(*unit);
  keep_replacements();
  let_go_of_parameters();
  step_.current = nullptr;
  schedule_.begin_phase();
}

void Engine::backward_died(int graph_task) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::erase(step_.graph_tasks, graph_task) == 0 || step_.in_backward()) return;
  fail_backward();
}

void Engine::fail_backward() noexcept {
  step_.failed = true;
  drop_backward();
  monitor_of(*options_.process_group).failed("its backward threw");
}

}  // namespace fsdp::internal
