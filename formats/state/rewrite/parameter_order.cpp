// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/parameter_order.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/buffer_names.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

using Shape = std::vector<std::int64_t>;

// Returns whether a tensor of this shape has one element.
bool is_single(const Shape& shape) {
  return std::ranges::all_of(shape, [](std::int64_t size) { return size == 1; });
}

// Returns whether `kept` is the shape of a factored moment: the parameter's shape without one
// dimension.
bool is_reduced(const Shape& kept, const Shape& parameter) {
  for (std::size_t d = 0; d < parameter.size(); ++d) {
    Shape reduced = parameter;
    reduced[d] = 1;
    if (kept == reduced) return true;
    reduced.erase(reduced.begin() + static_cast<std::ptrdiff_t>(d));
    if (kept == reduced) return true;
  }
  return false;
}

// A state tensor of a parameter.
struct KeptTensor {
  enum class Kind { kLike, kCounter, kFactored };
  Kind kind = Kind::kLike;  // usually of the parameter's shape
  Shape shape;
};

KeptTensor::Kind kind_of(std::string_view name) {
  // The counters that PyTorch's optimizers keep beside the averages.
  for (const std::string_view counter : {"step", "mu", "eta", "mu_product"}) {
    if (name == counter) return KeptTensor::Kind::kCounter;
  }
  const bool factored = name.find("row") != name.npos || name.find("col") != name.npos;
  return factored ? KeptTensor::Kind::kFactored : KeptTensor::Kind::kLike;
}

// The state tensors of each parameter.
using Kept = std::unordered_map<std::string, std::vector<KeptTensor>>;

Kept kept_tensors(const OptimizerState& optimizer) {
  Kept kept;
  for (const auto& [key, value] : optimizer.state) {
    std::vector<KeptTensor>& tensors = kept[key];
    for (const auto& [name, item] : members_of(value)) {
      const auto tensor = dense_tensor(item);
      if (!tensor) continue;
      const auto kind =
          name.as_string() == nullptr ? KeptTensor::Kind::kLike : kind_of(*name.as_string());
      tensors.push_back({kind, tensor->shape});
    }
  }
  return kept;
}

bool fits(const KeptTensor& kept, const Shape& parameter) {
  return kept.shape == parameter || is_single(kept.shape) ||
         (kept.kind == KeptTensor::Kind::kFactored && is_reduced(kept.shape, parameter));
}

// Returns the first shape that does not fit; nullptr if all fit.  At least one of the tensors that
// usually have the parameter's shape must have it.
const Shape* misfit(const Kept& kept, const std::string& key, const ModelParameter& parameter) {
  const auto found = kept.find(key);
  if (found == kept.end() || !parameter.shape) return nullptr;
  const KeptTensor* like = nullptr;
  bool same = false;
  for (const KeptTensor& tensor : found->second) {
    if (!fits(tensor, *parameter.shape)) return &tensor.shape;
    if (tensor.kind != KeptTensor::Kind::kLike) continue;
    same = same || tensor.shape == *parameter.shape;
    if (like == nullptr) like = &tensor;
  }
  const bool factored = std::ranges::any_of(
      found->second, [](const auto& tensor) { return tensor.kind == KeptTensor::Kind::kFactored; });
  return like == nullptr || same || factored ? nullptr : &like->shape;
}

Error shape_error(const std::string& key, const Shape& shape, const ModelParameter& parameter,
                  const ParameterOrder& order) {
  return Error(ErrorCode::kShape, "the state of ", key == parameter.name ? "" : "parameter ",
               key == parameter.name ? quote(key, 200) : key, " has shape ", shape_text(shape),
               key == parameter.name ? "" : ", " + quote(parameter.name, 200), " has ",
               shape_text(*parameter.shape), " in ", order.origin,
               "; the order of the parameters differs, or it is another model");
}

Error ambiguous(const std::string& id, const std::string& a, const std::string& b,
                const std::string& why) {
  return Error(ErrorCode::kRekeyAmbiguous,
               cat("parameter ", id, " may be ", quote(a, 200), " or ", quote(b, 200), ": ", why),
               {Remedy::kGiveNames});
}

std::uint64_t number(const std::string& id) {
  return std::stoull(id);
}

std::vector<std::string> all_params(const OptimizerState& optimizer) {
  std::vector<std::string> all;
  for (const auto& group : optimizer.groups)
    all.insert(all.end(), group.params.begin(), group.params.end());
  return all;
}

