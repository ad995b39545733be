// SPDX-License-Identifier: Apache-2.0
// Trains a GPT on any number of ranks, from and to checkpoints of any number of ranks.
//
//   torchrun --no-python --nproc-per-node 2 train_gpt --data tokens.bin --steps 20 --save step-20
//   torchrun --no-python --nproc-per-node 3 train_gpt --data tokens.bin --steps 40
//     --resume step-20 --save step-40
//
// train_gpt --help has every option.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <torch/torch.h>

#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/fully_sharded.h"
#include "libfsdp/optim/adamw.h"
#include "libfsdp/process_group.h"
#include "libfsdp/reduce.h"
#include "samples/device_option.h"
#include "samples/gpt.h"
#include "samples/token_file.h"
#include "samples/train_gpt_options.h"

namespace {

using Clock = std::chrono::steady_clock;
using Group = std::shared_ptr<fsdp::ProcessGroup>;

// Returns the group that a launcher's variables describe; without any, a world of one process.
Group join(const TrainOptions& given) {
  const auto place = fsdp::rank_environment();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    torch::set_num_threads(std::max(1, cores / (place ? place->local_world_size : 1)));
  }
  fsdp::ProcessGroupOptions options;
  options.device_id = device_of_option(given.device);
  if (given.backend != "auto") options.backend = given.backend;
  if (!place) options.rank = 0, options.world_size = 1;
  return fsdp::init_process_group(options);
}

fsdp::FsdpOptions fsdp_options(const TrainOptions& options, const Group& group) {
  using enum fsdp::ShardingStrategy;
  static const std::map<std::string, fsdp::ShardingStrategy> strategies = {
      {"full_shard", kFullShard},
      {"shard_grad_op", kShardGradOp},
      {"no_shard", kNoShard},
      {"hybrid_shard", kHybridShard},
      {"hybrid_shard_zero2", kHybridShardZero2}};
  static const std::map<std::string, fsdp::BackwardPrefetch> prefetches = {
      {"pre", fsdp::BackwardPrefetch::kBackwardPre},
      {"post", fsdp::BackwardPrefetch::kBackwardPost},
      {"none", fsdp::BackwardPrefetch::kNone}};
  fsdp::FsdpOptions result;
  result.process_group = group;
  result.auto_wrap_policy = fsdp::module_wrap_policy<Block>();
  result.sharding_strategy = strategies.at(options.sharding_strategy);
  result.use_orig_params = options.use_orig_params;
  result.backward_prefetch = prefetches.at(options.backward_prefetch);
  result.forward_prefetch = options.forward_prefetch;
  result.cpu_offload.offload_params = options.cpu_offload;
  if (options.mixed_precision == "bf16") {
    result.mixed_precision.param_dtype = at::kBFloat16;
    result.mixed_precision.reduce_dtype = at::kFloat;
  }
  if (options.activation_checkpointing)
    result.activation_checkpointing_policy = fsdp::instances_of<Block>();
  return result;
}

// Returns the number of steps that a checkpoint's training had made.
std::int64_t step_of(const fsdp::StateDict& extra, const torch::optim::Optimizer& optimizer) {
  for (const char* key : {"global_step", "step"}) {
    if (const auto* value = extra.find(key)) return static_cast<std::int64_t>(value->number());
  }
  std::int64_t step = 0;
  for (const auto& [parameter, state] : optimizer.state())
    step = std::max(step, static_cast<const torch::optim::AdamWParamState&>(*state).step());
  return step;
}

// JSON cannot represent NaN and infinity.
std::string json(double value) {
  if (!std::isfinite(value)) return "null";
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << value;
  return text.str();
}

// Rank 0's output: every step in the metrics, some on the terminal.
class Report {
 public:
  // `first`: the first step of this run.
  Report(const TrainOptions& options, const Group& group, std::int64_t first)
      : silent_(group->rank() != 0),
        every_(std::max<std::int64_t>(1, options.steps / 10)),
        first_(first),
        last_(options.steps - 1),
        tokens_(options.length * options.batch * options.accumulate * group->size()) {
    if (silent_ || options.metrics.empty()) return;
    file_.open(options.metrics, options.resume.empty() ? std::ios::trunc : std::ios::app);
    TORCH_CHECK(file_, options.metrics, ": cannot be written");
  }

  void add(std::int64_t step, double loss, double norm, double ms) {
    if (silent_) return;
    if (step % every_ == 0 || step == first_ || step == last_) {
      std::cout << "step " << step << "  loss " << std::fixed << std::setprecision(4) << loss
                << "  norm " << norm << "  " << std::setprecision(1) << ms << " ms" << std::endl;
    }
    if (!file_.is_open()) return;
    file_ << "{\"step\":" << step << ",\"loss\":" << json(loss) << ",\"grad_norm\":" << json(norm)
          << ",\"ms\":" << json(ms)
          << ",\"tokens_per_s\":" << json(static_cast<double>(tokens_) * 1e3 / ms) << '}'
          << std::endl;
    TORCH_CHECK(file_, "the metrics cannot be written");
  }

 private:
  const bool silent_;
  const std::int64_t every_;
  const std::int64_t first_;
  const std::int64_t last_;
  const std::int64_t tokens_;  // in one step
  std::ofstream file_;
};

std::filesystem::path trace_path(const std::string& first, int rank) {
  std::filesystem::path path = first;
  if (rank == 0) return path;
  const auto extension = path.extension();
  return path.replace_extension(".rank" + std::to_string(rank)) += extension;
}

