// SPDX-License-Identifier: Apache-2.0
// Divides a module into units: assigns the parameters, and lists what ranks must agree about.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/unit.h"
#include "libfsdp/options.h"

namespace fsdp::internal {

// The modules and tensors that a wrapper leaves alone.
struct Ignored {
  std::vector<const torch::nn::Module*> modules;       // with everything below them
  std::unordered_set<const c10::TensorImpl*> tensors;  // parameters and buffers
};

// Throws: c10::Error if both ignored_modules and ignored_states are given, or an ignored tensor is
// not a parameter of the module.
Ignored ignored_by(const torch::nn::Module& module, const FsdpOptions& options);

// Returns whether mixed precision leaves a submodule alone: see
// MixedPrecision::module_classes_to_ignore.
bool keeps_precision(const torch::nn::Module& module, const FsdpOptions& options);

// Returns the units, root first, parents before children, with their parameters in the order of the
// module and grouped by dtype.  They have no memory yet (see lay_out).  A unit without parameters
// is left out, except the root.
// Throws: c10::Error for a parameter that several units share, naming it and them; for frozen
// parameters beside others if use_orig_params is false; for dtypes that cannot be sharded.
std::vector<std::unique_ptr<Unit>> units_of(const torch::nn::Module& module,
                                            const FsdpOptions& options, const Ignored& ignored);

// Returns one line for each fact that must be the same on every rank: options, units, parameters.
std::vector<std::string> fingerprint(const std::vector<std::unique_ptr<Unit>>& units,
                                     const FsdpOptions& options);

}  // namespace fsdp::internal
