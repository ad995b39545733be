// SPDX-License-Identifier: Apache-2.0
// Finds the modules inside a module that were sharded before it, with options of their own, and
// hands their units over.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "libfsdp/internal/units/module_units.h"

namespace fsdp::internal {

class Engine;
struct EngineLife;
struct Sharding;

class InnerEngines {
 public:
  InnerEngines() = default;
  // Throws: c10::Error if an inner module has run a forward, because graphs may refer to its
  // engine.
  explicit InnerEngines(const torch::nn::Module& root);

  // Returns `ignored` and what inner modules ignore.
  Ignored with_ignored(const Ignored& ignored) const;
  // Returns `ignored` and everything in inner modules.
  Ignored apart(const Ignored& ignored) const;
  // Takes the units out of their engines.
  std::vector<InnerUnits> release();
  // Sets the dtypes that buffers of inner modules had before they were cast.
  void restore_buffer_dtypes(std::unordered_map<std::string, c10::ScalarType>& dtypes) const;
  // Makes all users of an inner engine find its units in the engine of `outer`.
  void belong_to(const std::shared_ptr<EngineLife>& outer) const;

 private:
  struct Inner {
    std::string path;
    std::shared_ptr<WrappedModule> wrapped;
    std::shared_ptr<EngineLife> life;
  };
  std::vector<Inner> inner_;
};

// Returns the units that have this sharding, for construct().
std::vector<Unit*> new_units(const std::vector<std::unique_ptr<Unit>>& units,
                             const Sharding& sharding);

}  // namespace fsdp::internal
