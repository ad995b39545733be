// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/operation.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/node_reader.h"
#include "formats/changes/quantized/known_schemes.h"

namespace fsdp::formats::map {
namespace {

struct Known {
  OperationKind kind;
  std::string_view name;
  OperationKind inverse;
  bool moves = true;  // see only_moves
};
constexpr std::array kOperations = {
    Known{OperationKind::kConcatenate, "concatenate", OperationKind::kSplit},
    Known{OperationKind::kSplit, "split", OperationKind::kConcatenate},
    Known{OperationKind::kStack, "stack", OperationKind::kUnstack},
    Known{OperationKind::kUnstack, "unstack", OperationKind::kStack},
    Known{OperationKind::kTranspose, "transpose", OperationKind::kTranspose},
    Known{OperationKind::kPermute, "permute", OperationKind::kPermute},
    Known{OperationKind::kReshape, "reshape", OperationKind::kReshape},
    Known{OperationKind::kSwap, "swap", OperationKind::kSwap},
    Known{OperationKind::kRotary, "rotary", OperationKind::kRotary},
    Known{OperationKind::kFuseQkv, "fuse_qkv", OperationKind::kSplitQkv},
    Known{OperationKind::kSplitQkv, "split_qkv", OperationKind::kFuseQkv},
    Known{OperationKind::kPad, "pad", OperationKind::kTrim},
    Known{OperationKind::kTrim, "trim", OperationKind::kPad},
    Known{OperationKind::kRepeat, "repeat", OperationKind::kEvery, false},
    Known{OperationKind::kEvery, "every", OperationKind::kRepeat, false},
    Known{OperationKind::kTie, "tie", OperationKind::kUntie},
    Known{OperationKind::kUntie, "untie", OperationKind::kTie},
    Known{OperationKind::kCast, "cast", OperationKind::kCast},
    Known{OperationKind::kAdd, "add", OperationKind::kAdd, false},
    Known{OperationKind::kScale, "scale", OperationKind::kScale, false},
    Known{OperationKind::kDequantize, "dequantize", OperationKind::kQuantize, false},
    Known{OperationKind::kQuantize, "quantize", OperationKind::kDequantize, false},
    Known{OperationKind::kLowRank, "low_rank", OperationKind::kLowRank, false},
};

// Operations that make one array of one, so that they can apply to some of the arrays.
constexpr std::array kOneOfOne = {
    OperationKind::kTranspose, OperationKind::kPermute, OperationKind::kReshape,
    OperationKind::kRotary,    OperationKind::kPad,     OperationKind::kTrim,
    OperationKind::kRepeat,    OperationKind::kEvery,   OperationKind::kCast,
    OperationKind::kAdd,       OperationKind::kScale};

const Known& known(OperationKind kind) {
  return *std::ranges::find_if(kOperations, [&](const Known& one) { return one.kind == kind; });
}

OperationKind kind_named(const std::string& name, std::uint64_t line) {
  std::vector<std::string> names;
  for (const Known& one : kOperations) {
    if (one.name == name) return one.kind;
    names.emplace_back(one.name);
  }
  throw Error(ErrorCode::kUsage,
              cat("line ", line, ": unknown operation ", quote(name), did_you_mean(name, names)));
}

DType read_dtype(const RuleNode& node) {
  const std::string name = text_of(node, "a dtype");
  const auto dtype = dtype_from_torch_name(name);
  if (!dtype || !is_floating(*dtype)) {
    throw Error(ErrorCode::kUsage, cat("line ", node.line, ": ", quote(name),
                                       " is not a floating dtype, such as float32 or bfloat16"));
  }
  return *dtype;
}

std::vector<std::int64_t> read_dims(const RuleNode& node) {
  std::vector<std::int64_t> dims;
  for (const RuleNode& item : list_of(node, "dimensions")) {
    dims.push_back(integer_of(item, "a dimension"));
    if (dims.size() > kMaxRank) throw wrong(node, "lists more dimensions than a tensor has");
  }
  return dims;
}

// Reads the places of tensors in a rule.
std::vector<std::int64_t> read_places(const RuleNode& node) {
  std::vector<std::int64_t> places;
  for (const RuleNode& item : list_of(node, "places of tensors")) {
    places.push_back(integer_of(item, "the place of a tensor"));
    if (places.back() < 0 || std::ranges::count(places, places.back()) > 1)
      throw wrong(item, "`of` counts tensors from 0, each once");
  }
  if (places.empty()) throw wrong(node, "`of` lists no tensor");
  return places;
}

std::vector<Expression> read_expressions(const RuleNode& node, const char* what) {
  std::vector<Expression> out;
  for (const RuleNode& item : list_of(node, what)) out.push_back(expression_of(item, what));
  return out;
}

// What `scales` may say beside mxfp4: float8_e4m3fn, as transformers quantizes.
constexpr std::array<std::pair<std::string_view, quantized::Sharing>, 3> kFloat8Scales = {
    {{"blocks", quantized::Sharing::kBlocks},
     {"rows", quantized::Sharing::kRows},
     {"tensor", quantized::Sharing::kTensor}}};

// Reads what each kind of operation declares.
class OperationReader {
 public:
  OperationReader(Operation& operation, NodeReader& reader) : out_(operation), reader_(reader) {}

