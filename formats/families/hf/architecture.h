// SPDX-License-Identifier: Apache-2.0
// The tensors that transformers' own classes have, for a configuration: data that
// tests/interop/architectures makes of the classes themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/families/hf/expected_tensors.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/hf/open_patterns.h"

namespace fsdp::formats::hf {

// Where a model differs from what its class has.
struct ModelDifferences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  // Tensors of other shapes: "'lm_head.weight' [32000, 64], expected [32064, 64]".
  std::vector<std::string> shapes;
  std::size_t matching = 0;  // names that are expected
  bool as_files = true;      // compared with the names that its files have, else with its modules'
  bool as_modules = false;   // they are those of its modules, too

  std::size_t count() const { return missing.size() + unexpected.size() + shapes.size(); }
  bool empty() const { return count() == 0; }
};

// What transformers calls the tensors of files in the modules that it loads them into.
struct ModuleNames {
  std::map<std::string, std::string> renamed;  // by the names of files; those that differ
  bool known = true;  // else the modules have other tensors: experts in one, for instance
};

// A class of transformers with a configuration.
class Architecture {
 public:
  // Returns the class that `config` names, of its model_type; without `architectures` the usual one
  // of its type, `assumed`.  Nothing, with the reason in `unknown`, if there are no data of it.
  // Throws: kLimitNodes if the configuration asks for more tensors than any model has.
  static std::optional<Architecture> of(const Json& config, std::string& unknown);

  const std::string& name() const { return name_; }          // "LlamaForCausalLM"
  const std::string& producer() const { return producer_; }  // "transformers 5.24.0"
  bool assumed() const { return assumed_; }
  // The front that the names of a model without a head have in one with a head: "model."; may be
  // empty.
  const std::string& front() const { return front_; }

  // Compares names and shapes with those of its files, and with those of its modules where these
  // differ; returns the smaller difference.  Quantized weights are compared by the names of their
  // modules alone.
  ModelDifferences differences(const NamedShapes& tensors) const;

  // Returns the names of modules for tensors that have names of files; no others if `tensors` have
  // those of modules already.  They are known if the modules have tensors of these names and
  // shapes.
  ModuleNames module_names(const NamedShapes& tensors) const;

 private:
  // What files have, or what modules have.
  struct Layout {
    std::map<std::string, ExpectedTensor> tensors;
    OpenPatterns open;
  };

  Architecture() = default;
  ModelDifferences compared(const Layout& layout, const NamedShapes& tensors) const;
  bool ignores(const std::string& name) const;
  // Whether a name is of those of which the configuration does not tell the numbers.
  bool is_open(const std::string& name) const;
  // Returns the name that a tied tensor is tied to; empty if it is not one.
  std::string tied_to(const std::string& name) const;

  std::string name_;
  std::string producer_;
  std::string front_;
  bool assumed_ = false;
  bool quantized_ = false;
  std::vector<Layout> layouts_;
  // Names of tied tensors, numbers in them as "{}", and those that they are tied to.
  std::map<std::string, std::string> tied_;
  std::map<std::string, std::string> renames_;  // of files to modules, numbers as "{}"
  std::vector<std::string> ignored_;            // POSIX expressions
};

}  // namespace fsdp::formats::hf
