// SPDX-License-Identifier: Apache-2.0
// The command line of train_gpt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

struct TrainOptions {
  std::string data;
  std::int64_t vocabulary = 256;
  std::int64_t width = 64;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t length = 64;
  std::int64_t batch = 4;
  std::int64_t steps = 20;
  // Default: 1e-3 and 0.01, or with --resume the values of the checkpoint.
  std::optional<double> lr;
  std::optional<double> weight_decay;
  std::uint64_t seed = 0;
  std::string init;    // empty: none
  std::string resume;  // empty: none
  std::string save;    // empty: nowhere
  std::string state_dict_type = "sharded";
  std::string sharding_strategy = "full_shard";
  bool use_orig_params = true;
  std::string mixed_precision = "none";
  std::string backward_prefetch = "pre";
  bool forward_prefetch = false;
  bool cpu_offload = false;
  bool activation_checkpointing = false;
  std::int64_t accumulate = 1;
  std::optional<double> clip_grad_norm;
  std::string device = "cpu";    // see samples/device_option.h
  std::string backend = "auto";  // or "gloo", "nccl"
  std::string metrics;           // empty: none
  std::string trace;             // empty: none
};

// Throws: std::invalid_argument saying in one line which option is wrong and what it accepts.
// --help is printed to stdout and ends the process.
TrainOptions parse_train_options(int argc, char** argv);
