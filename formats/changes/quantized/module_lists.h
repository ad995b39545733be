// SPDX-License-Identifier: Apache-2.0
// What a configuration says of modules by their names: which ones stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/state/model/finding.h"
#include "formats/state/model/select.h"

namespace fsdp::formats::quantized {

// The lists of a quantization_config of modules that are not quantized.  Packages read them in
// different ways; patterns that are more than names, `.*` and `*` are not understood.
class ModuleLists {
 public:
  ModuleLists(const Json& config, Dialect dialect);

  // Returns the entry, and the member it stands in, that says that this very module is not
  // quantized; null.
  const std::pair<std::string, std::string>* entry_for(const std::string& module) const;
  // Returns whether some package may read an entry so that the module is not quantized.
  bool may_mean(const std::string& module) const;
  // Returns how many characters the patterns have: matching takes so many steps for each of a name.
  std::size_t pattern_size() const { return pattern_size_; }

 private:
  struct Pattern {
    std::pair<std::string, std::string> entry;
    Glob glob;
  };
  void add(const std::string& member, const std::string& text);

  Dialect dialect_;
  std::map<std::string, std::pair<std::string, std::string>, std::less<>> names_;
  std::vector<Pattern> patterns_;
  std::size_t pattern_size_ = 0;
  bool unclear_ = false;  // a pattern is not understood
};

// A module with a matrix.
struct ModuleState {
  std::string weight;  // name of the matrix
  std::string scheme;  // empty: it is not quantized
  std::string tensor;  // "bfloat16 [3, 4]", for messages
  std::vector<std::int64_t> shape;
};

struct ModuleFindings {
  Findings findings;  // without files
  std::string left;   // why lists were not compared; empty: they were
};

// Compares modules with the lists, with each other, and with what the model's configuration says of
// tied weights.  `modules`: by name.
ModuleFindings compare_modules(const Json& config, const Settings& settings, bool tied,
                               const std::map<std::string, ModuleState>& modules);

}  // namespace fsdp::formats::quantized
