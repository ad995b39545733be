// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/rules.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/node_reader.h"

namespace fsdp::formats::map {
namespace {

// A model has some tens of kinds of tensors.
constexpr std::size_t kMaxRules = 4096;
constexpr std::size_t kMaxPatterns = 1024;
constexpr std::size_t kMaxOperations = 64;

std::string capture_list(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "{" : ", {") + name + "}";
  return text.empty() ? "none" : text;
}

Pattern pattern_of(const RuleNode& node, const std::string& text) {
  try {
    return Pattern(text);
  } catch (const Error& error) {
    throw wrong(node, error.what());
  }
}

std::vector<Pattern> patterns_of(const RuleNode& node, const char* what) {
  std::vector<Pattern> patterns;
  for (const std::string& text : texts_of(node, what)) {
    if (patterns.size() == kMaxPatterns)
      throw wrong(node, cat(what, " has more than ", kMaxPatterns, " patterns"));
    patterns.push_back(pattern_of(node, text));
  }
  return patterns;
}

Error at_line(std::uint64_t line, const std::string& why) {
  return Error(ErrorCode::kUsage, cat("line ", line, ": ", why));
}

class Parser {
 public:
  Parser(const RuleNode& root, Direction direction) : root_(root), direction_(direction) {}

  Rules run() {
    NodeReader reader(root_, "a map", 1);
    if (const RuleNode* node = reader.find("description"))
      out_.description = text_of(*node, "description");
    if (const RuleNode* node = reader.find("versions")) out_.versions = texts_of(*node, "versions");
    if (const RuleNode* node = reader.find("model_type"))
      out_.model_types = texts_of(*node, "model_type");
    if (const RuleNode* node = reader.find("needs_config")) {
      out_.needs_config = truth_of(*node, "needs_config");
      if (out_.needs_config && out_.model_types.empty())
        throw wrong(*node, "needs_config is for a map with a model_type");
    }
    if (const RuleNode* node = reader.find("layers_apart"))
      out_.layers_apart = truth_of(*node, "layers_apart");
    if (const RuleNode* node = reader.find("parameters")) read_parameters(*node);
    const RuleNode* rename = reader.find("rename");
    const RuleNode* rules = reader.find("rule");
    const RuleNode* fused = reader.find("fused");
    reader.refuse_others();
    if (fused != nullptr) {
      for (const RuleNode& rule : list_of(*fused, "fused")) add_fused(rule);
    }
    if (rules != nullptr) {
      for (const RuleNode& rule : list_of(*rules, "rule")) add_rule(rule);
    }
    if (rename != nullptr) read_renames(*rename);
    if (out_.rules.empty()) throw at_line(1, "holds no rule for this direction");
    // The first rule that takes a key has it, so the order of the text counts.
    std::ranges::stable_sort(out_.rules,
                             [](const Rule& a, const Rule& b) { return a.line < b.line; });
    return std::move(out_);
  }

 private:
  void read_parameters(const RuleNode& node) {
    if (node.as_table() == nullptr) throw wrong(node, "parameters is not a table");
    for (const auto& [name, member] : *node.as_table()) {
      NodeReader reader(member, "a parameter", member.line);
      Parameter parameter;
      parameter.line = member.line;
      parameter.name = name;
      if (const RuleNode* config = reader.find("config"))
        parameter.config = texts_of(*config, "config");
      if (const RuleNode* key = reader.find("shape_of"))
        parameter.key = pattern_of(*key, text_of(*key, "shape_of"));
      if (const RuleNode* dim = reader.find("dim")) parameter.dim = integer_of(*dim, "dim");
      if (const RuleNode* count = reader.find("count_of"))
        parameter.count = patterns_of(*count, "count_of");
      if (const RuleNode* value = reader.find("value"))
        parameter.value = expression_of(*value, "value");
      reader.refuse_others();
      const auto adds = [](const Pattern& pattern) { return !pattern.offsets().empty(); };
      if (std::ranges::any_of(parameter.count, adds) || (parameter.key && adds(*parameter.key)))
        throw wrong(member, "a parameter comes of names to which nothing is added");
      out_.parameters.push_back(std::move(parameter));
    }
    for (const Parameter& parameter : out_.parameters) {
      if (parameter.value) check_declared(parameter.value->names(), parameter.line);
    }
  }

  template <typename Names>
  void check_declared(const Names& names, std::uint64_t line) const {
    for (const std::string& name : names) {
      try {
        out_.parameter(name);
      } catch (const Error& error) {
        throw at_line(line, error.what());
      }
    }
  }

