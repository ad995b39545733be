// SPDX-License-Identifier: Apache-2.0
#include "formats/lora/merge.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "formats/arithmetic/input_reader.h"
#include "formats/arithmetic/low_rank.h"
#include "formats/arithmetic/replaced_tensors.h"
#include "formats/arithmetic/sum_source.h"
#include "formats/base/cast.h"
#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/content/content.h"
#include "formats/lora/peft_names.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kKeyText = 200;
constexpr std::size_t kMaxCandidates = 2000;
// Storages of which parts are read last are compared through a buffer of this size.
constexpr std::size_t kCheckBytes = 1U << 20U;

// The two matrices of a module, by their numbers in the adapter's index.
struct Pair {
  std::optional<std::size_t> a;
  std::optional<std::size_t> b;
  bool embedding = false;  // its weight is [in, out], as with fan_in_fan_out
};

// The tensors of an adapter by what they are for.
struct AdapterParts {
  std::map<std::string, Pair> pairs;         // by module
  std::map<std::string, std::size_t> whole;  // by the key in the base
};

// An update of one weight.
struct Update {
  std::size_t adapter;
  std::size_t a;
  std::size_t b;
  std::uint64_t rank;
  double scale;
  bool turned;  // the weight is [in, out]
};

// All that is read while the output is written.
struct Operands {
  std::shared_ptr<const Checkpoint> base;
  std::vector<LoraAdapter> adapters;
  StorageChecks base_checks{true};
  // One each: names of files are those within a checkpoint.
  std::vector<std::unique_ptr<StorageChecks>> checks;
  SumRule unchanged{{1}, std::nullopt, Accumulator::kFloat64};
  Spares<SumBuffers> buffers;

  InputTensor input(std::size_t adapter, std::size_t number) const {
    return {adapters[adapter].tensors.get(), number};
  }
  void finish() {
    std::vector<std::byte> buffer(kCheckBytes);
    base_checks.finish(buffer, [] { return interrupted(); });
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      checks[i]->finish(buffer, [] { return interrupted(); });
      adapters[i].tensors->check_unchanged();
    }
  }
  // `checked`: becomes false if some of it carries no checksum.
  ThinMatrix matrix(std::size_t adapter, std::size_t number, bool transposed, bool& checked) {
    const InputReader reader(input(adapter, number), *checks[adapter]);
    ThinMatrix matrix;
    matrix.dtype = reader.dtype();
    matrix.transposed = transposed;
    matrix.elements.resize(input(adapter, number).entry().bytes());
    std::vector<std::byte> scratch(matrix.elements.size());
    reader.read(0, matrix.elements, scratch);
    checked = checked && reader.checked();
    return matrix;
  }
};

// A bias beside matrices lies in the layer that they wrap.
std::string without_wrapper(std::string name) {
  constexpr std::string_view kWrapped = ".base_layer.";
  const std::size_t at = name.find(kWrapped);
  if (at != name.npos) name.replace(at, kWrapped.size(), ".");
  return name;
}

AdapterParts parts_of(const LoraAdapter& adapter) {
  AdapterParts parts;
  const auto& tensors = adapter.tensors->index().tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::string& key = tensors[t].key;
    const auto refuse = [&](const char* why) {
      throw Error(ErrorCode::kUnsupported, cat(adapter.path, ": ", quote(key, kKeyText), why));
    };
    if (!is_floating(tensors[t].dtype)) refuse(" is no tensor of floating numbers");
    if (!key.starts_with(kPeftPrefix)) refuse(" is not of peft's layout, 'base_model.model.'");
    const std::string name = key.substr(kPeftPrefix.size());
    if (name.find("lora_magnitude_vector") != name.npos) refuse(" is of DoRA, which is not merged");
    const std::size_t at = name.find(".lora_");
    if (at == name.npos) {
      if (!parts.whole.emplace(without_wrapper(name), t).second) refuse(" is there twice");
      continue;
    }
    Pair& pair = parts.pairs[name.substr(0, at)];
    const std::string_view what = std::string_view(name).substr(at + 1);
    if (what == "lora_A.weight") {
      pair.a = t;
    } else if (what == "lora_B.weight") {
      pair.b = t;
    } else if (what == "lora_embedding_A") {
      pair.a = t;
      pair.embedding = true;
    } else if (what == "lora_embedding_B") {
      pair.b = t;
      pair.embedding = true;
    } else {
      refuse(" is of a kind of LoRA that is not merged");
    }
  }
  for (const auto& [module, pair] : parts.pairs) {
    if (pair.a && pair.b) continue;
    throw Error(ErrorCode::kMismatch, cat(adapter.path, ": ", quote(module, kKeyText),
                                          " has only one of two matrices, ", pair.a ? "A" : "B"));
  }
  if (parts.pairs.empty() && parts.whole.empty())
    throw Error(ErrorCode::kMismatch, adapter.path + ": holds no tensor");
  return parts;
}

