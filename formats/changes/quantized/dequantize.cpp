// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/dequantize.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/quantized/stored_weight.h"
#include "formats/changes/quantized/torchao.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;

// Endings of tensors that belong to activations and caches of a quantized model.
constexpr std::array<std::string_view, 12> kOfActivations = {
    ".input_scale",  ".input_zero_point",  ".input_global_scale",  ".activation_scale",
    ".output_scale", ".output_zero_point", ".output_global_scale", ".k_scale",
    ".v_scale",      ".q_scale",           ".k_zero_point",        ".v_zero_point"};

class Dequantizer {
 public:
  Dequantizer(const Checkpoint& source, const Settings& settings, DType to)
      : source_(source),
        settings_(settings),
        to_(to),
        endings_(endings_of(settings.dialect)),
        computed_(std::make_shared<arrays::ComputedTensors>(
            std::vector{std::make_shared<arrays::ArraySource>(source)})) {}

  DequantizedModel run(const Value& tensors) {
    look_at(tensors);
    if (counts_.empty()) {
      throw Error(
          ErrorCode::kNotFound,
          cat(source_.description().path, ": no tensors of quantized weights, ", settings_.method,
              " names them NAME", ending(Role::kNumbers), " and NAME", ending(Role::kScales)));
    }
    out_.weights.assign(counts_.begin(), counts_.end());
    out_.content = Value::dict(std::move(entries_));
    out_.checkpoint = std::move(computed_);
    return std::move(out_);
  }

  void visit(const Value& tensors, const WeightVisitor& visitor) {
    visitor_ = &visitor;
    look_at(tensors);
  }

 private:
  struct Found {
    std::string name;  // of the weight
    StoredWeight stored;
    std::span<const Scheme> schemes;
    std::string_view teller;  // has the schemes
  };

  void look_at(const Value& tensors) {
    for (const auto& [key, value] : members_of(tensors)) {
      const auto number = tensor_number(value);
      if (number) {
        numbers_.emplace(*key.as_string(), *number);
      } else {
        fault(ErrorCode::kUnsupported, *key.as_string(), " is not a dense tensor");
      }
    }
    if (settings_.dialect == Dialect::kTorchao && !look_at_metadata()) return;
    for (const auto& [key, value] : members_of(tensors)) {
      const std::string& name = *key.as_string();
      if (const auto found = weight_at(name)) {
        take(*found);
      } else if (!numbers_.contains(name) || is_part(name)) {
        continue;
      } else if (of_activations(name)) {
        out_.left_out.push_back(name);
      } else {
        refuse_rest(name);
        entries_.emplace_back(key, value);
      }
    }
  }

  // Returns whether torchao's metadata can be followed.
  bool look_at_metadata() {
    try {
      torchao_ = torchao_tensors(
          source_.description().path, settings_.texts, [&](const std::string& name) {
            return numbers_.contains(name) ? std::optional(tensor(name)) : std::nullopt;
          });
    } catch (const Error& error) {
      const bool told = visitor_ != nullptr && !settings_.texts.empty() &&
                        error.code() != ErrorCode::kUnsupported && !is_no_answer(error.code());
      if (!told) throw;
      visitor_->on_fault({}, error.code(), error.what());
      return false;
    }
    for (auto& [numbers, weight] : torchao_.weights) {
      for (const auto& [role, name] : weight.names)
        weight.stored.tensors.emplace(role, numbers_.at(name));
    }
    return true;
  }

  // Tells the visitor of a tensor's fault, or throws it.  `symptom` follows the name.
  void fault(ErrorCode code, const std::string& name, const std::string& symptom) const {
    if (visitor_ != nullptr)
      return visitor_->on_fault(name, code, symptom.substr(symptom.find_first_not_of(": ")));
    throw Error(code, cat(source_.description().path, ": ", quote(name, 200), symptom));
  }

  // Returns the name without an ending; nothing if it has another one.
  static std::optional<std::string> before(const std::string& name, std::string_view ending) {
    if (ending.empty() || !name.ends_with(ending) || name.size() == ending.size())
      return std::nullopt;
    return name.substr(0, name.size() - ending.size());
  }

  Array tensor(const std::string& name) const { return computed_->source_array(numbers_.at(name)); }

  bool of_activations(const std::string& name) const {
    if (torchao_.of_activations.contains(name)) return true;
    return std::ranges::any_of(kOfActivations,
                               [&](std::string_view end) { return name.ends_with(end); });
  }

  std::string_view ending(Role role) const {
    return std::ranges::find(endings_, role, &std::pair<Role, std::string_view>::first)->second;
  }
  bool has(const std::string& module, Role role) const {
    return std::ranges::any_of(endings_, [&](const auto& one) {
      return one.first == role && numbers_.contains(module + std::string(one.second));
    });
  }
  bool is_quantized(const std::string& module) const {
    return has(module, Role::kNumbers) && has(module, Role::kScales);
  }

  // Returns whether a tensor belongs to the numbers of a weight.
  bool is_part(const std::string& name) const {
    if (settings_.dialect == Dialect::kTorchao) return torchao_.parts.contains(name);
    return std::ranges::any_of(endings_, [&](const auto& one) {
      const auto module = before(name, one.second);
      return one.first != Role::kNumbers && module && is_quantized(*module);
    });
  }

  // Returns whether a name begins as those of the tensors of a weight of torchao's.
  bool has_front(const std::string& name) const {
    for (std::size_t at = name.find('_'); at != std::string::npos; at = name.find('_', at + 1)) {
      if (torchao_.fronts.contains(name.substr(0, at + 1))) return true;
    }
    return false;
  }

