// SPDX-License-Identifier: Apache-2.0
#include "formats/hf/architecture.h"

#include <regex.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/hf/architecture_data.h"
#include "formats/hf/config_values.h"

namespace fsdp::formats::hf {
namespace {

// No model has as many tensors, or layers of one stack.
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::int64_t kMaxLayers = 100'000;
// Longer names are not those of a model, and an expression takes time that grows with them.
constexpr std::size_t kMaxIgnored = 500;

using Numbers = std::set<std::int64_t>;

const std::string& text_of(const Json& value) {
  static const std::string none;
  return value.as_string() == nullptr ? none : *value.as_string();
}

const Json::Array& list_of(const Json* value) {
  static const Json::Array none;
  return value == nullptr || value->as_array() == nullptr ? none : *value->as_array();
}

std::string value_text(const Json& value) {
  return value.as_string() != nullptr ? *value.as_string() : to_text(value);
}

// Which of `count` layers have something.
class Selection {
 public:
  Selection(const ConfigValues& values, std::int64_t count) : values_(values), count_(count) {}

  // All of the predicates [word, path, ...].  Nothing if the configuration does not tell.
  std::optional<Numbers> all_of(const Json::Array& predicates, std::size_t first = 0) const {
    Numbers out = where([](std::int64_t) { return true; });
    for (std::size_t i = first; i < predicates.size(); ++i) {
      const auto found = one(list_of(&predicates[i]));
      if (!found) return std::nullopt;
      std::erase_if(out, [&](std::int64_t number) { return !found->contains(number); });
    }
    return out;
  }

 private:
  Numbers where(const std::function<bool(std::int64_t)>& test) const {
    Numbers out;
    for (std::int64_t i = 0; i < count_; ++i) {
      if (test(i)) out.insert(out.end(), i);
    }
    return out;
  }

  std::optional<Numbers> one(const Json::Array& words) const {
    if (words.empty()) return std::nullopt;
    const std::string& word = text_of(words[0]);
    if (word == "not") {
      const auto found = all_of(words, 1);
      if (!found) return std::nullopt;
      return where([&](std::int64_t i) { return !found->contains(i); });
    }
    if (words.size() == 1) return by_place(word);
    const auto value = values_.field(text_of(words[1]));
    if (!value) return std::nullopt;
    if (value->as_array() != nullptr) return by_list(word, *value->as_array(), words);
    if (value->as_int() == nullptr) return std::nullopt;
    if (words.size() == 2) return by_number(word, *value->as_int());
    const auto other = values_.field(text_of(words[2]));
    if (!other || other->as_int() == nullptr || *value->as_int() <= 0) return std::nullopt;
    const bool same = word == "% ==";
    return where(
        [&](std::int64_t i) { return (i % *value->as_int() == *other->as_int()) == same; });
  }

  std::optional<Numbers> by_place(const std::string& word) const {
    if (word == "> 0") return where([](std::int64_t i) { return i > 0; });
    if (word == "== 0") return where([](std::int64_t i) { return i == 0; });
    if (word == "< last") return where([&](std::int64_t i) { return i < count_ - 1; });
    if (word == "== last") return where([&](std::int64_t i) { return i == count_ - 1; });
    if (word == "even") return where([](std::int64_t i) { return i % 2 == 0; });
    if (word == "odd") return where([](std::int64_t i) { return i % 2 == 1; });
    return std::nullopt;
  }

  // "is": the layer's element is one of those listed; "in": its number is an element.
  std::optional<Numbers> by_list(const std::string& word, const Json::Array& list,
                                 const Json::Array& words) const {
    if (word == "is") {
      if (words.size() < 3 || static_cast<std::int64_t>(list.size()) < count_) return std::nullopt;
      std::set<std::string> kinds;
      for (const Json& kind : list_of(&words[2])) kinds.insert(value_text(kind));
      return where([&](std::int64_t i) {
        return kinds.contains(value_text(list[static_cast<std::size_t>(i)]));
      });
    }
    if (word != "in" && word != "not in") return std::nullopt;
    Numbers inside;
    for (const Json& element : list) {
      if (element.as_int() != nullptr) inside.insert(*element.as_int());
    }
    return where([&](std::int64_t i) { return inside.contains(i) == (word == "in"); });
  }

