// SPDX-License-Identifier: Apache-2.0
// The operations of a map's rules: what each declares, does to arrays, and is undone by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/arrays/array.h"
#include "formats/changes/map/expression.h"
#include "formats/changes/map/rule_node.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::map {

enum class OperationKind {
  kConcatenate,  // all arrays become one, along a dimension
  kSplit,        // one becomes several
  kStack,        // all become one with a new dimension
  kUnstack,      // one becomes one for each element of a dimension, which goes away
  kTranspose,    // two dimensions change places
  kPermute,      // all dimensions change places
  kReshape,      // the same elements in row-major order
  kSwap,         // the two halves of a dimension change places
  kRotary,       // the rows of each head, from pairs to two halves or back
  kFuseQkv,      // query, key and value become one, interleaved by groups of heads
  kSplitQkv,     // the reverse
  kPad,          // a dimension grows at its end
  kTrim,         // a dimension shrinks at its end
  kRepeat,       // each element of a dimension becomes several alike
  kEvery,        // the first of each several in a dimension is taken
  kTie,          // one array gets several names
  kUntie,        // several names of one array: the first is taken
  kCast,
  kAdd,
  kScale,
  kDequantize,  // numbers and their scales become elements of a wider dtype
  kQuantize,    // the reverse
  kLowRank,     // a weight and the matrices A and B of LoRA become the merged weight
};

// "concatenate", "split_qkv", ...
std::string_view operation_name(OperationKind kind);

// Unless stated otherwise, an operation applies to every array of a rule alike.
struct Operation {
  OperationKind kind = OperationKind::kConcatenate;
  std::uint64_t line = 0;
  // The arrays that it applies to, counted from 0; none: all.  Only for operations that make one
  // array of one.
  std::vector<std::int64_t> of;
  // kConcatenate, kSplit, kStack, kUnstack, kSwap, kPad, kTrim, kRepeat, kEvery: one; kTranspose:
  // two; kPermute: all. Negative ones count from the end.
  std::vector<std::int64_t> dims;
  // kConcatenate, kSplit: the sizes along the dimension; none: equal ones.
  std::optional<std::vector<Expression>> sizes;
  bool any_sizes = false;      // kConcatenate: any sizes; it has no inverse then
  std::vector<Expression> to;  // kReshape: one may be -1; kPad, kTrim: the size, kRepeat, kEvery:
                               // how many, one number
  // `to` before the operation; without it there is no inverse.
  std::optional<std::vector<Expression>> from;
  // kRotary: one; kFuseQkv, kSplitQkv: heads, heads of keys, one of them may be -1.
  std::vector<Expression> heads;
  // kFuseQkv, kSplitQkv: the rows of a head of queries and keys, those of a head of values; none:
  // the shapes say them, and values have as many.
  std::vector<Expression> head_rows;
  bool gated = false;   // kFuseQkv, kSplitQkv: a gate follows the queries, of their shape
  bool halves = false;  // kRotary: from pairs to halves; else from halves to pairs
  double number = 0;    // kPad, kAdd: the value; kScale, kLowRank: the factor
  // kCast, kDequantize: the dtype to make; kQuantize: the dtype that its inverse makes.
  DType dtype = DType::kFloat32;
  std::optional<DType> was;  // kCast: the dtype before
  // kDequantize, kQuantize: how weights are stored.
  quantized::Dialect dialect = quantized::Dialect::kTransformersFp8;
  quantized::Scheme scheme = {};
  std::vector<Expression> block;  // rows, columns: in the place of those of the scheme
  bool turned = false;            // kLowRank: the weight is [in, out]
};

// Reads an operation: a name, or a table with `op` and what it declares.
// Throws: kUsage naming the line and what is wrong, with the nearest name.
Operation parse_operation(const RuleNode& node);

// Returns the names of the parameters in its expressions.
std::vector<std::string> parameters_of(const Operation& operation);

// Returns the inverse of an operation.
// Throws: kUnsupported if there is none, saying what the operation would have to declare.
Operation inverse_of(const Operation& operation);

// Returns whether elements are only moved, so that an optimizer's state moves with its parameter.
// A cast counts as a move: state keeps its own dtype.
bool only_moves(const Operation& operation);

// Applies an operation to a rule's arrays.  `results`: the number of arrays to make, if the
// operation does not say (kSplit, kTie).
// Throws: kShape, kDtype, kUsage, kOverflow, saying the shapes; what `parameter` throws.
std::vector<arrays::Array> applied(const Operation& operation, std::vector<arrays::Array> arrays,
                                   std::size_t results, const ParameterValue& parameter);

}  // namespace fsdp::formats::map
