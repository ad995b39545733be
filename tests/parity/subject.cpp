// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/subject.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <torch/nn/utils/clip_grad.h>
#include <torch/utils.h>

#include "libfsdp/activation_checkpoint.h"
#include "libfsdp/fully_shard.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/meta_device.h"
#include "tests/parity/case_options.h"
#include "tests/parity/models.h"

namespace fsdp::test {
using namespace internal;
namespace {

using Sharded = FullyShardedDataParallel<ParityModel>;

bool starts_with(const std::string& name, const std::string& prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

bool is_ignored(const ParityCase& wanted, const std::string& name) {
  return std::any_of(wanted.ignored.begin(), wanted.ignored.end(),
                     [&](const std::string& module) { return starts_with(name, module + "."); });
}

bool is_frozen(const ParityCase& wanted, const std::string& name) {
  return std::any_of(wanted.frozen.begin(), wanted.frozen.end(), [&](const std::string& frozen) {
    return name == frozen || (frozen.back() == '.' && starts_with(name, frozen));
  });
}

std::shared_ptr<ParityModel> initial_model(const ParityCase& wanted, const ParityInputs& inputs) {
  std::optional<MetaDevice> meta;
  if (wanted.meta) meta.emplace();
  auto model = make_model(inputs.model);
  meta.reset();
  if (!wanted.meta) {
    for (auto& item : model->named_modules()) initialize(*item.value(), item.key(), inputs.tensors);
  }
  for (auto& parameter : model->named_parameters()) {
    if (is_frozen(wanted, parameter.key())) parameter.value().set_requires_grad(false);
  }
  return model;
}

class ShardedSubject final : public Subject {
 public:
  ShardedSubject(const std::shared_ptr<ParityModel>& model, FsdpOptions options)
      : sharded_(model, std::move(options)) {}

  void register_comm_hook(CommHook hook) { sharded_.register_comm_hook(std::move(hook)); }

  at::Tensor forward(const at::Tensor& x) override { return sharded_.forward(x); }
  void set_requires_gradient_sync(bool sync) override { sharded_.set_requires_gradient_sync(sync); }
  at::Tensor clip_grad_norm(double max_norm, double norm_type) override {
    return sharded_.clip_grad_norm_(max_norm, norm_type);
  }
  std::vector<at::Tensor> parameters() override { return sharded_.parameters(); }
  Tensors tensors() override { return full_tensors(sharded_); }
  std::vector<std::string> units() override { return sharded_.unit_names(); }

 private:
  Sharded sharded_;
};

// Twice the mean, to distinguish it from the library's own reduction.
void reduce_to_twice_the_mean(const std::shared_ptr<ProcessGroup>& group, at::Tensor& unsharded,
                              at::Tensor& sharded) {
  const double factor = 2.0 / group->size();
  if (unsharded.is_same(sharded)) {
    all_reduce(group, unsharded, ReduceOp::kSum, "the test's hook").wait();
  } else {
    reduce_scatter(group, sharded, unsharded, "the test's hook").wait();
  }
  sharded.mul_(factor);
}

class ComposedSubject final : public Subject {
 public:
  ComposedSubject(std::shared_ptr<ParityModel> model, const ParityCase& wanted,
                  const FsdpOptions& options)
      : model_(std::move(model)), averages_(wanted.no_all_reduce) {
    const std::map<std::string, std::string> own = own_words(wanted);
    if (auto* const gpt = model_->as<GPTImpl>())
      gpt->call = [](Block& block, const at::Tensor& x) { return fsdp::call(*block, x); };
    auto modules = model_->named_modules().pairs();
    for (auto item = modules.rbegin(); item != modules.rend(); ++item) {
      const auto& [name, module] = *item;
      if (!name.empty() && !is_unit(*module) && own.count(name) == 0) continue;
      const auto words = own.find(name);
      sharded_ = fully_shard(
          module, composed_options(wanted, words == own.end() ? "" : words->second, options));
    }
    if (wanted.divide > 0) sharded_->set_gradient_divide_factor(wanted.divide);
    if (wanted.comm_hook) sharded_->register_comm_hook(reduce_to_twice_the_mean);
  }

  at::Tensor forward(const at::Tensor& x) override { return fsdp::call(*model_, x); }
  void set_requires_gradient_sync(bool sync) override {
    if (averages_)
      sharded_->set_requires_all_reduce(sync);
    else
      sharded_->set_requires_gradient_sync(sync);
  }
  at::Tensor clip_grad_norm(double max_norm, double norm_type) override {
    return sharded_->clip_grad_norm_(max_norm, norm_type);
  }
  std::vector<at::Tensor> parameters() override { return sharded_->parameters(); }
  Tensors tensors() override { return full_tensors(*sharded_); }
  std::vector<std::string> units() override { return sharded_->unit_names(); }

 private:
  const std::shared_ptr<ParityModel> model_;
  const bool averages_;  // set_requires_gradient_sync() is about the copies
  std::shared_ptr<ShardedModule> sharded_;
};

void ignore(const ParityCase& wanted, ParityModel& model, FsdpOptions& options) {
  const auto& names = wanted.ignored;
  for (const auto& item : model.named_modules()) {
    if (std::find(names.begin(), names.end(), item.key()) == names.end()) continue;
    if (wanted.ignore_parameters) {
      for (const at::Tensor& parameter : item.value()->parameters()) {
        options.ignored_states.push_back(parameter);
      }
    } else {
      options.ignored_modules.push_back(item.value());
    }
  }
}

// Initializes a module without memory like initial_model does for others.
std::function<void(torch::nn::Module&)> initializer(const ParityModel& model,
                                                    const Tensors& inputs) {
  std::map<const torch::nn::Module*, std::string> names;
  for (const auto& item : model.named_modules()) names[item.value().get()] = item.key();
  return [names, &inputs](torch::nn::Module& module) {
    to_empty(module, at::kCPU, /*recurse=*/false);
    initialize(module, names.at(&module), inputs);
  };
}

// Also makes the model recompute its blocks if the case wants that.
FsdpOptions options_of(const ParityCase& wanted, const ParityInputs& inputs, ParityModel& model,
                       const std::shared_ptr<ProcessGroup>& group) {
  FsdpOptions options = case_options(wanted, group);
  if (wanted.meta) options.param_init_fn = initializer(model, inputs.tensors);
  ignore(wanted, model, options);
  if (wanted.checkpoint) {
    options.activation_checkpointing_policy = is_unit;
    auto* gpt = model.as<GPTImpl>();
    TORCH_CHECK(gpt, "only the GPT knows how to recompute its blocks");
    gpt->call = [](Block& block, const at::Tensor& x) { return checkpoint_module(block, x); };
  }
  return options;
}

void scramble(ParityModel& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.add_(1);
  for (auto& buffer : model.buffers()) buffer.add_(1);
}

}  // namespace

void initialize(torch::nn::Module& module, const std::string& name, const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.named_parameters(/*recurse=*/false)) {
    const auto initial = inputs.find("init." + (name.empty() ? "" : name + ".") + parameter.key());
    // The second name of a tied parameter: PyTorch lists only the first.
    if (initial != inputs.end()) parameter.value().copy_(initial->second);
  }
  if (auto* norm = module.as<torch::nn::BatchNorm2dImpl>()) norm->reset_running_stats();
}

Tensors full_tensors(ShardedModule& sharded) {
  Tensors found;
  for (const auto& [name, buffer] : sharded.named_buffers()) found[name] = buffer.clone();
  SummonOptions options;
  options.writeback = false;
  FullParams scope = sharded.summon_full_params(options);
  for (const auto& item : sharded.module()->named_parameters()) {
    found[item.key()] = item.value().detach().clone();
  }
  scope.close();
  return found;
}

std::unique_ptr<Subject> sharded_subject(const ParityCase& wanted, const ParityInputs& inputs,
                                         const std::shared_ptr<ProcessGroup>& group) {
  const auto model = initial_model(wanted, inputs);
  if (wanted.sync_module_states && group->rank() > 0) scramble(*model);
  if (wanted.peer == "fsdp2")
    return std::make_unique<ComposedSubject>(model, wanted,
                                             options_of(wanted, inputs, *model, group));
  auto subject = std::make_unique<ShardedSubject>(model, options_of(wanted, inputs, *model, group));
  if (wanted.comm_hook) subject->register_comm_hook(reduce_to_twice_the_mean);
  return subject;
}

class PlainRanks::Plain final : public Subject {
 public:
  explicit Plain(std::shared_ptr<ParityModel> model) : model_(std::move(model)) {}

