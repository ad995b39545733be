// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/merge.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/lora/base_names.h"
#include "formats/changes/lora/merged_tensor.h"
#include "formats/changes/lora/orientation.h"
#include "formats/changes/lora/peft_names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/key_text.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxBaseCandidates = 2000;
// The most parameters of one module that target_parameters may name.
constexpr std::size_t kMaxParameters = 6;

// Returns the mapping with `leaf` added at the steps of `path`.
Value with_member(const Value& mapping, std::span<const PathStep> path, const Value& leaf) {
  if (path.empty()) return leaf;
  const std::string& step = std::get<std::string>(path[0]);
  const auto own = mapping_entries(mapping);
  if (!own && !mapping.is_none()) {
    throw Error(ErrorCode::kKey,
                cat(quote(step, 200), " cannot be added to a value that is not a mapping"));
  }
  std::vector<Value::Entry> entries;
  if (own) entries.assign(own->begin(), own->end());
  auto at = std::ranges::find_if(
      entries, [&](const Value::Entry& entry) { return key_text(entry.first) == step; });
  if (at == entries.end()) at = entries.insert(at, {Value::string(step), Value()});
  at->second = with_member(at->second, path.subspan(1), leaf);
  return mapping_like(mapping, std::move(entries));
}

// Keys of the base that are one tensor, and what becomes of it.
struct TiedGroup {
  std::vector<std::string> present;  // among the base's keys
  std::vector<std::string> absent;   // that the base does not hold
  MergedTensor tensor;
  bool by_other = false;  // an earlier adapter changed it

  std::string name() const { return present.empty() ? absent.front() : present.front(); }
  bool changes() const {
    return tensor.replacement || !tensor.steps.empty() || (present.empty() && !absent.empty());
  }
};

class Merger {
 public:
  Merger(std::shared_ptr<const Checkpoint> base, const Value& content,
         std::vector<LoraAdapter> adapters, const LoraMergeOptions& options)
      : content_(content),
        options_(options),
        adapters_(std::move(adapters)),
        base_(*base),
        sources_{std::make_shared<arrays::ArraySource>(std::move(base))} {
    for (const LoraAdapter& adapter : adapters_)
      sources_.push_back(std::make_shared<arrays::ArraySource>(adapter.tensors));
    for (Leaf& leaf : leaves_of(content)) {
      if (!tensor_number(leaf.value)) continue;
      std::string key = leaf.key;
      leaves_.emplace(std::move(key), std::move(leaf));
    }
  }