  std::optional<Numbers> by_number(const std::string& word, std::int64_t value) const {
    if (word == ">=") return where([&](std::int64_t i) { return i >= value; });
    if (word == "<") return where([&](std::int64_t i) { return i < value; });
    if (word == "==") return where([&](std::int64_t i) { return i == value; });
    if (word == "!=") return where([&](std::int64_t i) { return i != value; });
    if (word == ">= count-") return where([&](std::int64_t i) { return i >= count_ - value; });
    if (word == "< count-") return where([&](std::int64_t i) { return i < count_ - value; });
    if (value <= 0) return std::nullopt;
    if (word == "%") return where([&](std::int64_t i) { return i % value == 0; });
    if (word == "+1%") return where([&](std::int64_t i) { return (i + 1) % value == 0; });
    if (word == "not %") return where([&](std::int64_t i) { return i % value != 0; });
    if (word == "not +1%") return where([&](std::int64_t i) { return (i + 1) % value != 0; });
    return std::nullopt;
  }

  const ConfigValues& values_;
  std::int64_t count_;
};

// Puts the numbers in the place of "{}".
std::string filled(const std::string& pattern, const std::vector<std::int64_t>& numbers) {
  std::string out;
  std::size_t at = 0;
  for (const std::int64_t number : numbers) {
    const std::size_t place = pattern.find("{}", at);
    if (place == std::string::npos) break;
    out += cat(pattern.substr(at, place - at), number);
    at = place + 2;
  }
  return out + pattern.substr(at);
}

// Puts "{}" in the place of numbers between dots, which are returned.
std::pair<std::string, std::vector<std::int64_t>> pattern_of(const std::string& name) {
  std::pair<std::string, std::vector<std::int64_t>> out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.size() <= 9 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    if (number) out.second.push_back(std::stoll(part));
    out.first += (begin == 0 ? "" : ".") + (number ? "{}" : part);
    begin = end + 1;
  }
  return out;
}

// The tensors of one layout, by the entries of the data.
class Expansion {
 public:
  Expansion(const ConfigValues& values, std::map<std::string, ExpectedTensor>& out)
      : values_(values), out_(out) {}

  // `tail`: [conditions or null, ranges or null, sizes or null, may be missing].
  void add(const std::string& pattern, const Json::Array& tail) {
    if (tail.size() < 4) return;
    ExpectedTensor tensor;
    tensor.required = tail[3].as_int() == nullptr || *tail[3].as_int() == 0;
    for (const Json& condition : list_of(&tail[0])) {
      const auto holds = values_.holds(condition);
      if (holds && !*holds) return;
      if (!holds) tensor.required = false;
    }
    if (tail[2].as_array() != nullptr) {
      tensor.shape.emplace();
      for (const Json& size : *tail[2].as_array()) {
        const auto number =
            size.as_string() == nullptr ? std::nullopt : values_.number(*size.as_string());
        tensor.shape->push_back(number.value_or(-1));
      }
    }
    std::vector<std::vector<std::int64_t>> places = {{}};
    for (const Json& range : list_of(&tail[1])) {
      const Json::Array& words = list_of(&range);
      if (words.size() < 2) return;
      const auto count =
          words[0].as_string() == nullptr ? std::nullopt : values_.number(*words[0].as_string());
      if (!count) {
        // Whatever is there may be there.
        any_.insert({pattern, tensor});
        return;
      }
      if (*count > kMaxLayers) too_many(pattern);
      const Selection selection(values_, *count);
      auto chosen =
          words[1].as_array() == nullptr ? std::nullopt : selection.all_of(*words[1].as_array());
      if (!chosen) {
        tensor.required = false;
        chosen = selection.all_of({});
      }
      std::vector<std::vector<std::int64_t>> longer;
      if (places.size() * chosen->size() > kMaxTensors) too_many(pattern);
      for (const auto& place : places) {
        for (const std::int64_t number : *chosen) {
          longer.push_back(place);
          longer.back().push_back(number);
        }
      }
      places = std::move(longer);
    }
    if (out_.size() + places.size() > kMaxTensors) too_many(pattern);
    for (const auto& place : places) out_.insert_or_assign(filled(pattern, place), tensor);
  }