  // Refuses a tensor that would be left over from a quantized weight.
  void refuse_rest(const std::string& name) const {
    if (has_front(name))
      return fault(ErrorCode::kUnsupported, name,
                   " is named like a part of a weight whose metadata does not list it");
    const TensorEntry& entry = source_.index().tensors[numbers_.at(name)];
    const bool narrow = is_float8(entry.dtype) || entry.dtype == DType::kFloat8E8M0FNU ||
                        (name.ends_with(kPlainName) && !is_floating(entry.dtype));
    for (const auto& [role, end] : endings_) {
      const auto module = before(name, end);
      if (!module || (role == Role::kNumbers && end == kPlainName)) continue;
      if (settings_.dialect == Dialect::kTorchao) {
        return fault(ErrorCode::kUnsupported, name,
                     " is named like a part of a weight, and no metadata says of which");
      }
      const Role lacks = has(*module, Role::kNumbers) ? Role::kScales : Role::kNumbers;
      return fault(ErrorCode::kNotFound, name,
                   cat(" has no ", quote(*module + std::string(ending(lacks)), 200), " beside it"));
    }
    if (narrow) {
      fault(ErrorCode::kNotFound, name,
            cat(" is ", arrays::tensor_text(entry), " and has no scales beside it, as ",
                settings_.method, " names them: NAME", ending(Role::kScales)));
    }
  }

  std::optional<Found> weight_at(const std::string& name) const {
    if (const auto found = torchao_.weights.find(name); found != torchao_.weights.end()) {
      const TorchaoWeight& weight = found->second;
      return Found{weight.name, weight.stored, {&weight.scheme, 1}, "metadata"};
    }
    if (settings_.dialect == Dialect::kTorchao) return std::nullopt;
    for (const auto& [role, end] : endings_) {
      const auto module = role == Role::kNumbers ? before(name, end) : std::nullopt;
      if (!module || !is_quantized(*module)) continue;
      StoredWeight stored{.name = name, .packed = end != kPlainName, .parts = {}};
      put(stored, Role::kNumbers, name);
      for (const auto& [other, other_end] : endings_) {
        const std::string beside = *module + std::string(other_end);
        if (other != Role::kNumbers && numbers_.contains(beside)) put(stored, other, beside);
      }
      const bool plain = settings_.dialect == Dialect::kGptOss;
      return Found{plain ? *module : *module + std::string(kPlainName), std::move(stored),
                   settings_.schemes, "configuration"};
    }
    return std::nullopt;
  }

  void put(StoredWeight& stored, Role role, const std::string& name) const {
    stored.parts.emplace(role, tensor(name));
    stored.tensors.emplace(role, numbers_.at(name));
  }

  // Returns the weight as modules have it: transformers turns GPT-OSS's experts.
  Tried in_model(Tried tried) const {
    const auto* const array = std::get_if<Array>(&tried);
    if (array == nullptr || settings_.dialect != Dialect::kGptOss) return tried;
    if (array->shape.size() != 3) return "expected [experts, outputs, groups, 16]";
    return arrays::permuted(*array, std::array<std::size_t, 3>{0, 2, 1});
  }

  // Takes the weight by the only scheme that explains its tensors.
  void take(const Found& weight) {
    const auto& [name, stored, schemes, teller] = weight;
    std::optional<Array> made;
    const Scheme* found = nullptr;
    std::string reasons;
    for (const Scheme& scheme : schemes) {
      Tried tried = in_model(dequantized_weight(settings_.dialect, scheme, stored, to_));
      if (auto* const array = std::get_if<Array>(&tried)) {
        if (found != nullptr && found->name != scheme.name) {
          return fault(ErrorCode::kMismatch, stored.name,
                       cat(": two schemes of the ", teller, " explain its tensors: ", found->name,
                           "; ", scheme.name));
        }
        found = &scheme;
        made = std::move(*array);
      } else {
        reasons +=
            cat(reasons.empty() ? "" : "; ", scheme.name, ": ", std::get<std::string>(tried));
      }
    }
    if (found == nullptr) {
      return fault(ErrorCode::kMismatch, stored.name,
                   cat(": the tensors of this weight are not as the ", teller,
                       " says: ", reasons.empty() ? "it has no scheme" : reasons));
    }
    if (visitor_ != nullptr) return visitor_->on_weight(name, stored, *found);
    entries_.emplace_back(Value::string(name), computed_->shared({name}, *made));
    ++counts_[found->name];
  }

  const Checkpoint& source_;
  const Settings& settings_;
  DType to_;
  std::vector<std::pair<Role, std::string_view>> endings_;
  std::shared_ptr<arrays::ComputedTensors> computed_;
  std::map<std::string, std::size_t> numbers_;  // tensors of the source by name
  std::map<std::string, std::size_t> counts_;   // weights by scheme
  std::vector<Value::Entry> entries_;
  TorchaoTensors torchao_;
  DequantizedModel out_;
  const WeightVisitor* visitor_ = nullptr;
};

}  // namespace

DequantizedModel dequantized_model(const Checkpoint& source, const Value& tensors,
                                   const Settings& settings, DType to) {
  return Dequantizer(source, settings, to).run(tensors);
}

void visit_weights(const Checkpoint& source, const Value& tensors, const Settings& settings,
                   const WeightVisitor& visitor) {
  Dequantizer(source, settings, DType::kFloat32).visit(tensors, visitor);
}

}  // namespace fsdp::formats::quantized
