// SPDX-License-Identifier: Apache-2.0
#include "samples/train_gpt_options.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <stdexcept>

#include <CLI/CLI.hpp>

namespace {

constexpr std::int64_t kLargestToken = std::numeric_limits<std::uint16_t>::max();

// A range for sizes: large enough for any model here, but products of two sizes do not overflow.
// Without a name, because --help would print it after every option.
const CLI::Validator kSize = CLI::Range(std::int64_t{1}, std::int64_t{1} << 30).description("");
const CLI::Validator kNotNegative =
    CLI::Range(0.0, std::numeric_limits<double>::max()).description("");

void add_model_and_data(CLI::App& app, TrainOptions& options) {
  app.add_option("--data", options.data, "Token file: little-endian 16-bit numbers")
      ->required()
      ->group("Data and model");
  const auto add = [&](const char* name, std::int64_t& value, const char* text) {
    return app.add_option(name, value, text)
        ->check(kSize)
        ->capture_default_str()
        ->group("Data and model");
  };
  app.add_option("--vocab", options.vocabulary, "Vocabulary; every token is below it")
      ->check(CLI::Range(std::int64_t{1}, kLargestToken + 1).description(""))
      ->capture_default_str()
      ->group("Data and model");
  add("--dim", options.width, "Width, a multiple of the heads");
  add("--layers", options.layers, "Blocks");
  add("--heads", options.heads, "Heads of attention");
  add("--seq", options.length, "Tokens of a sequence");
  add("--batch", options.batch, "Sequences of a rank in a micro-batch");
}

void add_training(CLI::App& app, TrainOptions& options) {
  const char* group = "Training";
  app.add_option(
         "--steps", options.steps,
         "The last step to train, counted from the start of training: a run that resumes at "
         "step 20 with --steps 50 trains 30; 0 trains none")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40).description(""))
      ->capture_default_str()
      ->group(group);
  app.add_option("--lr", options.lr,
                 "Learning rate of AdamW (1e-3; with --resume the checkpoint's)")
      ->check(kNotNegative)
      ->group(group);
  app.add_option("--weight-decay", options.weight_decay,
                 "Weight decay of AdamW (0.01; with --resume the checkpoint's)")
      ->check(kNotNegative)
      ->group(group);
  app.add_option("--seed", options.seed, "Seed of the initial weights")
      ->capture_default_str()
      ->group(group);
  app.add_option("--accumulate", options.accumulate,
                 "Micro-batches of a step, of which only the last reduces gradients")
      ->check(kSize)
      ->capture_default_str()
      ->group(group);
  app.add_option("--clip-grad-norm", options.clip_grad_norm, "Largest norm of all gradients (none)")
      ->check(kNotNegative)
      ->group(group);
}

void add_checkpoints(CLI::App& app, TrainOptions& options) {
  const char* group = "Checkpoints";
  auto* init = app.add_option("--init", options.init,
                              "Checkpoint to take the weights from: any that fsdp-ckpt reads")
                   ->group(group);
  app.add_option("--resume", options.resume,
                 "Checkpoint to go on from: weights, AdamW's state and options, and the step; of "
                 "any number of ranks, PyTorch's included")
      ->excludes(init)
      ->group(group);
  app.add_option("--save", options.save,
                 "Where to save the state after the last step; an existing checkpoint is replaced "
                 "once the new one is complete")
      ->group(group);
  app.add_option("--state-dict-type", options.state_dict_type,
                 "sharded: a folder, a file a rank; full: one file")
      ->check(CLI::IsMember({"sharded", "full"}))
      ->capture_default_str()
      ->group(group);
}

void add_sharding(CLI::App& app, TrainOptions& options) {
  const char* group = "Sharding";
  const auto choice = [&](const char* name, std::string& value, std::vector<std::string> members,
                          const char* text) {
    app.add_option(name, value, text)
        ->check(CLI::IsMember(std::move(members)))
        ->capture_default_str()
        ->group(group);
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    app.add_option_function<std::string>(
           name, [&value](const std::string& word) { value = word == "1"; }, text)
        ->check(CLI::IsMember({"0", "1"}))
        ->default_str(value ? "1" : "0")
        ->group(group);
  };
  choice("--sharding-strategy", options.sharding_strategy,
         {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"},
         "What is sharded; hybrid: within a node, with a copy on each node");
  flag("--use-orig-params", options.use_orig_params,
       "1: the optimizer sees parameters; 0: one flat tensor a unit");
  choice("--mixed-precision", options.mixed_precision, {"none", "bf16"},
         "bf16: parameters, activations and gradients in bfloat16; gradients are reduced, and "
         "weights and AdamW's state kept, in float32");
  choice("--backward-prefetch", options.backward_prefetch, {"pre", "post", "none"},
         "When backward gathers the next block");
  flag("--forward-prefetch", options.forward_prefetch, "1: forward gathers one block ahead");
  flag("--cpu-offload", options.cpu_offload, "1: shards stay in memory of the CPU");
  flag("--activation-checkpointing", options.activation_checkpointing,
       "1: backward computes each block again");
}

void add_device(CLI::App& app, TrainOptions& options) {
  const char* group = "Device";
  app.add_option("--device", options.device,
                 "cpu; cuda: each rank takes the device of its place on the node; cuda:N; auto: "
                 "cuda if the program and the machine have it, else cpu")
      ->capture_default_str()
      ->group(group);
  app.add_option("--backend", options.backend,
                 "gloo, nccl; auto: that of the device.  gloo lets ranks share a CUDA device")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}))
      ->capture_default_str()
      ->group(group);
}

void add_output(CLI::App& app, TrainOptions& options) {
  app.add_option("--metrics", options.metrics,
                 "JSON lines of rank 0, one a step: step (from 0), loss and grad_norm over all "
                 "ranks, ms, tokens_per_s; a run that resumes adds to the file")
      ->group("Output");
  app.add_option("--trace", options.trace,
                 "Chrome trace of rank 0; rank 1's is beside it as <name>.rank1.<extension>, ...")
      ->group("Output");
}

void check_together(const TrainOptions& options) {
  const auto fail = [](const std::string& message) { throw std::invalid_argument(message); };
  if (options.width % options.heads != 0) {
    fail("--dim " + std::to_string(options.width) + " is not a multiple of --heads " +
         std::to_string(options.heads));
  }
  for (const auto& [name, value] :
       {std::pair{"--lr", options.lr}, std::pair{"--weight-decay", options.weight_decay},
        std::pair{"--clip-grad-norm", options.clip_grad_norm}}) {
    if (value && !std::isfinite(*value)) fail(std::string(name) + " is not a finite number");
  }
}

}  // namespace

TrainOptions parse_train_options(int argc, char** argv) {
  TrainOptions options;
  CLI::App app(
      "Trains a GPT with libfsdp: one process a rank, started by torchrun --no-python, mpirun, "
      "srun "
      "or, for a single one, by hand.\n"
      "Step s, micro-batch a of N, rank r of W reads its sequence b from token\n"
      "((((s*N + a)*W + r)*B + b)*T) mod (count - T - 1), so that runs with the same N*W*B see the "
      "same tokens.\n"
      "Exit status: 0 success, 1 failure, 2 wrong options.",
      "train_gpt");
  add_model_and_data(app, options);
  add_training(app, options);
  add_checkpoints(app, options);
  add_sharding(app, options);
  add_device(app, options);
  add_output(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
  check_together(options);
  return options;
}