// Maps ids to names by the shapes of their states.
class Matcher {
 public:
  Matcher(const OptimizerState& optimizer, const ParameterOrder& order)
      : optimizer_(optimizer),
        order_(order),
        kept_(kept_tensors(optimizer)),
        taken_(order.parameters.size(), 0) {}

  std::map<std::string, std::string> run() {
    const std::vector<std::string> ids = all_params(optimizer_);
    if (ids.size() > order_.parameters.size()) {
      throw Error(ErrorCode::kKey, "has ", ids.size(), " parameters, ", order_.origin, " ",
                  order_.parameters.size());
    }
    bool counted = true;  // consecutive across groups, as an optimizer counts
    for (std::size_t i = 0; i < ids.size(); ++i) counted = counted && number(ids[i]) == i;
    std::vector<std::string> sorted = ids;
    std::ranges::sort(sorted, [](const auto& a, const auto& b) { return number(a) < number(b); });
    const bool all = number(sorted.empty() ? "0" : sorted.back()) + 1 == ids.size();
    if (!order_.certain) {
      by_shape_alone(ids);
    } else if (order_.for_ids || (!counted && !all) ||
               (ids.size() == order_.parameters.size() &&
                (!counted || optimizer_.groups.size() <= 1))) {
      by_position(ids);
    } else if (!counted) {
      // `order` also has tensors that are not parameters, but the ids still follow the model's
      // order.
      by_sequences({sorted});
    } else {
      std::vector<std::vector<std::string>> groups;
      for (const auto& group : optimizer_.groups) groups.push_back(group.params);
      by_sequences(groups);
    }
    return std::move(names_);
  }

 private:
  bool may_be(const std::string& id, std::size_t parameter) const {
    return taken_[parameter] == 0 && misfit(kept_, id, order_.parameters[parameter]) == nullptr;
  }

  void assign(const std::string& id, std::size_t parameter) {
    taken_[parameter] = 1;
    names_[id] = order_.parameters[parameter].name;
  }

  const std::string& name(std::size_t parameter) const { return order_.parameters[parameter].name; }

  void by_position(const std::vector<std::string>& ids) {
    for (const std::string& id : ids) {
      const std::uint64_t position = number(id);
      if (position >= order_.parameters.size()) {
        throw Error(ErrorCode::kKey, "has parameter ", id, ", ", order_.origin, " has ",
                    order_.parameters.size(), " parameters");
      }
      const ModelParameter& parameter = order_.parameters[position];
      if (const Shape* shape = misfit(kept_, id, parameter))
        throw shape_error(id, *shape, parameter, order_);
      assign(id, position);
    }
  }

  // Decides ids whose shapes fit only one parameter.
  void by_shape_alone(const std::vector<std::string>& ids) {
    std::vector<std::string> open = ids;
    for (bool progress = true; progress && !open.empty();) {
      progress = false;
      std::vector<std::string> left;
      for (const std::string& id : open) {
        const std::vector<std::size_t> found = candidates(id);
        if (found.size() == 1) {
          assign(id, found[0]);
          progress = true;
        } else {
          left.push_back(id);
        }
      }
      open = std::move(left);
    }
    if (open.empty()) return;
    const std::vector<std::size_t> found = candidates(open[0]);
    throw ambiguous(
        open[0], name(found[0]), name(found[1]),
        "their shapes are equal, and the order in " + order_.origin + " may not be the model's");
  }

  // Returns at most two candidates.  Throws kShape if there is none.
  std::vector<std::size_t> candidates(const std::string& id) const {
    std::vector<std::size_t> found;
    for (std::size_t p = 0; p < taken_.size() && found.size() < 2; ++p) {
      if (may_be(id, p)) found.push_back(p);
    }
    if (found.empty()) throw no_candidate(id);
    return found;
  }

  Error no_candidate(const std::string& id) const {
    const auto kept = kept_.find(id);
    std::string shapes;
    if (kept != kept_.end()) {
      for (const KeptTensor& tensor : kept->second) {
        if (tensor.kind == KeptTensor::Kind::kLike)
          shapes = " of shape " + shape_text(tensor.shape);
      }
    }
    return Error(ErrorCode::kShape, "the state", shapes, " of parameter ", id,
                 " fits none that is left of ", order_.origin);
  }