  void read_renames(const RuleNode& node) {
    if (node.as_table() == nullptr) throw wrong(node, "rename is not a table");
    for (const auto& [from, to] : *node.as_table()) {
      Rule rule;
      rule.line = to.line;
      rule.from = {pattern_of(to, from)};
      rule.to = {pattern_of(to, text_of(to, "the new name"))};
      add(std::move(rule));
    }
  }

  void add_rule(const RuleNode& node) {
    NodeReader reader(node, "a rule", node.line);
    Rule rule;
    rule.line = node.line;
    const RuleNode* direction = reader.find("only");
    const bool used = direction == nullptr || goes_here(*direction);
    if (const RuleNode* optional = reader.find("optional"))
      rule.optional = truth_of(*optional, "optional");
    if (const RuleNode* skip = reader.find("skip_lone"))
      rule.skip_lone = truth_of(*skip, "skip_lone");
    if (const RuleNode* beside = reader.find("beside")) {
      if (direction == nullptr)
        throw wrong(*beside, "a rule with `beside` needs `only`: it tells names of one side");
      rule.beside = patterns_of(*beside, "beside");
    }
    if (const RuleNode* over = reader.find("over")) rule.over = text_of(*over, "over");
    if (const RuleNode* operations = reader.find("do")) read_operations(*operations, rule);
    if (const RuleNode* drop = reader.find("drop")) {
      reader.refuse_others();
      if (!rule.over.empty() || !rule.operations.empty() || rule.skip_lone ||
          !rule.beside.empty()) {
        throw wrong(node,
                    "a rule that drops has neither `over` nor `do` nor `skip_lone` nor `beside`");
      }
      if (!used) return;
      if (direction_ == Direction::kReverse && direction == nullptr) {
        throw Error(ErrorCode::kUnsupported,
                    cat("line ", node.line,
                        ": drop cannot be undone; with only = \"forward\" the reverse does "
                        "without what was dropped"));
      }
      for (Pattern& pattern : patterns_of(*drop, "drop")) {
        Rule one = rule;
        one.from = {std::move(pattern)};
        check_offsets(one, one.from);
        push(std::move(one));
      }
      return;
    }
    rule.from = patterns_of(reader.need("from"), "from");
    rule.to = patterns_of(reader.need("to"), "to");
    reader.refuse_others();
    // A rule for one direction only is used as it is written; nothing is inverted.
    if (direction != nullptr) {
      check(rule);
      if (used) push(std::move(rule));
    } else {
      add(std::move(rule));
    }
  }

  // Reads a fused parameter.  It counts only forward: in the reverse direction an optimizer gets
  // the names of the right side.
  void add_fused(const RuleNode& node) {
    NodeReader reader(node, "a fused parameter", node.line);
    Rule rule;
    rule.line = node.line;
    rule.from = patterns_of(reader.need("from"), "from");
    rule.to = patterns_of(reader.need("to"), "to");
    read_operations(reader.need("do"), rule);
    reader.refuse_others();
    check(rule);
    if (rule.from.size() != 1) throw at_line(rule.line, "from is one parameter");
    if (out_.fused.size() == kMaxRules)
      throw at_line(rule.line, cat("has more than ", kMaxRules, " fused parameters"));
    if (direction_ == Direction::kForward) out_.fused.push_back(std::move(rule));
  }

  bool goes_here(const RuleNode& node) const {
    const std::string& word = text_of(node, "only");
    if (word != "forward" && word != "reverse")
      throw wrong(node, cat("only is forward or reverse, not ", quote(word)));
    return (word == "forward") == (direction_ == Direction::kForward);
  }

  void read_operations(const RuleNode& node, Rule& rule) const {
    for (const RuleNode& item : list_of(node, "do")) {
      if (rule.operations.size() == kMaxOperations)
        throw wrong(node, cat("has more than ", kMaxOperations, " operations"));
      rule.operations.push_back(parse_operation(item));
      check_declared(parameters_of(rule.operations.back()), rule.operations.back().line);
    }
  }

  // Adds a rule for both directions.
  void add(Rule rule) {
    check(rule);
    if (direction_ == Direction::kReverse) {
      std::swap(rule.from, rule.to);
      std::vector<Operation> undone;
      for (auto at = rule.operations.rbegin(); at != rule.operations.rend(); ++at)
        undone.push_back(inverse_of(*at));
      rule.operations = std::move(undone);
    }
    push(std::move(rule));
  }

