// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/averaged_weights.h"

#include <algorithm>
#include <map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/sum.h"
#include "formats/state/content/buffer_names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/box.h"
#include "formats/state/rewrite/rekey.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kNameBytes = 200;
constexpr std::size_t kMostNames = 3;

std::string named(const std::string& key) {
  return key.empty() ? "the top level" : quote(key, kNameBytes);
}

// Returns whether averages of the tensors below `part` leave this one out.
bool is_elsewhere(const std::string& name, const std::string& part) {
  return !part.empty() && !name.starts_with(part + '.');
}

// Throws for parameters that `place` lacks.
void require_all(const SomeNames& missing, const std::string& place) {
  if (missing.count() == 0) return;
  throw Error(ErrorCode::kKey,
              cat(named(place), ": holds no average of ", missing.text(),
                  missing.count() == 1 ? ", whose name is not one that buffers have"
                                       : ", whose names are not those of buffers"));
}

class Replacing {
 public:
  Replacing(const Checkpoint& source, const Value& content,
            const std::optional<ParameterOrder>& given)
      : content_(content),
        source_(source),
        given_(given),
        own_(std::make_shared<arrays::ArraySource>(source)),
        made_(std::make_shared<arrays::ComputedTensors>(
            std::vector<std::shared_ptr<arrays::ArraySource>>{own_})) {}

  AveragedWeights run() {
    const AverageSource averages = only_source();
    const hf::FoundModel model = only_model();
    out_.place = averages.place;
    out_.what = averages.what;
    out_.model = model.place;
    out_.listed = averages.listed && !given_;
    part_ = averages.part;
    take_names(averages, model);
    for (const Leaf& leaf : leaves_of(content_)) leaves_.emplace(leaf.key, leaf);
    replace_all(model);
    out_.content = made_->edited(content_);
    if (out_.computed != 0) out_.checkpoint = made_;
    return std::move(out_);
  }

 private:
  AverageSource only_source() const {
    std::vector<AverageSource> found = average_sources(content_);
    if (found.size() == 1) return std::move(found[0]);
    if (found.empty()) {
      throw Error(ErrorCode::kKey,
                  "holds no averages of weights: no model whose key has ema, swa, shadow or "
                  "average, no list shadow_params, no optimizer that is known to keep them");
    }
    SomeNames places;
    for (const AverageSource& source : found) places.add(named(source.place));
    throw Error(ErrorCode::kUnsupported, cat("holds several averages, ", places.text()),
                {Remedy::kChooseOne});
  }

  hf::FoundModel only_model() const {
    std::vector<hf::FoundModel> models = models_of(content_, false);
    if (models.size() == 1) return std::move(models[0]);
    if (models.empty())
      throw Error(ErrorCode::kKey, "holds averages of weights, but no model that they are of");
    SomeNames places;
    for (const hf::FoundModel& model : models) places.add(named(model.place));
    throw Error(
        ErrorCode::kUnsupported,
        cat("holds averages of weights, and several models that they may be of, ", places.text()),
        {Remedy::kChooseOne});
  }

  // Gives averages their names.
  void take_names(const AverageSource& averages, const hf::FoundModel& model) {
    std::map<std::string, std::string> names;
    if (averages.optimizer) {
      const ParameterOrder order =
          given_ ? *given_
                 : order_of_model(model.tensors, cat("the model ", named(model.place)),
                                  keeps_order(source_));
      names = in_context(named(averages.place),
                         [&] { return names_of_ids(*averages.optimizer, order); });
      if (averages.listed && averages.averages.size() != order.parameters.size()) {
        throw Error(ErrorCode::kKey,
                    cat(named(averages.place), ": has ", averages.averages.size(), " averages, ",
                        order.origin, " ", order.parameters.size(), " parameters"));
      }
      out_.order = order.origin;
    }
    for (const KeptAverage& average : averages.averages) {
      const std::string& name = averages.optimizer ? names.at(average.key) : average.key;
      if (!terms_.emplace(name, average.terms).second)
        throw Error(ErrorCode::kKey,
                    cat(named(averages.place), ": has two averages of ", quote(name, kNameBytes)));
    }
  }

