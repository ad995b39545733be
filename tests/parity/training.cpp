// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/training.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include <torch/nn/functional/loss.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/wrap_policy.h"
#include "tests/parity/models.h"

namespace fsdp::test {
namespace {

using Sharded = FullyShardedDataParallel<ParityModel>;

// As in reference.py.
constexpr std::int64_t kSizePolicyNumel = 2000;

bool starts_with(const std::string& name, const std::string& prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

bool is_frozen(const ParityCase& wanted, const std::string& name) {
  return std::any_of(wanted.frozen.begin(), wanted.frozen.end(), [&](const std::string& frozen) {
    return name == frozen || (frozen.back() == '.' && starts_with(name, frozen));
  });
}

bool is_ignored(const ParityCase& wanted, const std::string& name) {
  return std::any_of(wanted.ignored.begin(), wanted.ignored.end(),
                     [&](const std::string& module) { return starts_with(name, module + "."); });
}

std::shared_ptr<ParityModel> initial_model(const ParityCase& wanted, const ParityInputs& inputs) {
  auto model = make_model(inputs.model);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->named_parameters()) {
    const auto initial = inputs.tensors.find("init." + parameter.key());
    // The second name of a tied parameter: PyTorch lists the first alone.
    if (initial != inputs.tensors.end()) parameter.value().copy_(initial->second);
    if (is_frozen(wanted, parameter.key())) parameter.value().set_requires_grad(false);
  }
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const ParityCase& wanted,
                                                        std::vector<at::Tensor> parameters) {
  if (wanted.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters),
      torch::optim::AdamWOptions(3e-3).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.01));
}

// What is trained: one rank's view of it.
class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void set_requires_gradient_sync(bool sync) = 0;
  virtual at::Tensor clip_grad_norm(double max_norm, double norm_type) = 0;
  virtual std::vector<at::Tensor> parameters() = 0;
  // Full parameters and buffers.
  virtual Tensors tensors() = 0;
  virtual std::vector<std::string> units() = 0;
};

class PlainSubject final : public Subject {
 public:
  explicit PlainSubject(std::shared_ptr<ParityModel> model) : model_(std::move(model)) {}

  at::Tensor forward(const at::Tensor& x) override { return model_->forward(x); }
  void set_requires_gradient_sync(bool /*sync*/) override {}
  at::Tensor clip_grad_norm(double max_norm, double norm_type) override {
    return torch::tensor(
        torch::nn::utils::clip_grad_norm_(parameters(), max_norm, norm_type, false));
  }
  // Trainable ones, each once.
  std::vector<at::Tensor> parameters() override {
    std::vector<at::Tensor> found;
    for (const at::Tensor& parameter : model_->parameters()) {
      const bool again = std::any_of(found.begin(), found.end(),
                                     [&](const at::Tensor& t) { return t.is_same(parameter); });
      if (parameter.requires_grad() && !again) found.push_back(parameter);
    }
    return found;
  }
  Tensors tensors() override {
    Tensors found;
    for (const auto& item : model_->named_parameters()) found[item.key()] = item.value().detach();
    for (const auto& item : model_->named_buffers()) found[item.key()] = item.value();
    return found;
  }
  std::vector<std::string> units() override { return {}; }

 private:
  std::shared_ptr<ParityModel> model_;
};

class ShardedSubject final : public Subject {
 public:
  ShardedSubject(const std::shared_ptr<ParityModel>& model, FsdpOptions options)
      : sharded_(model, std::move(options)) {}

  at::Tensor forward(const at::Tensor& x) override { return sharded_.forward(x); }
  void set_requires_gradient_sync(bool sync) override { sharded_.set_requires_gradient_sync(sync); }
  at::Tensor clip_grad_norm(double max_norm, double norm_type) override {
    return sharded_.clip_grad_norm_(max_norm, norm_type);
  }
  std::vector<at::Tensor> parameters() override { return sharded_.parameters(); }
  Tensors tensors() override {
    Tensors found;
    for (const auto& [name, buffer] : sharded_.named_buffers()) found[name] = buffer.clone();
    SummonOptions options;
    options.writeback = false;
    FullParams scope = sharded_.summon_full_params(options);
    for (const auto& item : sharded_.module()->named_parameters()) {
      found[item.key()] = item.value().detach().clone();
    }
    scope.close();
    return found;
  }
  std::vector<std::string> units() override { return sharded_.unit_names(); }