class Merger {
 public:
  Merger(std::shared_ptr<const Checkpoint> base, const Value& content,
         std::vector<LoraAdapter> adapters, std::optional<DType> dtype)
      : content_(content), dtype_(dtype), operands_(std::make_shared<Operands>()) {
    operands_->base = std::move(base);
    operands_->adapters = std::move(adapters);
    for (std::size_t i = 0; i < operands_->adapters.size(); ++i)
      operands_->checks.push_back(std::make_unique<StorageChecks>(true));
    for (Leaf& leaf : leaves_of(content)) {
      if (!tensor_number(leaf.value)) continue;
      std::string key = leaf.key;
      leaves_.emplace(std::move(key), std::move(leaf));
    }
  }

  LoraMerge run() {
    std::vector<AdapterParts> parts;
    for (const LoraAdapter& adapter : operands_->adapters) parts.push_back(parts_of(adapter));
    find_prefix(parts);
    std::map<std::string, std::vector<Update>> updates;                // by base key
    std::map<std::string, std::pair<std::size_t, std::size_t>> whole;  // adapter, number
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const auto& [module, pair] : parts[i].pairs) {
        const std::string key = result_.prefix + module + std::string(kWeightSuffix);
        updates[key].push_back(update_of(i, module, pair, leaf_of(i, key)));
        ++result_.updates;
      }
      for (const auto& [name, number] : parts[i].whole) {
        const std::string key = result_.prefix + name;
        check_whole(i, key, number);
        if (!whole.emplace(key, std::pair(i, number)).second)
          refuse(i, cat(quote(key, kKeyText), " is replaced by another adapter too"));
      }
    }
    ReplacedTensors replaced(operands_->base);
    for (const auto& [key, list] : updates) {
      const auto both = whole.find(key);
      if (both != whole.end())
        refuse(both->second.first, cat(quote(key, kKeyText), " is updated and replaced"));
      replaced.replace(leaves_.at(key), merged(key, list));
    }
    for (const auto& [key, from] : whole) replaced.replace(leaves_.at(key), taken(key, from));
    result_.merged = updates.size();
    result_.replaced = whole.size();
    auto made = replaced.finish(content_, operands_->base->description().path,
                                [held = operands_] { held->finish(); });
    result_.checkpoint = std::move(made.checkpoint);
    result_.content = std::move(made.content);
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::size_t adapter, const std::string& why) const {
    throw Error(ErrorCode::kMismatch, cat(operands_->adapters[adapter].path, ": ", why));
  }
  const TensorEntry& base_tensor(const Leaf& leaf) const {
    return operands_->base->index().tensors[*tensor_number(leaf.value)];
  }
  const TensorEntry& adapter_tensor(std::size_t adapter, std::size_t number) const {
    return operands_->adapters[adapter].tensors->index().tensors[number];
  }

  // Modules may lie in a level of the base: "app.model." before each name.
  void find_prefix(const std::vector<AdapterParts>& parts) {
    std::vector<std::pair<std::size_t, std::string>> names;  // adapter, key without the prefix
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const auto& [module, pair] : parts[i].pairs)
        names.emplace_back(i, module + std::string(kWeightSuffix));
      for (const auto& [name, number] : parts[i].whole) names.emplace_back(i, name);
    }
    std::vector<std::string> prefixes;
    for (const auto& [key, leaf] : leaves_) {
      const std::string& name = names.front().second;
      if (key == name || key.ends_with("." + name))
        prefixes.push_back(key.substr(0, key.size() - name.size()));
    }
    for (const auto& [adapter, name] : names) {
      const std::vector<std::string> before = prefixes;
      std::erase_if(prefixes, [&, &own = name](const std::string& prefix) {
        return !leaves_.contains(prefix + own);
      });
      if (prefixes.empty()) refuse_name(adapter, before.empty() ? name : before.front() + name);
    }
    if (prefixes.size() > 1) {
      refuse(names.front().first, cat(quote(prefixes[0] + names.front().second, kKeyText), " and ",
                                      quote(prefixes[1] + names.front().second, kKeyText), " in ",
                                      operands_->base->description().path,
                                      " may both be meant; choose one with --keys"));
    }
    result_.prefix = prefixes.front();
  }

  [[noreturn]] void refuse_name(std::size_t adapter, const std::string& key) const {
    std::vector<std::string> candidates;
    for (const auto& [name, leaf] : leaves_) {
      if (candidates.size() == kMaxCandidates) break;
      candidates.push_back(name);
    }
    const std::string near = nearest(key, candidates);
    refuse(adapter, cat("is of another base: ", operands_->base->description().path, " lacks ",
                        quote(key, kKeyText),
                        near.empty() ? "" : "; its nearest key is " + quote(near, kKeyText)));
  }

  const Leaf& leaf_of(std::size_t adapter, const std::string& key) const {
    const auto found = leaves_.find(key);
    if (found == leaves_.end()) refuse_name(adapter, key);
    return found->second;
  }

  void check_floating(const std::string& key) const {
    const TensorEntry& tensor = base_tensor(leaves_.at(key));
    const bool scaled = item_bytes(tensor.dtype) == 1 &&
                        (leaves_.contains(key + "_scale") || leaves_.contains(key + "_scale_inv"));
    if (is_floating(tensor.dtype) && !scaled) return;
    throw Error(ErrorCode::kUnsupported,
                cat(operands_->base->description().path, ": ", quote(key, kKeyText), " is ",
                    torch_name(tensor.dtype), scaled ? " with scales beside it" : "",
                    "; merging needs it in one floating type"));
  }

  Update update_of(std::size_t i, const std::string& module, const Pair& pair, const Leaf& leaf) {
    const LoraAdapter& adapter = operands_->adapters[i];
    const auto& a = adapter_tensor(i, *pair.a).shape;
    const auto& b = adapter_tensor(i, *pair.b).shape;
    const auto& w = base_tensor(leaf).shape;
    check_floating(leaf.key);
    if (a.size() == 4 || a.size() == 3 || a.size() == 5) {
      throw Error(ErrorCode::kUnsupported, cat(adapter.path, ": ", quote(module, kKeyText),
                                               " is a convolution, which is not merged"));
    }
    const std::int64_t rank = adapter.config.rank_of(module);
    const bool turned = pair.embedding || adapter.config.fan_in_fan_out;
    const bool matrices = a.size() == 2 && b.size() == 2 && w.size() == 2;
    if (!matrices || a[0] != rank || b[1] != rank || b[0] != w[turned ? 1 : 0] ||
        a[1] != w[turned ? 0 : 1]) {
      refuse(i, cat(quote(module, kKeyText), " has A ", shape_text(a), " and B ", shape_text(b),
                    " of rank ", rank, ", but ", quote(leaf.key, kKeyText), " is ", shape_text(w),
                    " in ", operands_->base->description().path));
    }
    return {
        i,     *pair.a, *pair.b, static_cast<std::uint64_t>(rank), adapter.config.scale_of(module),
        turned};
  }

  void check_whole(std::size_t i, const std::string& key, std::size_t number) const {
    const TensorEntry& own = base_tensor(leaf_of(i, key));
    const TensorEntry& tensor = adapter_tensor(i, number);
    check_floating(key);
    if (own.shape == tensor.shape) return;
    refuse(i, cat(quote(tensor.key, kKeyText), " is ", shape_text(tensor.shape), ", but ",
                  quote(key, kKeyText), " is ", shape_text(own.shape), " in ",
                  operands_->base->description().path));
  }

  ComputedTensor computed_for(const std::string& key) const {
    const TensorEntry& tensor = base_tensor(leaves_.at(key));
    ComputedTensor computed;
    computed.dtype = dtype_.value_or(tensor.dtype);
    computed.shape = tensor.shape;
    return computed;
  }

  ComputedTensor merged(const std::string& key, const std::vector<Update>& updates) const {
    ComputedTensor computed = computed_for(key);
    computed.open = [held = operands_, updates, number = *tensor_number(leaves_.at(key).value),
                     to = computed.dtype] {
      ComputedElements elements;
      auto weight =
          std::make_unique<InputReader>(InputTensor{held->base.get(), number}, held->base_checks);
      elements.checked = weight->checked();
      std::vector<LowRankUpdate> products;
      for (const Update& update : updates) {
        ThinMatrix a = held->matrix(update.adapter, update.a, update.turned, elements.checked);
        ThinMatrix b = held->matrix(update.adapter, update.b, update.turned, elements.checked);
        LowRankUpdate product;
        product.left = std::move(update.turned ? a : b);
        product.right = std::move(update.turned ? b : a);
        product.rank = update.rank;
        product.scale = update.scale;
        products.push_back(std::move(product));
      }
      const TensorEntry& tensor = held->base->index().tensors[number];
      elements.source =
          low_rank_source(std::move(weight), products, static_cast<std::uint64_t>(tensor.shape[1]),
                          to, tensor.numel());
      return elements;
    };
    return computed;
  }

  ComputedTensor taken(const std::string& key,
                       const std::pair<std::size_t, std::size_t>& from) const {
    ComputedTensor computed = computed_for(key);
    computed.open = [held = operands_, from, to = computed.dtype] {
      const InputTensor input = held->input(from.first, from.second);
      std::vector<std::unique_ptr<InputReader>> readers;
      readers.push_back(std::make_unique<InputReader>(input, *held->checks[from.first]));
      const bool checked = readers[0]->checked();
      return ComputedElements{
          std::make_shared<SumSource>(held->unchanged, held->buffers, std::move(readers), to,
                                      input.entry().numel()),
          checked};
    };
    return computed;
  }

  const Value& content_;
  std::optional<DType> dtype_;
  std::shared_ptr<Operands> operands_;
  std::map<std::string, Leaf> leaves_;  // the base's tensors
  LoraMerge result_;
};

}  // namespace

LoraMerge merge_lora(std::shared_ptr<const Checkpoint> base, const Value& content,
                     std::vector<LoraAdapter> adapters, std::optional<DType> dtype) {
  return Merger(std::move(base), content, std::move(adapters), dtype).run();
}

}  // namespace fsdp::formats