class Trainer {
 public:
  Trainer(TrainOptions options, const Group& group) : options_(std::move(options)), group_(group) {
    fsdp::agree(group_, "reading the tokens",
                [&] { tokens_.emplace(options_.data, options_.vocabulary, options_.length); });
    GPT model(GPTOptions{options_.vocabulary, options_.width, options_.layers, options_.heads,
                         options_.length});
    initialize(*model, options_.seed);
    model_.emplace(model, fsdp_options(options_, group_));
    optimizer_.emplace(model_->parameters(),
                       torch::optim::AdamWOptions(options_.lr.value_or(1e-3))
                           .betas({0.9, 0.95})
                           .eps(1e-8)
                           .weight_decay(options_.weight_decay.value_or(0.01)));
    begin();
  }

  void run() {
    std::optional<Report> report;
    fsdp::agree(group_, "opening the metrics", [&] { report.emplace(options_, group_, step_); });
    if (!options_.trace.empty()) model_->start_trace();
    for (; step_ < options_.steps; ++step_) {
      const auto begin = Clock::now();
      const at::Tensor own = torch::full({}, backward(), at::kDouble);
      const double loss = fsdp::reduce(own, group_).item<double>();
      const double limit =
          options_.clip_grad_norm.value_or(std::numeric_limits<double>::infinity());
      const double norm = model_->clip_grad_norm_(limit).item<double>();
      optimizer_->step();
      optimizer_->zero_grad();
      const std::chrono::duration<double, std::milli> taken = Clock::now() - begin;
      report->add(step_, loss, norm, taken.count());
    }
    if (!options_.trace.empty()) model_->write_trace(trace_path(options_.trace, group_->rank()));
    if (!options_.save.empty()) save();
    // Rank 0 serves the store where ranks meet, so it must not leave first.
    fsdp::agree(group_, "the end", [] {});
  }

 private:
  fsdp::TrainingState state() {
    fsdp::TrainingState state;
    state.model = &*model_;
    state.optimizers = {&*optimizer_};
    state.group = group_;
    return state;
  }

  void begin() {
    fsdp::TrainingState state = this->state();
    fsdp::TrainingLoadOptions wanted;
    fsdp::LoadReport report;
    if (!options_.init.empty()) {
      wanted.optimizers = wanted.extra = false;
      report = fsdp::load(options_.init, state, wanted);
    } else if (!options_.resume.empty()) {
      report = fsdp::load(options_.resume, state, wanted);
      step_ = step_of(state.extra, *optimizer_);
      fsdp::require_same(group_, "the step to resume from", {std::to_string(step_)});
      TORCH_CHECK(step_ <= options_.steps, options_.resume, " is at step ", step_,
                  ", but --steps is ", options_.steps,
                  ": nothing is left to train; --steps counts from the start of training");
      for (auto& group : optimizer_->param_groups()) {
        auto& of_group = static_cast<torch::optim::AdamWOptions&>(group.options());
        if (options_.lr) of_group.lr(*options_.lr);
        if (options_.weight_decay) of_group.weight_decay(*options_.weight_decay);
      }
    }
    for (const auto& line : report.cast) {
      if (group_->rank() == 0) std::cerr << "train_gpt: converted " << line << '\n';
    }
  }

  // Computes one step's gradients, and this rank's mean loss.
  double backward() {
    double sum = 0;
    for (std::int64_t micro = 0; micro < options_.accumulate; ++micro) {
      std::optional<fsdp::NoSync> silent;
      if (micro + 1 < options_.accumulate) silent.emplace(*model_);
      const std::int64_t first =
          ((step_ * options_.accumulate + micro) * group_->size() + group_->rank()) *
          options_.batch;
      const at::Tensor batch = tokens_->sequences(first, options_.batch);
      const at::Tensor logits = model_->forward(batch.narrow(1, 0, options_.length));
      const at::Tensor targets = batch.narrow(1, 1, options_.length);
      const at::Tensor loss = torch::nn::functional::cross_entropy(
          logits.flatten(0, 1).to(at::kFloat), targets.flatten().to(logits.device()));
      (loss / options_.accumulate).backward();
      sum += loss.item<double>();
    }
    return sum / static_cast<double>(options_.accumulate);
  }

  void save() {
    fsdp::TrainingState state = this->state();
    state.extra["global_step"] = step_;
    fsdp::SaveOptions replace;
    replace.overwrite = true;
    if (options_.state_dict_type == "full") {
      fsdp::save_file(options_.save, state, replace);
    } else {
      fsdp::save(options_.save, state, replace);
    }
  }

  const TrainOptions options_;
  const Group group_;
  std::optional<TokenFile> tokens_;
  std::optional<fsdp::FullyShardedDataParallel<GPT>> model_;
  std::optional<fsdp::optim::AdamW> optimizer_;
  std::int64_t step_ = 0;  // steps made
};

// Returns the message in one line, for c10's errors without the stack.
std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::string who = "train_gpt: ";
  try {
    const TrainOptions options = parse_train_options(argc, argv);
    const Group group = join(options);
    if (group->size() > 1) who += "rank " + std::to_string(group->rank()) + ": ";
    Trainer(options, group).run();
  } catch (const std::invalid_argument& error) {
    std::cerr << who + message_of(error) + '\n';
    return 2;
  } catch (const std::exception& error) {
    std::cerr << who + message_of(error) + '\n';
    return 1;
  }
  return 0;
}
