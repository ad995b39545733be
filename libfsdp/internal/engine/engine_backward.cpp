// SPDX-License-Identifier: Apache-2.0
// The backward part of an engine: see Note [one step] in engine.h.
#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/rank_monitor.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/engine/gradients.h"
#include "libfsdp/internal/engine/staging.h"
#include "libfsdp/internal/units/own_work.h"
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
    const auto life = life_.lock();
    if (life && life->engine != nullptr) life->engine->end_backward(graph_task_);
    reached_ = true;
  }

 private:
  const std::weak_ptr<EngineLife> life_;
  const int graph_task_;
  bool reached_ = false;
};

struct BeforeGradient : torch::autograd::FunctionPreHook {
  BeforeGradient(std::weak_ptr<EngineLife> of, Parameter* p) : life(std::move(of)), hooked(p) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    const auto alive = life.lock();
    if (alive && alive->engine != nullptr) alive->engine->gradient_comes(*hooked);
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
  const int task = torch::autograd::get_current_graph_task_id();
  if (graph_tasks_.empty() || graph_tasks_.back() != task) begin_backward(task);
}

void Engine::begin_backward(int graph_task) {
  graph_tasks_.push_back(graph_task);
  if (graph_tasks_.size() == 1) {
    if (bracket_ == Bracket::kNone && in_forward_) close_forward(/*keeps_units=*/true);
    previous_ = nullptr;
    if (failed_) options_.process_group->monitor().recovered();
    failed_ = false;
  }
  const auto task = std::make_shared<TaskEnd>(life_, graph_task);
  torch::autograd::Engine::get_default_engine().queue_callback([task] { task->reached(); });
  if (graph_tasks_.size() == 1) follow_freezing();
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

// Hides the stand-in, because autograd would add to it.
void Engine::gradient_comes(Parameter& parameter) noexcept {
  hide_from_module(parameter);
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
    stage_gradient(reduce_context_, parameter);
  if (!unit.done()) return;
  if (unit.syncs_gradients) {
    stage_gradients(reduce_context_, unit);
    reduce(unit);
  }
  if (unit.state == UnitState::kUnsharded && unit.pins == 0 && unit.reshards_after_backward &&
      (unit.reshards_after_forward || unit.syncs_gradients)) {
    if (current_ == &unit) current_ = nullptr;
    reshard(unit);
  }
  if (options_.backward_prefetch == BackwardPrefetch::kBackwardPost)
    prefetch_after(unit, Phase::kBackward);
}

void Engine::reduce(Unit& unit) {
  for (FlatGroup& group : unit.groups) {
    const Reduction::Part part(&unit, &group);
    if (!group.staging.defined() ||
        std::find(pending_.begin(), pending_.end(), part) != pending_.end())
      continue;
    const auto bytes = static_cast<std::int64_t>(group.staging.nbytes());
    if (!pending_.empty() &&
        (!go_together(pending_.front(), part) || pending_bytes_ + bytes > options_.bucket_bytes))
      start_pending_reductions();
    pending_.push_back(part);
    pending_bytes_ += bytes;
    if (pending_bytes_ >= options_.bucket_bytes || unit.comm_hook) start_pending_reductions();
  }
}

void Engine::start_pending_reductions() {
  if (pending_.empty()) return;
  ++stats_.reductions;
  pending_bytes_ = 0;
  try {
    const std::string title = Reduction::full_title(pending_);
    const Mesh& mesh = pending_.front().second->sharding->mesh;
    const bool sharded = mesh.shard->size() > 1;
    order_over(sharded || !mesh.replicate ? mesh.shard : mesh.replicate).next(title);
    if (sharded && mesh.replicate && pending_.front().first->all_reduces)
      order_over(mesh.replicate).next(title + " over replicas");
  } catch (const std::exception& error) {
    // Other ranks wait for this one in another collective: tell them why this rank does not come.
    failed_ = true;
    options_.process_group->monitor().failed("its backward threw: " + message_of(error));
    throw;
  }
  in_flight_.emplace_back(reduce_context_, std::exchange(pending_, {}));
  finish_reductions(kReductionsInFlight);
}

void Engine::finish_reductions(std::size_t left) {
  while (in_flight_.size() > left) {
    Reduction reduction = std::move(in_flight_.front());
    in_flight_.pop_front();
    try {
      reduction.finish(arriving_);
    } catch (...) {
      forget_order();
      throw;
    }
  }
}

void Engine::end_backward(int graph_task) {
  const std::lock_guard lock(mutex_);
  streams_.follow_caller();
  if (graph_tasks_.size() > 1) {
    std::erase(graph_tasks_, graph_task);
    return;
  }
  trace_compute(nullptr, Phase::kBackward);
  for (const auto& unit : units_) {
    if (!unit->syncs_gradients) continue;
    stage_gradients(reduce_context_, *unit);
    reduce(*unit);
  }
  start_pending_reductions();
  if (is_last_backward_) finish_reductions(0);
  streams_.order(Lane::kReduce, Lane::kCompute);
  graph_tasks_.clear();
  for (const auto& unit : units_) {
    unit->outlives_backward =
        !unit->reshards_after_backward || (!unit->syncs_gradients && !unit->reshards_after_forward);
    if (!unit->outlives_backward || unit->state == UnitState::kGathering) reshard(*unit);
  }
  gather_checks_.check_arrived();
  // The order above puts this lane after the copies of gradients, too.
  settle_shards(Lane::kCompute);
  for (const Arriving& more : std::exchange(arriving_, {}))
    add_to_gradients(reduce_context_, *more.group, more.gradients);
  for (const auto& unit : units_) {
    unit->expected = unit->ready = 0;
    show_gradients(*unit);
  }
  current_ = nullptr;
  previous_ = nullptr;
  check_taken(/*replaceable=*/true);
  take_replacements();
  let_go_of_parameters();
}

void Engine::drop_backward() noexcept {
  graph_tasks_.clear();
  trace_compute(nullptr, Phase::kBackward);
  drop_abandoned();
  let_gathers_read();
  for (const auto& unit : units_) forget_written(*unit);
  keep_replacements();
  let_go_of_parameters();
  current_ = nullptr;
  previous_ = nullptr;
}

void Engine::backward_died(int graph_task) noexcept {
  const std::lock_guard lock(mutex_);
  if (std::erase(graph_tasks_, graph_task) == 0 || !graph_tasks_.empty()) return;
  fail_backward();
}

void Engine::fail_backward() noexcept {
  failed_ = true;
  drop_backward();
  options_.process_group->monitor().failed("its backward threw");
}

}  // namespace fsdp::internal
