// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/examine.h"

#include <deque>
#include <map>
#include <string_view>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/quantized/dequantize.h"
#include "formats/changes/quantized/module_lists.h"
#include "formats/changes/quantized/scale_values.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::string_view kMatrixEnding = ".weight";

class Examination {
 public:
  Examination(const Checkpoint& source, const Json& config, const Settings& settings,
              const ExamineOptions& options)
      : source_(source), config_(config), settings_(settings), options_(options) {}

  ExaminedModel run(const Value& tensors) {
    for (const auto& [key, value] : members_of(tensors)) {
      if (const auto number = tensor_number(value)) {
        numbers_.emplace(*key.as_string(), *number);
        note_module(*key.as_string(), *number);
      }
    }
    visit_weights(source_, tensors, settings_,
                  {.on_weight = [&](const std::string& name, const StoredWeight& stored,
                                    const Scheme& scheme) { take(name, stored, scheme); },
                   .on_fault = [&](const std::string& name, ErrorCode,
                                   const std::string& symptom) { fault(name, symptom); }});
    // transformers leaves weights as they are that blocks do not divide: perhaps all.
    if (counts_.empty() && out_.findings.empty() &&
        settings_.dialect != Dialect::kTransformersFp8) {
      out_.findings.push_back(
          {.code = ErrorCode::kQuantConfig,
           .message = cat("quant_method is ", settings_.method, ", but no tensor is quantized")});
    }
    if (options_.values) {
      const Json* const symmetric = config_.find("sym");
      out_.notes =
          check_values(source_, weights_,
                       {.dialect = settings_.dialect,
                        .symmetric = symmetric != nullptr && symmetric->as_bool() != nullptr &&
                                     *symmetric->as_bool(),
                        .numbers = options_.numbers,
                        .visit = options_.visit},
                       out_.findings);
    }
    ModuleFindings modules = compare_modules(config_, settings_, options_.tied, modules_);
    for (Finding& finding : modules.findings) out_.findings.push_back(std::move(finding));
    out_.left = std::move(modules.left);
    out_.weights.assign(counts_.begin(), counts_.end());
    for (Finding& finding : out_.findings) place(finding);
    return std::move(out_);
  }

 private:
  // Notes a matrix of floating numbers, as one that is not quantized until `take` says otherwise.
  void note_module(const std::string& name, std::size_t number) {
    const TensorEntry& entry = source_.index().tensors[number];
    if (!name.ends_with(kMatrixEnding) || entry.shape.size() != 2 || !is_floating(entry.dtype) ||
        item_bytes(entry.dtype) == 1)
      return;
    modules_[name.substr(0, name.size() - kMatrixEnding.size())] = {
        name, {}, arrays::tensor_text(entry), entry.shape};
  }

  void take(const std::string& name, const StoredWeight& stored, const Scheme& scheme) {
    ++counts_[scheme.name];
    const std::string module =
        name.ends_with(kMatrixEnding) ? name.substr(0, name.size() - kMatrixEnding.size()) : name;
    modules_[module] = {stored.name, scheme.name, {}, {}};
    check_state(stored);
    if (!options_.values) return;
    weights_.push_back({{.name = stored.name, .parts = {}, .tensors = stored.tensors},
                        &schemes_.emplace_back(scheme)});
  }

  // Compares the type of bitsandbytes' numbers, which is a part of a name, with the configuration.
  void check_state(const StoredWeight& stored) {
    const auto state = stored.tensors.find(Role::kState);
    if (settings_.dialect != Dialect::kBitsandbytes4 || state == stored.tensors.end()) return;
    const std::string& key = source_.index().tensors[state->second].key;
    const std::string& expected = settings_.schemes.front().name;
    if (key.ends_with(cat("__", expected))) return;
    out_.findings.push_back(
        {.code = ErrorCode::kQuantConfig,
         .message = cat("its state is ", quote(key.substr(key.rfind('.') + 1), 100),
                        ", but bnb_4bit_quant_type is ", quote(expected, 100)),
         .key = stored.name});
  }

  void fault(const std::string& name, const std::string& symptom) {
    out_.findings.push_back({.code = ErrorCode::kQuantTensors, .message = symptom, .key = name});
    // Lists say nothing about a weight that is not understood.
    for (const auto& [role, ending] : endings_of(settings_.dialect)) {
      if (name.ends_with(ending)) modules_.erase(name.substr(0, name.size() - ending.size()));
    }
  }

  // Adds the file of a finding, and how to see its tensors.
  void place(Finding& finding) const {
    const auto found = numbers_.find(finding.key);
    if (found == numbers_.end()) return;
    const TensorEntry& entry = source_.index().tensors[found->second];
    finding.key = entry.key;
    if (entry.chunks.size() != 0)
      finding.file = source_.index().files[entry.chunks.location(0).file].name;
    const bool values = finding.code == ErrorCode::kQuantValues;
    const std::string glob = values ? entry.key : entry.key.substr(0, entry.key.rfind('.')) + ".*";
    if (glob.find_first_of("[?' ") != std::string::npos) return;
    finding.hint = {Remedy::kLook,
                    cat("fsdp-ckpt ", values ? "stats" : "inspect", " PATH -k '", glob, "'")};
  }

  const Checkpoint& source_;
  const Json& config_;
  const Settings& settings_;
  const ExamineOptions& options_;
  std::map<std::string, std::size_t> numbers_;  // tensors by name
  std::map<std::string, ModuleState> modules_;  // by name
  std::map<std::string, std::size_t> counts_;   // weights by scheme
  std::vector<FittingWeight> weights_;
  std::deque<Scheme> schemes_;  // of the weights
  ExaminedModel out_;
};

}  // namespace

ExaminedModel examine_model(const Checkpoint& source, const Value& tensors, const Json& config,
                            const Settings& settings, const ExamineOptions& options) {
  return Examination(source, config, settings, options).run(tensors);
}

}  // namespace fsdp::formats::quantized
