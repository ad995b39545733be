// SPDX-License-Identifier: Apache-2.0
// From a module to units: which parameter belongs to which, and what ranks must agree about.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/engine/unit.h"
#include "libfsdp/options.h"

namespace fsdp {

// What a wrapper leaves alone.
struct Ignored {
  std::vector<const torch::nn::Module*> modules;       // with everything below them
  std::unordered_set<const c10::TensorImpl*> tensors;  // parameters and buffers
};

// Throws: c10::Error where both ignored_modules and ignored_states are given, or an ignored tensor
// is no parameter of the module.
Ignored ignored_by(const torch::nn::Module& module, const FsdpOptions& options);

// The units, root first, parents before children, with their parameters in the order of the module
// and grouped by dtype; nothing of them has memory yet (see lay_out).  A unit without parameters
// is left out, but for the root.
// Throws: c10::Error for a parameter that several units share, naming it and them; for frozen
// parameters beside others where use_orig_params is false; for parameters on several devices or
// without memory, unless they `may_be_meta`; for dtypes that cannot be sharded.
std::vector<std::unique_ptr<Unit>> units_of(const torch::nn::Module& module,
                                            const FsdpOptions& options, const Ignored& ignored,
                                            bool may_be_meta = false);

// One line a fact that must be the same on every rank: options, then units and parameters.
std::vector<std::string> fingerprint(const std::vector<std::unique_ptr<Unit>>& units,
                                     const FsdpOptions& options);

}  // namespace fsdp