  LoraMerge run() {
    for (const LoraAdapter& adapter : adapters_)
      parts_.push_back(adapter_parts(adapter.path, adapter.tensors->index(), adapter.names));
    find_names();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      take_wholes(i);
      for (const AdapterPair& pair : parts_[i].pairs) take_pair(i, pair);
      for (const auto& [module, number] : parts_[i].tokens) take_tokens(i, module, number);
      for (TiedGroup& group : groups_) group.by_other = group.changes();
    }
    return finish();
  }

 private:
  [[noreturn]] void refuse(std::size_t adapter, const std::string& why) const {
    throw Error(ErrorCode::kMismatch, cat(adapters_[adapter].path, ": ", why));
  }
  const std::string& base_path() const { return base_.description().path; }
  const TensorEntry& base_tensor(const std::string& key) const {
    return base_.index().tensors[*tensor_number(leaves_.at(key).value)];
  }
  const TensorEntry& adapter_tensor(std::size_t adapter, std::size_t number) const {
    return adapters_[adapter].tensors->index().tensors[number];
  }

  // Names.

  // Returns whether the base may lack a tensor: a tied head, or a module that the adapter holds
  // whole.
  bool may_lack(std::size_t i, const std::string& name, bool whole) const {
    if (is_output_embedding(name)) return true;
    return whole && adapters_[i].config.saves(module_of(name));
  }

  void find_names() {
    std::vector<WantedName> wanted;
    std::vector<WantedName> others;
    const auto want = [&](std::size_t i, const std::string& name, bool whole) {
      (may_lack(i, name, whole) ? others : wanted).push_back({i, name});
    };
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      for (const AdapterPair& pair : parts_[i].pairs) {
        for (const std::string& name : parameters_of(i, pair.module)) want(i, name, false);
      }
      for (const auto& [name, whole] : parts_[i].whole) want(i, name, true);
      for (const auto& [module, number] : parts_[i].tokens) want(i, weight_of(module), false);
    }
    std::ranges::sort(wanted, [](const WantedName& a, const WantedName& b) {
      return std::pair(a.adapter, a.name) < std::pair(b.adapter, b.name);
    });
    if (wanted.empty()) {
      std::erase_if(others, [&](const WantedName& name) { return !has_end(name.name); });
      wanted = others;
    }
    BaseNaming naming = find_base_names(wanted, leaves_);
    if (naming.lacking >= 0) {
      refuse_name(wanted[static_cast<std::size_t>(naming.lacking)].adapter, naming.lacking_key);
    }
    if (!naming.several.empty()) {
      throw Error(ErrorCode::kMismatch,
                  cat(adapters_[wanted.front().adapter].path, ": ",
                      quote(naming.several[0] + wanted.front().name, 200), " and ",
                      quote(naming.several[1] + wanted.front().name, 200), " in ", base_path(),
                      " may both be meant"),
                  {Remedy::kChooseOne});
    }
    names_ = std::move(naming.names);
    result_.prefix = names_.prefix;
    for (const auto& [from, to] : names_.rewrites) {
      if (from == to) continue;
      result_.notes.push_back(cat("names of modules: ", quote(from, 200), " in the adapter is ",
                                  quote(to, 200), " in ", base_path()));
    }
  }

  // Returns the key of a name.  If the base lacks that key, returns the only key that ends in the
  // name, if there is exactly one.
  std::string key_of(const std::string& name) const {
    std::string key = names_.key_of(name);
    if (leaves_.contains(key) || !name.ends_with(kWeightSuffix)) return key;
    std::string found;
    for (const auto& [other, leaf] : leaves_) {
      if (!other.ends_with("." + name)) continue;
      if (!found.empty()) return key;
      found = other;
    }
    return found.empty() ? key : found;
  }

  [[noreturn]] void refuse_name(std::size_t adapter, const std::string& key) const {
    std::vector<std::string> candidates;
    for (const auto& [name, leaf] : leaves_) {
      if (candidates.size() == kMaxBaseCandidates) break;
      candidates.push_back(name);
    }
    const std::string near = nearest(key, candidates);
    refuse(adapter, cat("is of another base: ", base_path(), " lacks ", quote(key, 200),
                        near.empty() ? "" : "; its nearest key is " + quote(near, 200)));
  }

  // Returns the parameters that the matrices of a module may be for: its weight, or those of
  // target_parameters.
  std::vector<std::string> parameters_of(std::size_t i, const std::string& module) const {
    std::vector<std::string> names;
    for (const std::string& parameter : adapters_[i].config.parameters) {
      const std::string owner = module_of(parameter);
      const std::string own = module + "." + parameter.substr(owner.empty() ? 0 : owner.size() + 1);
      const bool fits = owner.empty() || module == owner || module.ends_with("." + owner);
      if (fits && has_end(own)) names.push_back(own);
    }
    std::ranges::sort(names);
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.empty()) names.push_back(weight_of(module));
    return names;
  }
  bool has_end(const std::string& name) const {
    return std::ranges::any_of(leaves_, [&](const auto& leaf) {
      return leaf.first == name || leaf.first.ends_with("." + name);
    });
  }
  static std::string weight_of(const std::string& module) {
    return module + std::string(kWeightSuffix);
  }

  // Groups.

  TiedGroup& group_of(const std::string& key) {
    const auto found = group_by_key_.find(key);
    if (found != group_by_key_.end()) return *found->second;
    TiedGroup& group = groups_.emplace_back();
    group.tensor.base = *tensor_number(leaves_.at(key).value);
    for (std::string& member : tied().group_of(key, result_.notes)) {
      if (group_by_key_.try_emplace(member, &group).second)
        group.present.push_back(std::move(member));
    }
    return group;
  }

  TiedNames tied() const { return {base_, leaves_, options_.facts}; }

  // Returns the group of a name.  The base may hold a head only under the name of the input
  // embedding.  `shape`: of the weight.
  TiedGroup& group_for(std::size_t i, const std::string& name,
                       const std::vector<std::int64_t>& shape) {
    const std::string key = key_of(name);
    const auto found = group_by_key_.find(key);
    if (found != group_by_key_.end()) return *found->second;
    if (leaves_.contains(key)) return group_of(key);
    if (!is_output_embedding(name)) refuse_name(i, key);
    const auto embedding = tied().embedding_for(shape);
    if (!embedding) refuse_name(i, key);
    TiedGroup& group = group_of(*embedding);
    group.absent.push_back(key);
    group_by_key_[key] = &group;
    if (options_.facts.tied != true) {
      result_.notes.push_back(cat(quote(key, 200), " is not in ", base_path(),
                                  " and is treated as tied to ", quote(*embedding, 200)));
    }
    return group;
  }

  // Takes a key out of its group: its module has a tensor of its own from now on.
  TiedGroup& separated(std::size_t i, const std::string& key) {
    if (!leaves_.contains(key) && !group_by_key_.contains(key)) {
      TiedGroup& fresh = groups_.emplace_back();
      fresh.absent.push_back(key);
      group_by_key_[key] = &fresh;
      ++result_.added;
      const auto& notes = result_.notes;
      const std::string note = cat(quote(key, 200), " is not in ", base_path(), ": added");
      if (std::ranges::find(notes, note) == notes.end()) result_.notes.push_back(note);
      if (is_output_embedding(key)) result_.untied = true;
      return fresh;
    }
    TiedGroup& whole = leaves_.contains(key) ? group_of(key) : *group_by_key_.at(key);
    add_tied_head(i, key, whole);
    if (whole.present.size() + whole.absent.size() == 1) return whole;
    if (std::erase(whole.present, key) + std::erase(whole.absent, key) != 1)
      refuse(i, cat(quote(key, 200), " occurs twice"));
    if (whole.present.empty()) result_.added += whole.absent.size();
    TiedGroup& own = groups_.emplace_back();
    (leaves_.contains(key) ? own.present : own.absent).push_back(key);
    own.tensor.base = whole.tensor.base;
    if (own.present.empty()) ++result_.added;
    group_by_key_[key] = &own;
    result_.untied = true;
    return own;
  }

  // Gives a tied head that the base lacks a tensor of its own, because the embedding changes
  // without it.
  void add_tied_head(std::size_t i, const std::string& key, TiedGroup& group) {
    if (!group.absent.empty() || !leaves_.contains(key)) return;
    const std::string head = key_of(tied().head_name());
    if (group_by_key_.contains(head)) return;
    const auto kind = tied().head_of(key, adapters_[i].config.task);
    if (kind == TiedNames::Head::kNone) return;
    if (kind == TiedNames::Head::kUnknown) {
      throw Error(ErrorCode::kUnsupported,
                  cat(adapters_[i].path, ": replaces ", quote(key, 200),
                      ", and neither its task_type nor a config.json of ", base_path(),
                      " tells whether the model has a head that is tied to it"),
                  {Remedy::kModelConfig, {}});
    }
    group.absent.push_back(head);
    group_by_key_[head] = &group;
    result_.notes.push_back(cat(quote(head, 200), " was tied to ", quote(key, 200),
                                ", which an adapter replaces; it keeps the elements of the base"));
  }

  // Parts.

  void check_floating(const std::string& key) const {
    const TensorEntry& tensor = base_tensor(key);
    const bool scaled = arrays::has_scales(leaves_, key, tensor.dtype);
    if (is_floating(tensor.dtype) && !scaled) return;
    throw Error(
        ErrorCode::kUnsupported,
        cat(base_path(), ": ", quote(key, 200), " is ", torch_name(tensor.dtype),
            scaled ? " with scales beside it" : "", "; merging needs it in one floating type"));
  }

  void check_group(std::size_t i, const TiedGroup& group, const TensorEntry& tensor) const {
    if (!group.tensor.base) return;
    const TensorEntry& own = base_.index().tensors[*group.tensor.base];
    for (const std::string& key : group.present) check_floating(key);
    if (own.shape == tensor.shape) return;
    refuse(i, cat(quote(tensor.key, 200), " is ", shape_text(tensor.shape), ", but ",
                  quote(group.name(), 200), " is ", shape_text(own.shape), " in ", base_path()));
  }

  // Returns whether replaced embeddings stay tied; peft knows these two names.
  static bool stay_tied(const AdapterConfig& config) {
    return config.keeps_tied && std::ranges::any_of(config.whole, [](const std::string& name) {
             const std::string last = name.substr(name.rfind('.') + 1);
             return last == "embed_tokens" || last == "lm_head";
           });
  }

  void take_wholes(std::size_t i) {
    const AdapterConfig& config = adapters_[i].config;
    std::set<const TiedGroup*> set;  // by this adapter
    for (const auto& [name, whole] : parts_[i].whole) {
      const std::string key = key_of(name);
      const TensorEntry& tensor = adapter_tensor(i, whole.number);
      const bool own = whole.saved || (!whole.of_base && config.saves(module_of(name)));
      const bool keeps =
          own && stay_tied(config) && (is_input_embedding(name) || is_output_embedding(name));
      TiedGroup& group = own && !keeps ? separated(i, key) : group_for(i, name, tensor.shape);
      check_group(i, group, tensor);
      if (group.by_other) {
        refuse(i,
               cat(quote(key, 200), group.tensor.replacement ? " is replaced by another adapter too"
                                                             : " is updated and replaced"));
      }
      if (!set.insert(&group).second) {
        if (!arrays::equal_tensors(*adapters_[i].tensors, group.tensor.replacement->second,
                                   whole.number)) {
          refuse(i, cat(quote(key, 200), " and ", quote(group.name(), 200),
                        " are one tensor in the base, but differ in the adapter"));
        }
        continue;
      }
      group.tensor.replacement = std::pair(i, whole.number);
      if (!whole.of_base) wholes_.insert(&group);
      ++result_.replaced;
    }
  }

  void take_pair(std::size_t i, const AdapterPair& pair) {
    const LoraAdapter& adapter = adapters_[i];
    const auto& a = adapter_tensor(i, *pair.a).shape;
    const auto& b = adapter_tensor(i, *pair.b).shape;
    if (adapter.config.dora != pair.magnitude.has_value() && adapter.config.dora) {
      refuse(i, cat(quote(pair.module, 200), " has no magnitudes, which use_dora asks for"));
    }
    const std::vector<std::string> names = parameters_of(i, pair.module);
    const std::string name =
        names.size() == 1 && pair.depth == 0 ? names.front() : parameter_of(i, pair, names);
    if (adapter.config.keeps_tied && (is_input_embedding(name) || is_output_embedding(name))) {
      // What peft adds to the two names then depends on the model.
      throw Error(ErrorCode::kUnsupported,
                  cat(adapter.path, ": ensure_weight_tying with LoRA on ", quote(name, 200),
                      " is not merged; merge_and_unload of peft does it"));
    }
    std::vector<std::int64_t> shape = b.size() == 2 && a.size() == 2
                                          ? std::vector<std::int64_t>{b[0], a[1]}
                                          : std::vector<std::int64_t>{};
    TiedGroup& group = group_for(i, name, shape);
    if (wholes_.contains(&group) || !group.tensor.base)
      refuse(i, cat(quote(group.name(), 200), " is updated and replaced"));
    const TensorEntry& weight = base_.index().tensors[*group.tensor.base];
    for (const std::string& key : group.present) check_floating(key);
    LoraStep step;
    step.adapter = i;
    step.a = *pair.a;
    step.b = *pair.b;
    step.magnitude = pair.magnitude;
    if (!fit(i, pair, group.name(), weight.shape, step)) {
      const auto rank = adapter.config.rank_of(pair.module);
      refuse(i, cat(quote(pair.module, 200), " has A ", shape_text(a), " and B ", shape_text(b),
                    rank ? cat(" of rank ", *rank) : "", ", but ", quote(group.name(), 200), " is ",
                    shape_text(weight.shape), " in ", base_path()));
    }
    if (step.experts > 1 && weight.shape[1] == weight.shape[2])
      step.turned = square_experts_are_turned(i, group.name());
    step.scale =
        adapter.config.scale_of(pattern_name(i, pair, name), static_cast<std::int64_t>(step.rank));
    group.tensor.steps.push_back(step);
    ++result_.updates;
    if (pair.bias) take_bias(i, pair, step.scale);
  }

  // Returns the name for patterns of ranks and alphas: with target_parameters the parameter's, else
  // the module's.
  std::string pattern_name(std::size_t i, const AdapterPair& pair, const std::string& name) const {
    return adapters_[i].config.parameters.empty() || name.ends_with(kWeightSuffix) ? pair.module
                                                                                   : name;
  }

  // Sets the fields of a step that follow from the shapes; returns false if the shapes do not fit.
  bool fit(std::size_t i, const AdapterPair& pair, const std::string& key,
           const std::vector<std::int64_t>& w, LoraStep& step) {
    const auto& a = adapter_tensor(i, *pair.a).shape;
    const auto& b = adapter_tensor(i, *pair.b).shape;
    const AdapterConfig& config = adapters_[i].config;
    if (a.size() < 2 || b.size() != a.size()) return false;
    if (w.size() == 3 && a.size() == 2) return fit_experts(i, pair, w, step);
    if (a.size() != w.size()) return false;
    const std::int64_t rank = config.rank_of(pair.module).value_or(a[0]);
    step.rank = static_cast<std::uint64_t>(rank);
    if (a[0] != rank || rank == 0) return false;
    const auto magnitudes = [&](std::int64_t count) {
      return !pair.magnitude ||
             adapter_tensor(i, *pair.magnitude).numel() == static_cast<std::uint64_t>(count);
    };
    if (w.size() > 2) {
      if (b[1] != rank && b[1] != 0 && rank % b[1] == 0) {
        throw Error(ErrorCode::kUnsupported,
                    cat(adapters_[i].path, ": ", quote(pair.module, 200), " is a convolution of ",
                        rank / b[1], " groups, which peft does not merge"));
      }
      return b[1] == rank && b[0] == w[0] &&
             std::all_of(b.begin() + 2, b.end(), [](auto size) { return size == 1; }) &&
             std::equal(a.begin() + 1, a.end(), w.begin() + 1) && magnitudes(w[0]);
    }
    if (b[1] != rank) return false;
    const bool straight = b[0] == w[0] && a[1] == w[1];
    const bool turned = b[0] == w[1] && a[1] == w[0];
    if (pair.embedding) {
      step.turned = true;
      return turned && magnitudes(b[0]);
    }
    step.turned = turned && (!straight || square_is_turned(i, key));
    return (straight || turned) && magnitudes(b[0]);
  }

  bool square_is_turned(std::size_t i, const std::string& key) {
    const bool said = adapters_[i].config.fan_in_fan_out;
    const std::optional<bool> turned = orientation_.turned(key);
    if (turned.value_or(said) == said && turned) return said;
    result_.notes.push_back(
        turned ? cat(quote(key, 200), " is ", *turned ? "[in, out]" : "[out, in]",
                     " like the weights near it, although fan_in_fan_out says otherwise")
               : cat(quote(key, 200), " is taken to be ", said ? "[in, out]" : "[out, in]",
                     ", as fan_in_fan_out says; it is square"));
    return turned.value_or(said);
  }

  // Returns whether square stacked weights are [experts, in, out].  All stacked weights of an
  // adapter have one order, which a weight that fits in one order only decides.
  bool square_experts_are_turned(std::size_t i, const std::string& key) {
    const auto [at, fresh] = expert_orders_.try_emplace(i);
    if (!fresh) return at->second;
    std::set<bool> ways;
    for (const AdapterPair& pair : parts_[i].pairs) {
      std::set<bool> own;
      for (const std::string& name : parameters_of(i, pair.module)) {
        const auto leaf = leaves_.find(key_of(name));
        if (leaf == leaves_.end()) continue;
        const auto& w = base_tensor(leaf->first).shape;
        LoraStep step;
        if (w.size() != 3 || !fit(i, pair, leaf->first, w, step)) continue;
        own.insert(step.turned);
        if (w[1] == w[2]) own.insert(!step.turned);
      }
      if (own.size() == 1) ways.insert(*own.begin());
    }
    if (ways.size() == 1) return at->second = *ways.begin();
    const ExpertsOrder order = experts_order(adapters_[i].config, options_.facts.model_type);
    if (!order.guess.empty()) {
      result_.notes.push_back(cat("stacked weights that are square, such as ", quote(key, 200),
                                  ", are taken to be ", order.guess));
    }
    return at->second = order.turned;
  }

  // [experts, in, out] or [experts, out, in].
  bool fit_experts(std::size_t i, const AdapterPair& pair, const std::vector<std::int64_t>& w,
                   LoraStep& step) const {
    const auto& a = adapter_tensor(i, *pair.a).shape;
    const auto& b = adapter_tensor(i, *pair.b).shape;
    if (w[0] <= 0 || a[0] % w[0] != 0 || a[0] == 0 || b[1] != a[0] || pair.magnitude) return false;
    step.experts = static_cast<std::uint64_t>(w[0]);
    step.rank = static_cast<std::uint64_t>(a[0] / w[0]);
    const bool straight = b[0] == w[1] && a[1] == w[2];
    step.turned = !straight;
    return straight || (b[0] == w[2] && a[1] == w[1]);
  }

  // Returns the parameter that a pair of matrices is for.  Several parameters of one module are
  // wrapped inside each other, in the order of the module's code, the first one innermost.  A file
  // does not hold that order: the shapes decide, or the order that models of transformers share.
  const std::string& parameter_of(std::size_t i, const AdapterPair& pair,
                                  std::vector<std::string> names) {
    std::string& own = parameter_[{i, pair.module, pair.depth}];
    if (!own.empty()) return own;
    std::vector<const AdapterPair*> wrapped;
    for (const AdapterPair& other : parts_[i].pairs) {
      if (other.module == pair.module) wrapped.push_back(&other);
    }
    std::ranges::sort(wrapped, [](const auto* a, const auto* b) { return a->depth > b->depth; });
    if (wrapped.size() != names.size() || names.size() > kMaxParameters) {
      refuse(i, cat(quote(pair.module, 200), " has matrices for ", wrapped.size(),
                    " parameters, but target_parameters names ", names.size(), " of it"));
    }
    std::vector<std::vector<std::string>> orders;
    do {
      bool fits = true;
      for (std::size_t n = 0; n < names.size() && fits; ++n) {
        LoraStep step;
        const std::string key = key_of(names[n]);
        fits = leaves_.contains(key) && fit(i, *wrapped[n], key, base_tensor(key).shape, step);
      }
      if (fits) orders.push_back(names);
    } while (std::next_permutation(names.begin(), names.end()));
    std::vector<std::string> order;
    if (orders.size() == 1) order = orders.front();
    for (const auto& one : orders) {
      if (one.size() == 2 && one[0].ends_with(".gate_up_proj") && one[1].ends_with(".down_proj"))
        order = one;
    }
    if (order.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  cat(adapters_[i].path, ": the matrices of ", quote(pair.module, 200),
                      orders.empty() ? " fit no order of its target_parameters"
                                     : " fit its target_parameters in several orders"));
    }
    for (std::size_t n = 0; n < order.size(); ++n)
      parameter_[{i, pair.module, wrapped[n]->depth}] = order[n];
    return parameter_.at({i, pair.module, pair.depth});
  }

  void take_bias(std::size_t i, const AdapterPair& pair, double scale) {
    const std::string name = pair.module + std::string(kBiasSuffix);
    const std::string key = key_of(name);
    if (!leaves_.contains(key)) {
      throw Error(ErrorCode::kUnsupported,
                  cat(adapters_[i].path, ": ", quote(pair.module, 200),
                      " has a bias (lora_bias), and the base's module has none to add it to"));
    }
    TiedGroup& group = group_of(key);
    check_group(i, group, adapter_tensor(i, *pair.bias));
    LoraStep step;
    step.kind = LoraStep::Kind::kBias;
    step.adapter = i;
    step.b = *pair.bias;
    step.scale = scale;
    group.tensor.steps.push_back(step);
    ++result_.updates;
  }

  void take_tokens(std::size_t i, const std::string& module, std::size_t number) {
    const AdapterConfig& config = adapters_[i].config;
    const auto found = std::ranges::find_if(config.tokens, [&](const TokenRows& rows) {
      return rows.module.empty() || module == rows.module || module.ends_with("." + rows.module);
    });
    if (found == config.tokens.end()) {
      refuse(i, cat("trainable_token_indices does not tell which rows of ", quote(module, 200),
                    " it holds"));
    }
    const TensorEntry& rows = adapter_tensor(i, number);
    TiedGroup& group = group_for(i, weight_of(module), {});
    for (const std::string& key : group.present) check_floating(key);
    const auto& shape = base_.index().tensors[*group.tensor.base].shape;
    const bool fits = shape.size() == 2 && rows.shape.size() == 2 && rows.shape[1] == shape[1] &&
                      static_cast<std::uint64_t>(rows.shape[0]) == found->rows.size() &&
                      std::ranges::all_of(found->rows, [&](std::uint64_t row) {
                        return row < static_cast<std::uint64_t>(shape[0]);
                      });
    if (!fits) {
      refuse(i, cat(quote(module, 200), " has ", shape_text(rows.shape), " for ",
                    found->rows.size(), " rows of trainable_token_indices, but ",
                    quote(group.name(), 200), " is ", shape_text(shape), " in ", base_path()));
    }
    LoraStep step;
    step.kind = LoraStep::Kind::kRows;
    step.adapter = i;
    step.b = number;
    step.rows = found->rows;
    group.tensor.steps.push_back(std::move(step));
    ++result_.updates;
  }

  LoraMerge finish() {
    auto made = std::make_shared<arrays::ComputedTensors>(sources_);
    std::vector<std::pair<KeyPath, Value>> added;
    for (const TiedGroup& group : groups_) {
      if (!group.changes()) continue;
      if (!group.tensor.steps.empty()) ++result_.merged;
      const auto& [base, replacement, steps] = group.tensor;
      const DType to = options_.dtype.value_or(
          base ? base_.index().tensors[*base].dtype
               : adapter_tensor(replacement->first, replacement->second).dtype);
      if (group.present.empty()) {
        KeyPath path = path_beside(neighbour(), group.absent.front());
        const Value tensor = made->separate(path, merged_tensor(sources_, group.tensor, to));
        added.emplace_back(std::move(path), tensor);
        continue;
      }
      std::map<std::size_t, Value> tensors;  // by the base's; copies stay copies
      for (const std::string& key : group.present) {
        const Leaf& leaf = leaves_.at(key);
        MergedTensor own = group.tensor;
        if (own.base) own.base = tensor_number(leaf.value);
        const auto [at, fresh] = tensors.try_emplace(own.base.value_or(0));
        if (fresh) at->second = made->separate(leaf.path, merged_tensor(sources_, own, to));
        made->replace(leaf, at->second);
      }
    }
    result_.content = made->edited(content_);
    for (const auto& [path, tensor] : added)
      result_.content = with_member(result_.content, path, tensor);
    result_.checkpoint = std::move(made);
    return std::move(result_);
  }

  // Returns a leaf of the model, beside which new tensors are added.
  const Leaf& neighbour() const {
    for (const TiedGroup& group : groups_) {
      if (!group.present.empty()) return leaves_.at(group.present.front());
    }
    return leaves_.begin()->second;
  }

  const Value& content_;
  const LoraMergeOptions& options_;
  std::vector<LoraAdapter> adapters_;
  const Checkpoint& base_;
  std::vector<std::shared_ptr<arrays::ArraySource>> sources_;  // the base, then the adapters
  std::map<std::string, Leaf> leaves_;                         // the base's tensors
  std::vector<AdapterParts> parts_;                            // of each adapter
  BaseNames names_;
  std::map<std::tuple<std::size_t, std::string, std::size_t>, std::string> parameter_;
  std::map<std::size_t, bool> expert_orders_;  // adapter -> square ones are [experts, in, out]
  std::list<TiedGroup> groups_;
  std::map<std::string, TiedGroup*> group_by_key_;
  std::set<const TiedGroup*> wholes_;  // held whole by an adapter, but not as the base's own
  Orientation orientation_{base_, leaves_};
  LoraMerge result_;
};

}  // namespace

LoraMerge merge_lora(std::shared_ptr<const Checkpoint> base, const Value& content,
                     std::vector<LoraAdapter> adapters, const LoraMergeOptions& options) {
  return Merger(std::move(base), content, std::move(adapters), options).run();
}

}  // namespace fsdp::formats
