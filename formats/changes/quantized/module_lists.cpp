// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/module_lists.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::array<std::string_view, 4> kMembers = {
    "ignore", "exclude_modules", "modules_to_not_convert", "llm_int8_skip_modules"};
// Characters of patterns times characters of names: about a second.
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 30U;
constexpr std::string_view kExpertsPart = ".experts.";
constexpr std::string_view kHeadModule = "lm_head";
constexpr std::string_view kEmbeddingModule = "embed_tokens";

bool is_digit(char c) {
  return '0' <= c && c <= '9';
}

// Appends a character that stands for itself.
void append_literal(std::string& glob, char c) {
  if (c == '*' || c == '?' || c == '[') {
    glob += {'[', c, ']'};
  } else {
    glob += c;
  }
}

// Returns a regular expression of Python's re.match as a glob; nothing if it has more than names
// and `.*`.
std::optional<std::string> glob_of_expression(std::string_view text) {
  std::string glob;
  if (text.starts_with('^')) text.remove_prefix(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '$' && i + 1 == text.size()) return glob;
    if (c == '\\') {
      const char next = i + 1 < text.size() ? text[++i] : 'd';
      if (is_digit(next) || ('a' <= (next | 0x20) && (next | 0x20) <= 'z')) return std::nullopt;
      append_literal(glob, next);
    } else if (c == '.' && i + 1 < text.size() && text[i + 1] == '*') {
      glob += "**";
      ++i;
    } else if (c == '.') {
      glob += "[!\x01]";  // any character
    } else if (std::string_view("*+?{}()[]|^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      append_literal(glob, c);
    }
  }
  return glob + "**";  // re.match looks at the beginning alone
}

// Returns a pattern of fnmatch as a glob; nothing if it has sets.
std::optional<std::string> glob_of_wildcards(std::string_view text) {
  std::string glob;
  for (const char c : text) {
    if (c == '[') return std::nullopt;
    if (c == '*') {
      glob += "**";
    } else {
      glob += c == '?' ? std::string("[!\x01]") : std::string(1, c);
    }
  }
  return glob;
}

// "a.0.b.12.c" -> "a.*.b.*.c".
std::string without_numbers(const std::string& name) {
  std::string out;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool number = !part.empty() && std::ranges::all_of(part, is_digit);
    out += cat(begin == 0 ? "" : ".", number ? "*" : part);
    begin = end + 1;
  }
  return out;
}

// Returns the name of the stack that an expert's matrix belongs to: "a.experts.*.up_proj"; empty.
std::string stack_of(const std::string& module) {
  const std::size_t at = module.rfind(kExpertsPart);
  if (at == std::string::npos) return {};
  const std::size_t number = at + kExpertsPart.size();
  std::size_t end = number;
  while (end < module.size() && is_digit(module[end])) ++end;
  if (end == number || end == module.size() || module[end] != '.') return {};
  return cat(module.substr(0, number), "*", module.substr(end));
}

Finding about(const ModuleState& module, std::string message) {
  return {.code = ErrorCode::kQuantConfig, .message = std::move(message), .key = module.weight};
}

class Comparison {
 public:
  Comparison(const Json& config, const Settings& settings,
             const std::map<std::string, ModuleState>& modules)
      : config_(config), settings_(settings), modules_(modules), lists_(config, settings.dialect) {}

  ModuleFindings run(bool tied) {
    std::uint64_t names = 0;
    for (const auto& [module, state] : modules_) names += module.size();
    if (names * lists_.pattern_size() > kMostSteps) {
      out_.left = cat("lists of modules: ", lists_.pattern_size(), " characters of patterns for ",
                      modules_.size(), " modules are too many");
    } else {
      find_listed();
      find_left_out();
    }
    if (tied) find_tied();
    find_mixed_stacks();
    return std::move(out_);
  }

 private:
  // Finds quantized modules that a list names.
  void find_listed() {
    for (const auto& [module, state] : modules_) {
      if (state.scheme.empty()) continue;
      if (const auto* const entry = lists_.entry_for(module)) {
        out_.findings.push_back(
            about(state, cat("is quantized (", state.scheme, "), but ", quote(entry->first, 100),
                             " in ", entry->second, " says that it is not")));
      }
    }
  }

  // Finds modules that are not quantized, nor listed, while the same module of other layers is.
  void find_left_out() {
    if (!names_all_linear()) return;
    std::map<std::string, std::size_t> quantized;
    for (const auto& [module, state] : modules_) {
      if (!state.scheme.empty()) ++quantized[without_numbers(module)];
    }
    for (const auto& [module, state] : modules_) {
      if (!state.scheme.empty() || is_undivided(state) || !stack_of(module).empty()) continue;
      const auto others = quantized.find(without_numbers(module));
      if (others == quantized.end() || lists_.may_mean(module)) continue;
      out_.findings.push_back(
          about(state, cat("is ", state.tensor, " and not quantized, but ", others->second, " of ",
                           quote(others->first, 200),
                           " are; the configuration does not list it as left alone")));
    }
  }

  // Returns whether the configuration means every linear layer that it does not list.
  bool names_all_linear() const {
    if (settings_.dialect == Dialect::kTransformersFp8) return true;
    if (settings_.dialect == Dialect::kModelOpt) {
      const Json* const inner = config_.find("quantization");
      return config_.find("quantized_layers") == nullptr &&
             (inner == nullptr || inner->find("quantized_layers") == nullptr);
    }
    const Json* const groups = config_.find("config_groups");
    if (settings_.dialect != Dialect::kCompressedTensors || groups == nullptr ||
        groups->as_object() == nullptr)
      return false;
    return std::ranges::any_of(*groups->as_object(), [](const auto& group) {
      const Json* const targets = group.second.find("targets");
      return targets != nullptr && targets->as_array() != nullptr &&
             std::ranges::any_of(*targets->as_array(), [](const Json& target) {
               return target.as_string() != nullptr && *target.as_string() == "Linear";
             });
    });
  }