  void replace_all(const hf::FoundModel& model) {
    SomeNames missing(kMostNames);
    std::vector<std::pair<std::string, std::size_t>> without;
    for (const auto& [key, weight] : members_of(model.tensors)) {
      const std::string& name = *key.as_string();
      const auto found = terms_.find(name);
      const std::size_t number = *tensor_number(weight);
      if (found == terms_.end()) {
        without.emplace_back(name, number);
        continue;
      }
      const Value average = average_of(name, number, found->second);
      by_weight_.emplace(number, average);
      put(model, name, average);
      terms_.erase(found);
      ++out_.taken;
    }
    for (const auto& [name, number] : without) {
      // The average of a parameter is also that of its further names.
      if (const auto tied = by_weight_.find(number); tied != by_weight_.end()) {
        put(model, name, tied->second);
      } else if (is_elsewhere(name, part_) ||
                 is_buffer(name, source_.index().tensors[number].dtype)) {
        out_.kept.push_back(name);
      } else {
        missing.add(quote(name, kNameBytes));
      }
    }
    require_all(missing, out_.place);
    SomeNames unknown(kMostNames);
    for (const auto& [name, terms] : terms_) unknown.add(quote(name, kNameBytes));
    if (unknown.count() != 0) {
      throw Error(ErrorCode::kKey, cat(named(out_.place), ": holds averages of ", unknown.text(),
                                       ", which ", named(model.place), " lacks"));
    }
  }

  // Returns the tensor that takes the place of tensor `weight`.
  Value average_of(const std::string& name, std::size_t weight,
                   const std::vector<AverageTerm>& terms) {
    const TensorEntry& own = source_.index().tensors[weight];
    arrays::SumRule rule;
    rule.accumulator = Accumulator::kFloat64;
    std::vector<arrays::Array> parts;
    for (const AverageTerm& term : terms) {
      const auto number = term.tensor ? tensor_number(*term.tensor) : weight;
      if (!number) {
        throw Error(ErrorCode::kType, cat(named(out_.place), ": the average of ",
                                          quote(name, kNameBytes), " is not a plain tensor"));
      }
      const TensorEntry& entry = source_.index().tensors[*number];
      if (entry.shape != own.shape) {
        throw Error(
            ErrorCode::kShape,
            cat(named(out_.place), ": the average of ", quote(name, kNameBytes), " has shape ",
                shape_text(entry.shape), ", the weight ", shape_text(own.shape)));
      }
      if (is_floating(entry.dtype) != is_floating(own.dtype)) {
        throw Error(ErrorCode::kType,
                    cat(named(out_.place), ": the average of ", quote(name, kNameBytes), " is ",
                        torch_name(entry.dtype), ", the weight ", torch_name(own.dtype)));
      }
      if (terms.size() == 1 && term.weight == 1) return tensor_reference(source_, *number);
      rule.weights.push_back(term.weight);
      parts.push_back(own_->array(*number));
    }
    ++out_.computed;
    return made_->separate(
        own.path,
        arrays::sum_of(std::move(parts), std::make_shared<arrays::SumRule>(rule), own.dtype));
  }

  void put(const hf::FoundModel& model, const std::string& name, const Value& average) {
    made_->replace(leaves_.at(model.place.empty() ? name : model.place + "." + name), average);
  }

  const Value& content_;
  const Checkpoint& source_;
  const std::optional<ParameterOrder>& given_;
  std::shared_ptr<arrays::ArraySource> own_;
  std::shared_ptr<arrays::ComputedTensors> made_;
  std::string part_;
  std::map<std::string, Leaf> leaves_;
  std::map<std::string, std::vector<AverageTerm>> terms_;  // by name, until they are taken
  std::map<std::size_t, Value> by_weight_;                 // averages, by the tensor of the weight
  AveragedWeights out_;
};

}  // namespace

AveragedWeights averaged_weights(const Checkpoint& source, const Value& content,
                                 const std::optional<ParameterOrder>& given) {
  return in_context(source.description().path,
                    [&] { return Replacing(source, content, given).run(); });
}

Value with_buffers_of(const hf::FoundModel& model, const hf::FoundModel& averages,
                      std::vector<std::string>& kept) {
  std::vector<Value::Entry> entries(members_of(averages.tensors).begin(),
                                    members_of(averages.tensors).end());
  SomeNames missing(kMostNames);
  bool related = false;
  std::vector<Value::Entry> beside;
  for (const auto& [key, value] : members_of(model.tensors)) {
    const bool has = member(averages.tensors, *key.as_string()) != nullptr;
    related = related || has;
    if (has) continue;
    if (is_elsewhere(*key.as_string(), averages.part.value_or("")) ||
        is_buffer(*key.as_string(), dense_tensor(value)->dtype)) {
      beside.emplace_back(key, value);
    } else {
      missing.add(quote(*key.as_string(), kNameBytes));
    }
  }
  if (!related) return averages.tensors;
  require_all(missing, averages.place);
  for (Value::Entry& entry : beside) {
    kept.push_back(*entry.first.as_string());
    entries.push_back(std::move(entry));
  }
  return Value::dict(std::move(entries));
}

}  // namespace fsdp::formats