  // Decides the ids of each sequence, whose parameters are in the model's order.  A sequence that
  // fits into the model in only one way is decided, which leaves less room for the others.
  void by_sequences(const std::vector<std::vector<std::string>>& sequences) {
    std::vector<std::size_t> open(sequences.size());
    std::iota(open.begin(), open.end(), 0U);
    while (!open.empty()) {
      std::vector<std::size_t> left;
      std::optional<Error> why;
      for (const std::size_t sequence : open) {
        const std::vector<std::string>& ids = sequences[sequence];
        const std::vector<std::size_t> first = laid(ids, false);
        const std::vector<std::size_t> last = laid(ids, true);
        std::size_t i = 0;
        while (i < ids.size() && first[i] == last[i]) ++i;
        if (i == ids.size()) {
          for (std::size_t k = 0; k < ids.size(); ++k) assign(ids[k], first[k]);
          continue;
        }
        if (!why) {
          why = ambiguous(ids[i], name(first[i]), name(last[i]),
                          "the shapes of its state fit both, and nothing else decides");
        }
        left.push_back(sequence);
      }
      if (left.size() == open.size()) throw *why;
      open = std::move(left);
    }
  }

  // Returns the positions of the ids, each as far to the front, or to the back, as possible.
  std::vector<std::size_t> laid(const std::vector<std::string>& ids, bool back) const {
    std::vector<std::size_t> places(ids.size());
    std::size_t next = 0;  // parameters passed, from the front or from the back
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t k = back ? ids.size() - 1 - i : i;
      const auto at = [&] { return back ? taken_.size() - 1 - next : next; };
      while (next < taken_.size() && !may_be(ids[k], at())) ++next;
      if (next == taken_.size()) throw no_candidate(ids[k]);
      places[k] = at();
      ++next;
    }
    return places;
  }

  const OptimizerState& optimizer_;
  const ParameterOrder& order_;
  Kept kept_;
  std::vector<char> taken_;
  std::map<std::string, std::string> names_;
};

std::unordered_map<std::string, std::size_t> positions_of(const ParameterOrder& order) {
  std::unordered_map<std::string, std::size_t> positions;
  for (std::size_t i = 0; i < order.parameters.size(); ++i) {
    if (!positions.emplace(order.parameters[i].name, i).second) {
      throw Error(ErrorCode::kKey, order.origin, ": ", quote(order.parameters[i].name, 200),
                  " occurs twice");
    }
  }
  return positions;
}

// Returns whether the names are in the order `order`; false if it lacks one.
bool in_order(const std::vector<std::string>& names, const ParameterOrder& order) {
  const auto positions = positions_of(order);
  std::size_t next = 0;
  for (const std::string& name : names) {
    const auto at = positions.find(name);
    if (at == positions.end() || at->second < next) return false;
    next = at->second + 1;
  }
  return true;
}

}  // namespace

bool in_module_order(const std::vector<std::string>& names) {
  std::unordered_set<std::string> left;                 // modules that were left
  std::unordered_set<std::string> biases;               // modules with a bias seen, but no weight
  std::unordered_map<std::string, std::uint64_t> last;  // number of the last numbered child
  std::vector<std::string> open;                        // modules around the last name
  for (const std::string& name : names) {
    std::vector<std::string> modules;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      modules.push_back(name.substr(0, dot));
    std::size_t common = 0;
    while (common < std::min(modules.size(), open.size()) && modules[common] == open[common])
      ++common;
    for (std::size_t i = common; i < open.size(); ++i) left.insert(open[i]);
    for (std::size_t i = common; i < modules.size(); ++i) {
      if (left.contains(modules[i])) return false;
      const std::string parent = i == 0 ? std::string() : modules[i - 1];
      const std::string child = modules[i].substr(i == 0 ? 0 : parent.size() + 1);
      if (child.size() > 18 || child.find_first_not_of("0123456789") != std::string::npos) continue;
      const auto [at, fresh] = last.try_emplace(parent, number(child));
      if (!fresh && number(child) < at->second) return false;
      at->second = number(child);
    }
    const std::string module = modules.empty() ? std::string() : modules.back();
    const std::string own = name.substr(module.empty() ? 0 : module.size() + 1);
    if (own == "bias") biases.insert(module);
    if (own == "weight" && biases.contains(module)) return false;
    open = std::move(modules);
  }
  return true;
}