  at::Tensor forward(const at::Tensor& x) override { return model_->forward(x); }
  void set_requires_gradient_sync(bool /*sync*/) override {}
  at::Tensor clip_grad_norm(double max_norm, double norm_type) override {
    return torch::tensor(torch::nn::utils::clip_grad_norm_(parameters(), max_norm, norm_type));
  }
  // Returns trainable parameters, each once.
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

  ParityModel& model() { return *model_; }

 private:
  std::shared_ptr<ParityModel> model_;
};

PlainRanks::PlainRanks(const ParityCase& wanted, const ParityInputs& inputs, int world)
    : case_(wanted) {
  for (int rank = 0; rank < world; ++rank) {
    ranks_.push_back(std::make_unique<Plain>(initial_model(wanted, inputs)));
  }
}

PlainRanks::~PlainRanks() = default;

Subject& PlainRanks::rank(int rank) {
  return *ranks_.at(static_cast<std::size_t>(rank));
}

void PlainRanks::average_gradients() {
  const torch::NoGradGuard no_grad;
  for (const auto& item : ranks_.front()->model().named_parameters()) {
    if (is_ignored(case_, item.key()) || !item.value().grad().defined()) continue;
    // A tied parameter appears under both names: the mean of means is the mean.
    at::Tensor mean = torch::zeros_like(item.value());
    for (const auto& rank : ranks_) mean += rank->model().named_parameters()[item.key()].grad();
    mean /= static_cast<double>(ranks_.size());
    for (const auto& rank : ranks_) {
      rank->model().named_parameters()[item.key()].mutable_grad().copy_(mean);
    }
  }
}

}  // namespace fsdp::test
