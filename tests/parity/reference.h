// SPDX-License-Identifier: Apache-2.0
// The results of PyTorch's FSDP1: the files of reference.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace fsdp::test {

// The members of DEFAULTS in cases.py, where they are explained.
struct ParityCase {
  std::string strategy;
  int shard = 0;
  bool use_orig_params = false;
  std::string backward_prefetch;
  bool forward_prefetch = false;
  std::string wrap;
  std::string mixed;
  bool checkpoint = false;
  std::vector<std::string> frozen;
  std::vector<std::string> ignored;
  std::int64_t micro = 1;
  bool no_sync = false;
  std::int64_t forwards = 1;
  bool evaluate = false;
  double clip = 0;
  double norm = 2;
  std::string optimizer;
  std::string peer;
  std::vector<std::string> own;
  double divide = 0;
  bool no_all_reduce = false;

  // Beyond cases.py.
  bool evaluate_early = false;    // a forward without gradients between a backward and its step
  std::int64_t bucket_bytes = 0;  // and the other options of those names
  bool offload = false;
  bool sync_module_states = false;  // every rank except the first starts with other values
  int node_size = 0;                // instead of `shard`
  bool meta = false;                // built without memory, allocated by param_init_fn
  bool ignore_parameters = false;   // of the ignored modules, by ignored_states
  bool comm_hook = false;

  // Returns whether `mixed` has this word.
  bool casts(const std::string& what) const;
};

using Tensors = std::map<std::string, at::Tensor>;

// The results of one rank.
struct Training {
  std::vector<std::vector<double>> losses;  // [step][micro batch * forwards]
  std::vector<double> norms;                // [step], of clip_grad_norm_
  std::vector<double> evaluations;          // [step]
  std::vector<std::string> units;
  Tensors tensors;  // full parameters, and buffers, after the last step
};

// The distance between PyTorch and itself, as compare.h measures it, at a lower level of kernels,
// and with bfloat16 gradients added in float32: see reference.py.  Zeros if nothing is bfloat16.
struct Floor {
  double losses = 0;
  double norms = 0;
  double weights = 0;
};

// The kernels a reference was computed with.
struct Level {
  std::string capability;                          // of vector kernels, as ATen calls it
  std::map<std::string, std::string> environment;  // variables to set for these kernels

  // Returns whether this process computes with them.
  bool is_here() const;
};

struct Reference {
  std::int64_t steps = 0;
  int world = 0;
  Level level;
  std::map<std::string, ParityCase> cases;
  std::map<std::string, Floor> floors;                     // of each case
  std::map<std::string, std::vector<Training>> trainings;  // of each case, [rank]
};

// Reads one file, "<model>_w<ranks>" or "<model>_w<ranks>_<level>".
Reference read_reference(const std::filesystem::path& folder, const std::string& group, int world);
Level read_level(const std::filesystem::path& folder, const std::string& group);

// Initial parameters, "init.<name>", and data, "x" and "y" [step, rank, micro batch, batch, ...].
Tensors read_inputs(const std::filesystem::path& folder, const std::string& model);

}  // namespace fsdp::test
