// SPDX-License-Identifier: Apache-2.0
// Divides a module into units: assigns the parameters, and lists what ranks must agree about.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libfsdp/internal/units/unit.h"
#include "libfsdp/options.h"

namespace fsdp::internal {

// What is known of a sharded module beside its units.
struct WrappedModule {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::pair<std::string, at::Tensor>> unmanaged;  // ignored parameters, with names
  // The dtypes of its buffers before mixed precision cast them, by name.
  std::unordered_map<std::string, c10::ScalarType> buffer_dtypes;
  std::size_t registered = 0;  // see check_registered()
};

// Units made earlier for a module below the one that is wrapped.
struct InnerUnits {
  std::string path;  // of that module
  std::shared_ptr<const WrappedModule> wrapped;
  std::vector<std::unique_ptr<Unit>> units;  // its root's first
};

// The modules and tensors that a wrapper leaves alone.
struct Ignored {
  // Adds the module and everything below it.
  void add(const torch::nn::Module& module);

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
// module and grouped by dtype.  New ones have no memory yet (see lay_out).  A unit without
// parameters is left out, except the root.  The `inner` ones get the names and parents that they
// have in the module.
// Throws: c10::Error for a parameter that several units share, naming it and them; for frozen
// parameters beside others if use_orig_params is false; for dtypes that cannot be sharded; for a
// parameter that was registered below an inner module after its units were made.
std::vector<std::unique_ptr<Unit>> units_of(const torch::nn::Module& module,
                                            const FsdpOptions& options, const Ignored& ignored,
                                            const std::shared_ptr<const Sharding>& sharding,
                                            std::vector<InnerUnits> inner = {});

// Sets WrappedModule::registered.
void note_registered(WrappedModule& wrapped);
// Throws: c10::Error if a parameter was registered, replaced or removed since it was noted.
void check_registered(WrappedModule& wrapped, const std::vector<std::unique_ptr<Unit>>& units);

// Returns one line for each fact that must be the same on every rank: options, units, parameters.
std::vector<std::string> fingerprint(const std::vector<std::unique_ptr<Unit>>& units,
                                     const FsdpOptions& options);

}  // namespace fsdp::internal