  void run() {
    switch (out_.kind) {
      case OperationKind::kConcatenate:
      case OperationKind::kSplit:
        dim();
        sizes();
        return;
      case OperationKind::kStack:
      case OperationKind::kUnstack:
      case OperationKind::kSwap:
        dim();
        return;
      case OperationKind::kTranspose:
        out_.dims = {0, 1};
        if (const RuleNode* node = reader_.find("dims")) out_.dims = read_dims(*node);
        if (out_.dims.size() != 2) throw lacks("two dims");
        return;
      case OperationKind::kPermute:
        out_.dims = read_dims(reader_.need("order"));
        return;
      case OperationKind::kReshape:
        out_.to = read_expressions(reader_.need("to"), "sizes");
        if (const RuleNode* node = reader_.find("from"))
          out_.from = read_expressions(*node, "sizes");
        return;
      case OperationKind::kRotary:
        rotary();
        return;
      case OperationKind::kFuseQkv:
      case OperationKind::kSplitQkv:
        qkv();
        return;
      case OperationKind::kRepeat:
      case OperationKind::kEvery:
        dim();
        out_.to = {expression_of(reader_.need("count"), "a number")};
        return;
      case OperationKind::kPad:
      case OperationKind::kTrim:
        dim();
        out_.to = {expression_of(reader_.need("to"), "a size")};
        if (const RuleNode* node = reader_.find("from"))
          out_.from.emplace({expression_of(*node, "a size")});
        if (const RuleNode* node =
                out_.kind == OperationKind::kPad ? reader_.find("value") : nullptr)
          out_.number = number_of(*node, "a value");
        return;
      case OperationKind::kTie:
      case OperationKind::kUntie:
        return;
      case OperationKind::kCast:
        out_.dtype = read_dtype(reader_.need("to"));
        if (const RuleNode* node = reader_.find("from")) out_.was = read_dtype(*node);
        return;
      case OperationKind::kAdd:
        out_.number = number_of(reader_.need("value"), "a value");
        return;
      case OperationKind::kScale:
        out_.number = number_of(reader_.need("by"), "a factor");
        return;
      case OperationKind::kDequantize:
      case OperationKind::kQuantize:
        scales();
        return;
      case OperationKind::kLowRank:
        low_rank();
        return;
    }
  }

 private:
  Error lacks(const std::string& what) const {
    return Error(ErrorCode::kUsage,
                 cat("line ", out_.line, ": ", operation_name(out_.kind), " needs ", what));
  }

  void dim() {
    const RuleNode* node = reader_.find("dim");
    out_.dims = {node == nullptr ? 0 : integer_of(*node, "a dimension")};
  }

  void sizes() {
    const RuleNode* node = reader_.find("sizes");
    if (node == nullptr) return;
    if (node->as_text() != nullptr && *node->as_text() == "any" &&
        out_.kind == OperationKind::kConcatenate) {
      out_.any_sizes = true;
      return;
    }
    out_.sizes = read_expressions(*node, "sizes");
  }

  void scales() {
    const bool undoes = out_.kind == OperationKind::kDequantize;
    out_.dtype = DType::kBFloat16;
    if (const RuleNode* node = reader_.find(undoes ? "to" : "from")) out_.dtype = read_dtype(*node);
    if (const RuleNode* node = reader_.find("scheme")) return scheme(*node);
    out_.scheme.sharing = quantized::Sharing::kBlocks;
    if (const RuleNode* node = reader_.find("scales")) {
      const std::string word = text_of(*node, "scales");
      const auto known =
          std::ranges::find_if(kFloat8Scales, [&](const auto& one) { return one.first == word; });
      if (known != kFloat8Scales.end()) {
        out_.scheme.sharing = known->second;
      } else if (word != "mxfp4") {
        throw wrong(*node, cat("scales is blocks, rows, tensor or mxfp4, not ", quote(word)));
      } else if (!undoes) {
        throw wrong(*node, "quantize cannot make mxfp4 as GPT-OSS has it");
      } else {
        out_.dialect = quantized::Dialect::kGptOss;
        out_.scheme = {
            .bits = 4, .sharing = quantized::Sharing::kGroups, .columns = 32, .powers = true};
      }
    }
    if (out_.scheme.sharing != quantized::Sharing::kBlocks) return;
    const RuleNode* node = reader_.find("block");
    out_.block = node == nullptr ? std::vector<Expression>(2, Expression("128"))
                                 : read_expressions(*node, "sizes");
    if (out_.block.size() != 2) throw lacks("a block of two sizes: rows, columns");
  }

  void scheme(const RuleNode& node) {
    std::string dialect;
    if (const RuleNode* const found = reader_.find("dialect"))
      dialect = text_of(*found, "a dialect");
    const auto known = quantized::dialect_named(dialect);
    if (!known)
      throw wrong(node, cat("dialect is compressed-tensors, modelopt or transformers, not ",
                            quote(dialect)));
    out_.dialect = *known;
    std::optional<std::int64_t> group;
    if (const RuleNode* const found = reader_.find("group")) {
      group = integer_of(*found, "a size");
      if (*group < 1) throw wrong(*found, "a group has at least one element");
    }
    try {
      out_.scheme = quantized::known_scheme(out_.dialect, text_of(node, "a scheme"), group).scheme;
    } catch (const Error& error) {
      throw wrong(node, error.what());
    }
  }