  // Returns whether transformers leaves the weight as it is because blocks do not divide it.
  bool is_undivided(const ModuleState& state) const {
    if (settings_.dialect != Dialect::kTransformersFp8) return false;
    const Scheme& scheme = settings_.schemes.front();
    return scheme.sharing == Sharing::kBlocks && state.shape.size() == 2 &&
           (state.shape[0] % scheme.rows != 0 || state.shape[1] % scheme.columns != 0);
  }

  void find_tied() {
    const auto head = modules_.find(std::string(kHeadModule));
    const auto embedding = std::ranges::find_if(modules_, [](const auto& module) {
      return module.first == kEmbeddingModule || module.first.ends_with(cat(".", kEmbeddingModule));
    });
    if (head == modules_.end() || embedding == modules_.end()) return;
    const ModuleState& one = head->second;
    const ModuleState& other = embedding->second;
    if (one.scheme == other.scheme) return;
    const auto told = [](const ModuleState& state) {
      return state.scheme.empty() ? cat("not quantized (", state.tensor, ")")
                                  : cat("quantized (", state.scheme, ")");
    };
    out_.findings.push_back(
        about(one, cat("is ", told(one), ", but ", quote(other.weight, 200), ", to which ",
                       "tie_word_embeddings ties it, is ", told(other))));
  }

  void find_mixed_stacks() {
    struct Member {
      const ModuleState* first;
      std::size_t count = 0;
    };
    std::map<std::string, std::map<std::string, Member>> stacks;
    for (const auto& [module, state] : modules_) {
      const std::string stack = stack_of(module);
      if (stack.empty()) continue;
      Member& member = stacks[stack].try_emplace(state.scheme, Member{&state}).first->second;
      ++member.count;
    }
    for (const auto& [stack, schemes] : stacks) {
      if (schemes.size() == 1) continue;
      SomeNames told(4);
      const Member* least = nullptr;
      for (const auto& [scheme, member] : schemes) {
        told.add(cat(member.count, " ", scheme.empty() ? "not quantized" : scheme));
        if (least == nullptr || member.count < least->count) least = &member;
      }
      Finding finding = about(*least->first, cat("experts of one stack, ", quote(stack, 200),
                                                 ", have several schemes: ", told.text(),
                                                 "; engines hold a stack in one scheme"));
      finding.severity = Finding::Severity::kWarning;
      out_.findings.push_back(std::move(finding));
    }
  }

  const Json& config_;
  const Settings& settings_;
  const std::map<std::string, ModuleState>& modules_;
  ModuleLists lists_;
  ModuleFindings out_;
};

}  // namespace

ModuleLists::ModuleLists(const Json& config, Dialect dialect) : dialect_(dialect) {
  const Json* const inner = config.find("quantization");  // of older hf_quant_config.json
  for (const Json* const from : {&config, inner}) {
    for (const std::string_view member : kMembers) {
      const Json* const list = from == nullptr ? nullptr : from->find(member);
      if (list == nullptr || list->as_array() == nullptr) continue;
      for (const Json& one : *list->as_array()) {
        if (one.as_string() != nullptr) add(std::string(member), *one.as_string());
      }
    }
  }
}

void ModuleLists::add(const std::string& member, const std::string& text) {
  constexpr std::string_view kExpression = "re:";
  std::optional<std::string> glob;
  if (dialect_ == Dialect::kCompressedTensors && text.starts_with(kExpression)) {
    glob = glob_of_expression(std::string_view(text).substr(kExpression.size()));
  } else if (dialect_ == Dialect::kModelOpt && text.find_first_of("*?[") != std::string::npos) {
    glob = glob_of_wildcards(text);
  } else {
    names_.try_emplace(text, text, member);
    return;
  }
  if (!glob) {
    unclear_ = true;
    return;
  }
  pattern_size_ += glob->size();
  patterns_.push_back({{text, member}, Glob(*glob)});
}

const std::pair<std::string, std::string>* ModuleLists::entry_for(const std::string& module) const {
  // transformers also takes the end of a name.
  const bool ends = dialect_ != Dialect::kCompressedTensors && dialect_ != Dialect::kModelOpt;
  for (std::size_t at = 0; at != std::string::npos;) {
    const auto found = names_.find(std::string_view(module).substr(at));
    if (found != names_.end()) return &found->second;
    at = ends ? module.find('.', at) : std::string::npos;
    if (at != std::string::npos) ++at;
  }
  for (const Pattern& pattern : patterns_) {
    if (pattern.glob.matches(module)) return &pattern.entry;
  }
  return nullptr;
}

bool ModuleLists::may_mean(const std::string& module) const {
  if (unclear_ || entry_for(module) != nullptr) return true;
  // Any run of its parts.
  for (std::size_t begin = 0; begin < module.size();) {
    for (std::size_t end = module.find('.', begin);; end = module.find('.', end + 1)) {
      const std::size_t stop = std::min(end, module.size());
      if (names_.contains(std::string_view(module).substr(begin, stop - begin))) return true;
      if (stop == module.size()) break;
    }
    const std::size_t dot = module.find('.', begin);
    begin = dot == std::string::npos ? module.size() : dot + 1;
  }
  return false;
}

ModuleFindings compare_modules(const Json& config, const Settings& settings, bool tied,
                               const std::map<std::string, ModuleState>& modules) {
  return Comparison(config, settings, modules).run(tied);
}

}  // namespace fsdp::formats::quantized