 private:
  Sharded sharded_;
};

// The loop of reference.py for one rank, in the parts between which ranks may talk.
class Loop {
 public:
  Loop(const ParityCase& wanted, const ParityInputs& inputs, int rank, Subject& subject)
      : case_(wanted),
        x_(inputs.tensors.at("x").select(1, rank)),
        y_(inputs.tensors.at("y").select(1, rank)),
        subject_(subject),
        optimizer_(make_optimizer(wanted, subject.parameters())) {}

  void backward(std::int64_t step) {
    auto& losses = training_.losses.emplace_back();
    for (std::int64_t micro = 0; micro < case_.micro; ++micro) {
      subject_.set_requires_gradient_sync(!case_.no_sync || micro + 1 == case_.micro);
      at::Tensor sum;
      for (std::int64_t i = 0; i < case_.forwards; ++i) {
        const at::Tensor part = loss(step, micro + i);
        losses.push_back(part.item<float>());
        sum = sum.defined() ? sum + part : part;
      }
      (sum / static_cast<double>(case_.micro)).backward();
    }
  }

  void update(std::int64_t step) {
    if (case_.evaluate_early) evaluate(step);
    if (case_.clip > 0) {
      const double p = case_.norm > 0 ? case_.norm : std::numeric_limits<double>::infinity();
      training_.norms.push_back(subject_.clip_grad_norm(case_.clip, p).item<double>());
    }
    optimizer_->step();
    optimizer_->zero_grad();
    if (case_.evaluate) evaluate(step);
  }

  Training finish() {
    training_.tensors = subject_.tensors();
    training_.units = subject_.units();
    return std::move(training_);
  }

 private:
  at::Tensor loss(std::int64_t step, std::int64_t micro) {
    const at::Tensor logits = subject_.forward(x_[step][micro]);
    return torch::nn::functional::cross_entropy(logits.to(at::kFloat).flatten(0, -2),
                                                y_[step][micro].flatten());
  }

  void evaluate(std::int64_t step) {
    const torch::NoGradGuard no_grad;
    training_.evaluations.push_back(loss(step, 2).item<float>());
  }

  const ParityCase& case_;
  at::Tensor x_;  // [step, micro batch, batch, ...]
  at::Tensor y_;
  Subject& subject_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Training training_;
};

