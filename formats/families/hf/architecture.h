// SPDX-License-Identifier: Apache-2.0
// The tensors that a class of transformers has for a configuration, from data that
// tests/interop/architectures makes of the classes themselves.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/hf/expected_tensors.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/hf/open_patterns.h"

namespace fsdp::formats::hf {

// The differences between a model's tensors and those of its class.
struct ModelDifferences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  // Tensors of other shapes: "'lm_head.weight' [32000, 64], expected [32064, 64]".
  std::vector<std::string> shapes;
  std::size_t matching = 0;  // names that are expected
  bool as_files = true;      // compared with the names in files; false: in modules
  bool as_modules = false;   // the names in modules do not differ either

  std::size_t count() const { return missing.size() + unexpected.size() + shapes.size(); }
  bool empty() const { return count() == 0; }
};

// The names that tensors of files have in the modules that transformers loads them into.
struct ModuleNames {
  std::map<std::string, std::string> renamed;  // by name in files; only those that differ
  bool known = true;  // false: the modules have other tensors, such as all experts in one
};

// A class of transformers with a configuration.
class Architecture {
 public:
  // Returns the class that `config` names.  Unless `architectures` names exactly one, returns the
  // main class of the model_type, `assumed`.  Returns nothing, with the reason in `unknown`, if
  // there are no data on the class.
  // Throws: kLimitNodes if the configuration asks for more tensors than any model has.
  static std::optional<Architecture> of(const Json& config, std::string& unknown);

  const std::string& name() const { return name_; }          // "LlamaForCausalLM"
  const std::string& producer() const { return producer_; }  // "transformers 5.24.0"
  bool assumed() const { return assumed_; }
  // The front (prefix) that names of a model without a head get in a model with a head: "model.";
  // may be empty.
  const std::string& front() const { return front_; }

  // Compares names and shapes with those of the class's files, and with those of its modules if
  // these differ; returns the smaller difference.  Quantized weights are compared by module names
  // only.
  ModelDifferences differences(const NamedShapes& tensors) const;

  // Returns the names in modules for tensors that have names in files; `renamed` is empty if
  // `tensors` have names in modules already.  `known`: the modules have tensors of the resulting
  // names and shapes.
  ModuleNames module_names(const NamedShapes& tensors) const;

 private:
  // The tensors of files, or of modules.
  struct Layout {
    std::map<std::string, ExpectedTensor> tensors;
    OpenPatterns open;
  };

  Architecture() = default;
  ModelDifferences compared(const Layout& layout, const NamedShapes& tensors) const;
  bool ignores(const std::string& name) const;
  std::string name_;
  std::string producer_;
  std::string front_;
  bool assumed_ = false;
  bool quantized_ = false;
  std::vector<Layout> layouts_;
  // Names of tied tensors, with numbers as "{}", to the names that they are tied to.
  std::map<std::string, std::string> tied_;
  std::map<std::string, std::string> renames_;  // from files to modules, numbers as "{}"
  std::vector<std::string> ignored_;            // POSIX expressions
};

}  // namespace fsdp::formats::hf