ParameterOrder order_of_model(const Value& model, std::string origin, bool certain) {
  ParameterOrder order;
  order.origin = std::move(origin);
  std::vector<std::string> names;  // of all tensors
  const auto entries = mapping_entries(model);
  if (!entries) return order;
  std::set<std::tuple<StorageRef::Identity, std::uint64_t, Shape>> seen;  // tied tensors share one
  for (const auto& [key, value] : *entries) {
    const auto tensor = dense_tensor(value);
    if (key.as_string() != nullptr && tensor) names.push_back(*key.as_string());
    if (key.as_string() == nullptr || !tensor || is_buffer(*key.as_string(), tensor->dtype))
      continue;
    const bool first =
        seen.emplace(tensor->storage->identity(), tensor->storage_offset, tensor->shape).second;
    (first ? order.parameters : order.tied).push_back({*key.as_string(), tensor->shape});
  }
  order.certain = certain && in_module_order(names);
  return order;
}

std::map<std::string, std::string> names_of_ids(const OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order) {
  const bool named = std::ranges::all_of(optimizer.groups, [](const auto& group) {
    return group.param_names.size() == group.params.size();
  });
  if (named) {
    std::map<std::string, std::string> names;
    std::unordered_map<std::string, std::string> taken;
    for (const auto& group : optimizer.groups) {
      for (std::size_t i = 0; i < group.params.size(); ++i) {
        const auto [at, fresh] = taken.emplace(group.param_names[i], group.params[i]);
        if (!fresh) {
          throw Error(ErrorCode::kRekeyCollision, "parameters ", at->second, " and ",
                      group.params[i], " are both named ", quote(group.param_names[i], 200));
        }
        names.emplace(group.params[i], group.param_names[i]);
      }
    }
    return names;
  }
  if (!order) {
    throw Error(ErrorCode::kKey, "its parameters are numbers, and their names are unknown",
                {Remedy::kGiveModel});
  }
  positions_of(*order);
  return Matcher(optimizer, *order).run();
}

std::map<std::string, std::string> ids_of_names(OptimizerState& optimizer,
                                                const std::optional<ParameterOrder>& order,
                                                const std::optional<ParameterOrder>& model,
                                                bool ordered) {
  std::map<std::string, std::string> ids;
  if (order) {
    if (!order->certain && optimizer.parameter_count() > 1 && order->parameters.size() > 1) {
      throw ambiguous("0", order->parameters[0].name, order->parameters[1].name,
                      "the order in " + order->origin + " may not be the model's");
    }
    const auto positions = positions_of(*order);
    for (auto& group : optimizer.groups) {
      for (const std::string& name : group.params) {
        const auto at = positions.find(name);
        if (at == positions.end())
          throw Error(ErrorCode::kKey, quote(name, 200), " is not a parameter of ", order->origin);
        ids.emplace(name, std::to_string(at->second));
      }
      // A sorted list does not keep the model's order.
      if (!ordered || std::ranges::is_sorted(group.params)) {
        std::ranges::sort(group.params, {},
                          [&](const std::string& name) { return positions.at(name); });
      }
    }
    return ids;
  }
  std::size_t next = 0;
  for (const auto& group : optimizer.groups) {
    const auto& params = group.params;
    const bool sorted = std::ranges::is_sorted(params);
    if (params.size() > 1 && (sorted || !ordered) && !(model && in_order(params, *model))) {
      throw ambiguous(std::to_string(next), params[0], params[1],
                      ordered
                          ? "the names of its group are sorted, so the optimizer's order is lost"
                          : "the names of its group are in the order of the folder, which is "
                            "not the optimizer's");
    }
    for (const std::string& name : params) ids.emplace(name, std::to_string(next++));
  }
  return ids;
}

void check_shapes(const OptimizerState& optimizer, const std::map<std::string, std::string>& names,
                  const ParameterOrder& model) {
  const auto positions = positions_of(model);
  const Kept kept = kept_tensors(optimizer);
  for (const auto& [key, name] : names) {
    const auto at = positions.find(name);
    const auto tied = std::ranges::find(model.tied, name, &ModelParameter::name);
    if (at == positions.end() && tied == model.tied.end()) {
      throw Error(ErrorCode::kKey, quote(name, 200), " is not a parameter of ", model.origin,
                  "; rename one of the two");
    }
    const ModelParameter& parameter = at == positions.end() ? *tied : model.parameters[at->second];
    if (const Shape* shape = misfit(kept, key, parameter))
      throw shape_error(key, *shape, parameter, model);
  }
}

}  // namespace fsdp::formats