ShardingStrategy strategy_of(const std::string& name) {
  static const std::map<std::string, ShardingStrategy> kStrategies = {
      {"FULL_SHARD", ShardingStrategy::kFullShard},
      {"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
      {"NO_SHARD", ShardingStrategy::kNoShard},
      {"HYBRID_SHARD", ShardingStrategy::kHybridShard},
      {"_HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2},
  };
  return kStrategies.at(name);
}

WrapPolicy policy_of(const std::string& name) {
  if (name == "units") return custom_policy(is_unit);
  if (name == "all") return always_wrap_policy();
  if (name == "size") return size_based_auto_wrap_policy(kSizePolicyNumel);
  return {};
}

// The ranks that share one copy with this one, and those that hold the same part of other copies.
std::pair<std::shared_ptr<ProcessGroup>, std::shared_ptr<ProcessGroup>> split(
    const std::shared_ptr<ProcessGroup>& world, int shard) {
  std::vector<int> sharing;
  std::vector<int> copies;
  for (int rank = 0; rank < world->size(); ++rank) {
    if (rank / shard == world->rank() / shard) sharing.push_back(rank);
    if (rank % shard == world->rank() % shard) copies.push_back(rank);
  }
  auto first = world->subgroup(sharing);
  return {std::move(first), world->subgroup(copies)};
}

// Also sets the model up to recompute its blocks, where they are to be.
FsdpOptions options_of(const ParityCase& wanted, ParityModel& model,
                       const std::shared_ptr<ProcessGroup>& group) {
  FsdpOptions options;
  options.process_group = group;
  options.sharding_strategy = strategy_of(wanted.strategy);
  if (wanted.shard > 0) {
    std::tie(options.process_group, options.replicate_group) = split(group, wanted.shard);
  }
  options.auto_wrap_policy = policy_of(wanted.wrap);
  options.use_orig_params = wanted.use_orig_params;
  options.backward_prefetch = wanted.backward_prefetch == "PRE"    ? BackwardPrefetch::kBackwardPre
                              : wanted.backward_prefetch == "POST" ? BackwardPrefetch::kBackwardPost
                                                                   : BackwardPrefetch::kNone;
  options.forward_prefetch = wanted.forward_prefetch;
  options.limit_all_gathers = wanted.limit_all_gathers;
  options.cpu_offload.offload_params = wanted.offload;
  options.sync_module_states = wanted.sync_module_states;
  if (wanted.node_size > 0) options.node_size = wanted.node_size;
  if (wanted.casts("param")) options.mixed_precision.param_dtype = at::kBFloat16;
  if (wanted.casts("reduce")) options.mixed_precision.reduce_dtype = at::kBFloat16;
  if (wanted.casts("buffer")) options.mixed_precision.buffer_dtype = at::kBFloat16;
  options.bucket_bytes = wanted.bucket_bytes;
  if (wanted.checkpoint) {
    options.activation_checkpointing_policy = is_unit;
    auto* gpt = model.as<GPTImpl>();
    TORCH_CHECK(gpt, "only the GPT knows how to recompute its blocks");
    gpt->call = [](Block& block, const at::Tensor& x) { return checkpoint_module(block, x); };
  }
  for (const auto& item : model.named_modules()) {
    const auto& names = wanted.ignored;
    if (std::find(names.begin(), names.end(), item.key()) != names.end()) {
      options.ignored_modules.push_back(item.value());
    }
  }
  return options;
}

void scramble(ParityModel& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.add_(1);
  for (auto& buffer : model.buffers()) buffer.add_(1);
}

// The mean over ranks, to every rank; a parameter without gradient anywhere stays without.
void average_gradients(const ParityCase& wanted,
                       const std::vector<std::shared_ptr<ParityModel>>& models) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : models.front()->named_parameters()) {
    if (is_ignored(wanted, item.key()) || !item.value().grad().defined()) continue;
    // A tied parameter comes by both of its names: the mean of means is the mean.
    at::Tensor mean = torch::zeros_like(item.value());
    for (const auto& model : models) mean += model->named_parameters()[item.key()].grad();
    mean /= static_cast<double>(models.size());
    for (const auto& model : models) {
      model->named_parameters()[item.key()].mutable_grad().copy_(mean);
    }
  }
}

}  // namespace

Training train_sharded(const ParityCase& wanted, const ParityInputs& inputs,
                       const std::shared_ptr<ProcessGroup>& group) {
  const auto model = initial_model(wanted, inputs);
  if (wanted.sync_module_states && group->rank() > 0) scramble(*model);
  ShardedSubject subject(model, options_of(wanted, *model, group));
  Loop loop(wanted, inputs, group->rank(), subject);
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    loop.backward(step);
    loop.update(step);
  }
  return loop.finish();
}

std::vector<Training> train_plain(const ParityCase& wanted, const ParityInputs& inputs, int world) {
  std::vector<std::shared_ptr<ParityModel>> models;
  std::vector<std::unique_ptr<PlainSubject>> subjects;
  std::vector<Loop> loops;
  for (int rank = 0; rank < world; ++rank) {
    models.push_back(initial_model(wanted, inputs));
    subjects.push_back(std::make_unique<PlainSubject>(models.back()));
    loops.emplace_back(wanted, inputs, rank, *subjects.back());
  }
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    for (Loop& loop : loops) loop.backward(step);
    average_gradients(wanted, models);
    for (Loop& loop : loops) loop.update(step);
  }
  std::vector<Training> trainings;
  for (Loop& loop : loops) trainings.push_back(loop.finish());
  return trainings;
}

}  // namespace fsdp::test