  void push(Rule rule) {
    if (out_.rules.size() == kMaxRules)
      throw at_line(rule.line, cat("has more than ", kMaxRules, " rules"));
    out_.rules.push_back(std::move(rule));
  }

  // Checks that what is added to captures is a parameter, and that they are integers everywhere.
  void check_offsets(const Rule& rule, const std::vector<Pattern>& patterns) const {
    for (const Pattern& pattern : patterns) {
      for (const auto& [parameter, capture] : pattern.offsets()) {
        check_declared(std::set<std::string>{parameter}, rule.line);
        for (const auto* side : {&rule.from, &rule.to}) {
          for (const Pattern& other : *side) {
            if (!other.names().contains(capture) || other.is_integer(capture)) continue;
            throw at_line(rule.line,
                          cat(quote(parameter), " is added to {", capture,
                              "}, which is not an integer in ", quote(other.text(), 200)));
          }
        }
      }
    }
  }

  // Checks the captures of both sides, and gives them the same restrictions.
  void check(Rule& rule) const {
    std::set<std::string> left = side_names(rule, rule.from);
    std::set<std::string> right = side_names(rule, rule.to);
    if (!rule.over.empty()) {
      const bool collects = left.erase(rule.over) != 0;
      const bool spreads = right.erase(rule.over) != 0;
      if (collects == spreads) {
        throw at_line(rule.line, cat("over is {", rule.over, "}, which must stand on one side, ",
                                     collects ? "not on both" : "and stands on none"));
      }
    }
    if (left != right) {
      throw at_line(rule.line, cat("captures differ: ", capture_list(left), " in from, ",
                                   capture_list(right), " in to"));
    }
    for (const Pattern& pattern : rule.beside) {
      if (!std::ranges::includes(left, pattern.names())) {
        throw at_line(rule.line, cat("beside has captures that from lacks: ",
                                     capture_list(pattern.names()), " and ", capture_list(left)));
      }
    }
    for (Pattern& pattern : rule.to) pattern.restrict_like(rule.from[0]);
    for (Pattern& pattern : rule.from) pattern.restrict_like(rule.to[0]);
    for (const auto* side : {&rule.from, &rule.to, &rule.beside}) check_offsets(rule, *side);
    if (rule.skip_lone && rule.from.size() == 1 && rule.to.size() == 1)
      throw at_line(rule.line, "skip_lone is for rules that take several tensors together");
    if (rule.operations.empty() && (rule.from.size() != 1 || rule.to.size() != 1))
      throw at_line(rule.line, "several tensors need an operation that joins or divides them");
  }

  // Returns the captures of one side, which must be the same in each of its patterns.
  static std::set<std::string> side_names(const Rule& rule, const std::vector<Pattern>& side) {
    for (const Pattern& pattern : side) {
      if (pattern.names() != side[0].names()) {
        throw at_line(rule.line,
                      cat("captures differ: ", capture_list(side[0].names()), " in ",
                          quote(side[0].text(), 200), ", ", capture_list(pattern.names()), " in ",
                          quote(pattern.text(), 200)));
      }
    }
    return side[0].names();
  }

  const RuleNode& root_;
  Direction direction_;
  Rules out_;
};

}  // namespace

const Parameter& Rules::parameter(const std::string& name) const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (parameter.name == name) return parameter;
    names.push_back(parameter.name);
  }
  throw Error(ErrorCode::kUsage,
              cat("the map has no parameter ", quote(name), did_you_mean(name, names)));
}

void Rules::set_offsets(const ParameterValue& value) {
  const ParameterValue checked = [&](const std::string& name) {
    const std::int64_t number = value(name);
    if (number >= 0 && number <= Pattern::kMaxOffset) return number;
    throw Error(ErrorCode::kUsage,
                cat(file, ": line ", parameter(name).line, ": parameter ", quote(name), " is ",
                    number, ", and what is added to a name lies between 0 and 10^18"));
  };
  for (auto* list : {&rules, &fused}) {
    for (Rule& rule : *list) {
      for (auto* side : {&rule.from, &rule.to, &rule.beside}) {
        for (Pattern& pattern : *side) pattern.set_offsets(checked);
      }
    }
  }
}

Rules parse_rules(std::string_view text, const std::string& file, Direction direction) {
  try {
    const RuleNode root = parse_rule_node(text);
    Rules rules = Parser(root, direction).run();
    rules.file = file;
    return rules;
  } catch (const Error& error) {
    throw error.in(file);
  }
}

}  // namespace fsdp::formats::map
