// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/architecture.h"

#include <regex.h>

#include <algorithm>
#include <set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hf/architecture_data.h"
#include "formats/families/hf/config_values.h"
#include "formats/families/hf/json_parts.h"

namespace fsdp::formats::hf {
namespace {

// Longer names do not occur in models, and the time of an expression grows with the name.
constexpr std::size_t kMaxIgnored = 500;

// Returns a text on the first part of `config` whose model_type differs from that in `data`; empty:
// none differs.
std::string other_inside(const Json& config, const Json& data) {
  for (const auto& [path, type] : members_of(data.find("sub"))) {
    const Json* at = part_at(config, path);
    const Json* own = at == nullptr ? nullptr : at->find("model_type");
    if (own != nullptr && own->as_string() != nullptr && *own->as_string() != text_of(type))
      return cat(path, " is of model_type ", quote(*own->as_string(), 100));
  }
  return {};
}

// Returns the name of what is quantized: a module, or a parameter that is not a module's weight.
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

// Returns the text before the last dot: methods have parts of their own, "q_proj.qweight".
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
    Layout layout;
    ExpectedTensors expansion(values, layout.tensors);
    std::int64_t at = 0;
    for (const Json& step : list_of(numbers)) {
      at += *step.as_int();
      const Json::Array& entry = list_of(&entries.at(static_cast<std::size_t>(at)));
      const std::string& name = text_of(entry.at(0));
      expansion.add(name.starts_with("~") ? out.front_ + name.substr(1) : name,
                    list_of(&tails.at(static_cast<std::size_t>(*entry.at(1).as_int()))));
    }
    layout.open = expansion.open();
    out.layouts_.push_back(std::move(layout));
  }
  for (const auto& [name, to] : members_of(own->find("renames"))) out.renames_[name] = text_of(to);
  for (const auto& [name, to] : members_of(own->find("tied"))) out.tied_[name] = text_of(to);
  for (const Json& one : list_of(own->find("ignored"))) out.ignored_.push_back(text_of(one));
  return out;
}

bool Architecture::ignores(const std::string& name) const {
  if (name.size() > kMaxIgnored) return false;
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return std::ranges::any_of(ignored_, [&](const std::string& expression) {
    regex_t compiled;
    if (::regcomp(&compiled, expression.c_str(), REG_EXTENDED | REG_NOSUB) != 0) return false;
    const bool matches = ::regexec(&compiled, name.c_str(), 0, nullptr, 0) == 0;
    ::regfree(&compiled);
    return matches;
  });
}

ModelDifferences Architecture::compared(const Layout& layout, const NamedShapes& tensors) const {
  ModelDifferences out;
  const auto& expected = layout.tensors;
  // A configuration may still name a quantization that the weights no longer have.
  const bool quantized = quantized_ && std::ranges::any_of(tensors, [&](const auto& tensor) {
                           return !expected.contains(tensor.first);
                         });
  std::set<std::string> present;
  std::set<std::string> modules;
  for (const auto& [name, shape] : tensors) {
    present.insert(name);
    if (quantized) modules.insert({quantized_part(name), module_of(name)});
  }
  std::set<std::string> known;  // quantized parts of expected tensors
  if (quantized) {
    for (const auto& [name, tensor] : expected) known.insert(quantized_part(name));
  }
  std::set<std::string> sources;  // tensors that are present under a name tied to theirs
  for (const auto& [name, shape] : tensors) {
    auto found = expected.find(name);
    // A tensor that is tied to another one.
    const std::string source = found == expected.end() ? translated(tied_, name) : std::string();
    if (!source.empty()) {
      sources.insert(source);
      found = expected.find(source);
    }
    if (found == expected.end()) {
      // The name may match a pattern whose numbers the configuration does not tell.
      const bool open =
          std::ranges::any_of(layouts_, [&](const Layout& one) { return one.open.match(name); });
      if (open || ignores(name) ||
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
  const auto there = [&](const std::string& name) {
    return present.contains(name) || sources.contains(name);
  };
  std::set<std::string> begun;  // companies with a tensor that is present
  for (const auto& [name, tensor] : expected) {
    if (!tensor.company.empty() && there(name)) begun.insert(tensor.company);
  }
  for (const auto& [name, tensor] : expected) {
    if (there(name) || (!tensor.required && !begun.contains(tensor.company))) continue;
    if (quantized && modules.contains(quantized_part(name))) continue;
    out.missing.push_back(name);
  }
  if (!quantized) {
    for (std::string& name : layout.open.missing(present)) {
      if (!expected.contains(name)) out.missing.push_back(std::move(name));
    }
  }
  return out;
}

ModuleNames Architecture::module_names(const NamedShapes& tensors) const {
  ModuleNames out;
  if (layouts_.size() < 2) return out;
  const ModelDifferences before = differences(tensors);
  if (!before.as_files) return out;
  NamedShapes modules = tensors;
  for (auto& [name, shape] : modules) {
    const std::string module = translated(renames_, name);
    if (module.empty()) continue;
    out.renamed.emplace(name, module);
    name = module;
  }
  const Layout& layout = layouts_[1];
  const ModelDifferences found = compared(layout, modules);
  // Open patterns of files do not tell that the modules have a name, too.
  const bool all_there = std::ranges::all_of(modules, [&](const auto& tensor) {
    return layout.tensors.contains(tensor.first) || layout.open.match(tensor.first) ||
           !layouts_[0].open.match(tensor.first);
  });
  out.known = !renames_.empty() && found.unexpected.empty() && found.shapes.empty() && all_there &&
              (found.missing.empty() || !before.missing.empty());
  if (!out.known) out.renamed.clear();
  return out;
}

ModelDifferences Architecture::differences(const NamedShapes& tensors) const {
  std::optional<ModelDifferences> least;
  for (const Layout& layout : layouts_) {
    ModelDifferences found = compared(layout, tensors);
    found.as_files = &layout == &layouts_.front();
    if (least && least->empty() && found.empty()) least->as_modules = true;
    if (!least || found.count() < least->count()) least = std::move(found);
  }
  return least.value_or(ModelDifferences());
}

}  // namespace fsdp::formats::hf