  void qkv() {
    out_.heads = {expression_of(reader_.need("heads"), "heads"),
                  expression_of(reader_.need("kv_heads"), "heads of keys")};
    if (const RuleNode* node = reader_.find("head_dim")) {
      out_.head_rows.assign(2, expression_of(*node, "rows of a head"));
      if (const RuleNode* value = reader_.find("value_dim"))
        out_.head_rows[1] = expression_of(*value, "rows of a head");
    }
    if (const RuleNode* node = reader_.find("gated")) out_.gated = truth_of(*node, "gated");
  }

  void rotary() {
    out_.heads = {expression_of(reader_.need("heads"), "heads")};
    const RuleNode& to = reader_.need("to");
    const std::string word = text_of(to, "pairs or halves");
    if (word != "pairs" && word != "halves")
      throw wrong(to, cat("rotary goes to pairs or halves, not to ", quote(word)));
    out_.halves = word == "halves";
  }

  void low_rank() {
    out_.number = 1;
    if (const RuleNode* node = reader_.find("scale")) out_.number = number_of(*node, "a factor");
    if (const RuleNode* node = reader_.find("fan_in_fan_out"))
      out_.turned = truth_of(*node, "fan_in_fan_out");
  }

  Operation& out_;
  NodeReader& reader_;
};

Error no_inverse(const Operation& operation, const std::string& remedy) {
  return Error(ErrorCode::kUnsupported,
               cat("line ", operation.line, ": ", operation_name(operation.kind),
                   " cannot be undone", remedy.empty() ? "" : "; " + remedy));
}

}  // namespace

std::string_view operation_name(OperationKind kind) {
  return known(kind).name;
}

Operation parse_operation(const RuleNode& node) {
  Operation operation;
  operation.line = node.line;
  const RuleNode nothing{RuleNode::Table(), 0};
  const bool name_alone = node.as_text() != nullptr;
  NodeReader reader(name_alone ? nothing : node, "an operation", node.line);
  operation.kind = kind_named(
      name_alone ? *node.as_text() : text_of(reader.need("op"), "an operation's name"), node.line);
  OperationReader(operation, reader).run();
  if (std::ranges::find(kOneOfOne, operation.kind) != kOneOfOne.end()) {
    if (const RuleNode* of = reader.find("of")) operation.of = read_places(*of);
  }
  reader.refuse_others();
  return operation;
}

std::vector<std::string> parameters_of(const Operation& operation) {
  std::set<std::string> names;
  const auto add = [&](const std::vector<Expression>& expressions) {
    for (const Expression& expression : expressions)
      names.insert(expression.names().begin(), expression.names().end());
  };
  if (operation.sizes) add(*operation.sizes);
  add(operation.to);
  if (operation.from) add(*operation.from);
  add(operation.heads);
  add(operation.head_rows);
  add(operation.block);
  return {names.begin(), names.end()};
}

Operation inverse_of(const Operation& operation) {
  Operation inverse = operation;
  inverse.kind = known(operation.kind).inverse;
  switch (operation.kind) {
    case OperationKind::kConcatenate:
      if (operation.any_sizes) throw no_inverse(operation, "give its sizes");
      break;
    case OperationKind::kPermute:
      for (std::size_t d = 0; d < operation.dims.size(); ++d) {
        const auto to = static_cast<std::size_t>(operation.dims[d]);
        if (to >= inverse.dims.size())
          throw no_inverse(operation, "`order` must list every dimension from 0");
        inverse.dims[to] = static_cast<std::int64_t>(d);
      }
      break;
    case OperationKind::kReshape:
    case OperationKind::kPad:
    case OperationKind::kTrim:
      if (!operation.from) throw no_inverse(operation, "give the sizes before it as `from`");
      inverse.to = *operation.from;
      inverse.from = operation.to;
      break;
    case OperationKind::kRotary:
      inverse.halves = !operation.halves;
      break;
    case OperationKind::kCast:
      if (!operation.was) throw no_inverse(operation, "give the dtype before it as `from`");
      inverse.dtype = *operation.was;
      inverse.was = operation.dtype;
      break;
    case OperationKind::kAdd:
      inverse.number = -operation.number;
      break;
    case OperationKind::kScale:
      if (operation.number == 0) throw no_inverse(operation, "");
      inverse.number = 1 / operation.number;
      break;
    case OperationKind::kDequantize:
      if (operation.dialect == quantized::Dialect::kGptOss)
        throw no_inverse(operation, "GPT-OSS's mxfp4 can be read but not written");
      break;
    case OperationKind::kLowRank:
      throw no_inverse(operation, "its result does not hold A and B");
    default:
      break;
  }
  return inverse;
}

bool only_moves(const Operation& operation) {
  return known(operation.kind).moves;
}

}  // namespace fsdp::formats::map