  const std::map<std::string, ExpectedTensor>& any() const { return any_; }

 private:
  [[noreturn]] static void too_many(const std::string& pattern) {
    throw Error(ErrorCode::kLimitNodes, cat("config.json asks for more than ", kMaxTensors,
                                            " tensors ", quote(pattern, 200)));
  }

  const ConfigValues& values_;
  std::map<std::string, ExpectedTensor>& out_;
  std::map<std::string, ExpectedTensor> any_;  // patterns with any numbers
};

// Returns the first part of the configuration that is of another model than the data are of; empty:
// none.
std::string other_inside(const Json& config, const Json& data) {
  const Json* inside = data.find("sub");
  if (inside == nullptr || inside->as_object() == nullptr) return {};
  for (const auto& [path, type] : *inside->as_object()) {
    const Json* at = &config;
    for (std::size_t begin = 0; at != nullptr && begin <= path.size();) {
      const std::size_t end = std::min(path.find('.', begin), path.size());
      at = at->find(path.substr(begin, end - begin));
      begin = end + 1;
    }
    const Json* own = at == nullptr ? nullptr : at->find("model_type");
    if (own != nullptr && own->as_string() != nullptr && *own->as_string() != text_of(type))
      return cat(path, " is of model_type ", quote(*own->as_string(), 100));
  }
  return {};
}

// The name of what is quantized: of a module, or of a parameter that is no module's weight.
std::string quantized_part(const std::string& name) {
  static constexpr std::string_view kEnds[] = {"_scale_inv", "_scale", "_blocks", "_scales"};
  std::string out = name;
  for (const std::string_view end : kEnds) {
    if (out.ends_with(end)) out.resize(out.size() - end.size());
  }
  constexpr std::string_view kWeight = ".weight";
  if (out.ends_with(kWeight)) out.resize(out.size() - kWeight.size());
  return out;
}

// What stands before the last dot: methods have parts of their own, "q_proj.qweight".
std::string module_of(const std::string& name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

std::string sizes_text(const std::vector<std::int64_t>& shape) {
  std::string out;
  for (const std::int64_t size : shape)
    out += (out.empty() ? "" : ", ") + (size < 0 ? std::string("?") : std::to_string(size));
  return "[" + out + "]";
}

bool fits(const ExpectedTensor& expected, const std::vector<std::int64_t>& shape) {
  if (!expected.shape) return true;
  return expected.shape->size() == shape.size() &&
         std::equal(shape.begin(), shape.end(), expected.shape->begin(),
                    [](std::int64_t a, std::int64_t b) { return b < 0 || a == b; });
}

}  // namespace

std::optional<Architecture> Architecture::of(const Json& config, std::string& unknown) {
  const Json* type = config.find("model_type");
  if (type == nullptr || type->as_string() == nullptr) {
    unknown = "config.json has no model_type";
    return std::nullopt;
  }
  const auto data = architecture_data(*type->as_string());
  if (!data) {
    unknown = cat("model_type ", quote(*type->as_string(), 100), " is not known");
    return std::nullopt;
  }
  if (std::string other = other_inside(config, *data); !other.empty()) {
    unknown = std::move(other);
    return std::nullopt;
  }
  Architecture out;
  const Json::Array& named = list_of(config.find("architectures"));
  out.assumed_ = named.size() != 1;
  out.name_ = out.assumed_ ? text_of(*data->find("main")) : text_of(named[0]);
  const Json* const classes = data->find("classes");
  const Json* const own = classes == nullptr ? nullptr : classes->find(out.name_);
  if (own == nullptr) {
    unknown = cat("class ", quote(out.name_, 100), " of model_type ",
                  quote(*type->as_string(), 100), " is not known");
    return std::nullopt;
  }
  out.producer_ = architecture_producer();
  const Json* quantization = config.find("quantization_config");
  out.quantized_ = quantization != nullptr && !quantization->is_null();
  const ConfigValues values(config, *data);
  const Json::Array& entries = list_of(data->find("entries"));
  const Json::Array& tails = list_of(data->find("tails"));
  const Json* const front = own->find("front");
  if (front != nullptr) out.front_ = text_of(*front);
  for (const char* which : {"file", "module"}) {
    const Json* const numbers = own->find(which);
    if (numbers == nullptr) continue;
    Expected expected;
    Expansion expansion(values, expected);
    std::int64_t at = 0;
    for (const Json& step : list_of(numbers)) {
      at += *step.as_int();
      const Json::Array& entry = list_of(&entries.at(static_cast<std::size_t>(at)));
      const std::string& name = text_of(entry.at(0));
      expansion.add(name.starts_with("~") ? out.front_ + name.substr(1) : name,
                    list_of(&tails.at(static_cast<std::size_t>(*entry.at(1).as_int()))));
    }
    for (const auto& [pattern, tensor] : expansion.any()) out.any_.insert({pattern, tensor});
    out.layouts_.push_back(std::move(expected));
  }
  if (const Json* tied = own->find("tied"); tied != nullptr && tied->as_object() != nullptr) {
    for (const auto& [name, to] : *tied->as_object()) out.tied_[name] = text_of(to);
  }
  for (const Json& one : list_of(own->find("ignored"))) out.ignored_.push_back(text_of(one));
  return out;
}

bool Architecture::ignores(const std::string& name) const {
  if (name.size() > kMaxIgnored) return false;
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return std::any_of(ignored_.begin(), ignored_.end(), [&](const std::string& expression) {
    regex_t compiled;
    if (::regcomp(&compiled, expression.c_str(), REG_EXTENDED | REG_NOSUB) != 0) return false;
    const bool matches = ::regexec(&compiled, name.c_str(), 0, nullptr, 0) == 0;
    ::regfree(&compiled);
    return matches;
  });
}

std::string Architecture::tied_to(const std::string& name) const {
  if (const auto found = tied_.find(name); found != tied_.end()) return found->second;
  const auto [pattern, numbers] = pattern_of(name);
  const auto found = tied_.find(pattern);
  return found == tied_.end() ? std::string() : filled(found->second, numbers);
}

ModelDifferences Architecture::compared(const Expected& expected,
                                        const NamedShapes& tensors) const {
  ModelDifferences out;
  // A configuration may speak of quantization that the weights do not have any more.
  const bool quantized =
      quantized_ && std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return !expected.contains(tensor.first);
      });
  std::set<std::string> present;
  std::set<std::string> modules;
  for (const auto& [name, shape] : tensors) {
    present.insert(name);
    if (quantized) modules.insert({quantized_part(name), module_of(name)});
  }
  std::set<std::string> known;  // parts of what is expected
  if (quantized) {
    for (const auto& [name, tensor] : expected) known.insert(quantized_part(name));
  }
  std::set<std::string> sources;  // of tied tensors that are there under their other name
  for (const auto& [name, shape] : tensors) {
    auto found = expected.find(name);
    const std::string source = found == expected.end() ? tied_to(name) : std::string();
    if (!source.empty()) {
      sources.insert(source);
      found = expected.find(source);
    }
    if (found == expected.end()) {
      const auto any = any_.find(pattern_of(name).first);
      if (any != any_.end() || ignores(name) ||
          (quantized && (known.contains(quantized_part(name)) || known.contains(module_of(name)))))
        continue;
      out.unexpected.push_back(name);
      continue;
    }
    ++out.matching;
    if (!quantized && !fits(found->second, shape)) {
      out.shapes.push_back(cat(quote(name, 200), " ", shape_text(shape), ", expected ",
                               sizes_text(*found->second.shape)));
    }
  }
  for (const auto& [name, tensor] : expected) {
    if (!tensor.required || present.contains(name) || sources.contains(name)) continue;
    if (quantized && modules.contains(quantized_part(name))) continue;
    out.missing.push_back(name);
  }
  return out;
}

ModelDifferences Architecture::differences(const NamedShapes& tensors) const {
  std::optional<ModelDifferences> least;
  for (const Expected& layout : layouts_) {
    ModelDifferences found = compared(layout, tensors);
    found.as_files = &layout == &layouts_.front();
    if (!least || found.count() < least->count()) least = std::move(found);
  }
  return least.value_or(ModelDifferences());
}

}  // namespace fsdp::formats::hf
