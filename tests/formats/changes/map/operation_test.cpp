// SPDX-License-Identifier: Apache-2.0
// What operations declare and do; tests/interop/check_map.py compares chains of them with PyTorch.
#include "formats/changes/map/operation.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/formats/changes/arrays/dense_operand.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;
using arrays::array_of;
using arrays::counted;
using arrays::elements_of;

using test::expect_error;
using Shape = std::vector<std::int64_t>;

Operation operation(const std::string& text) {
  const RuleNode root = parse_rule_node("op = " + text + "\n");
  return parse_operation(root.as_table()->at(0).second);
}

std::int64_t no_parameter(const std::string& name) {
  throw Error(ErrorCode::kUsage, "no " + name);
}

std::vector<Array> done(const std::string& text, std::vector<Array> arrays,
                        std::size_t results = 1) {
  return applied(operation(text), std::move(arrays), results, no_parameter);
}

// Applies an operation to one tensor that counts from 1, and what undoes it to the result.
std::vector<Array> there_and_back(const std::string& text, const Shape& shape,
                                  std::size_t results = 1) {
  const Operation there = operation(text);
  std::vector<Array> arrays = applied(there, {array_of(counted(shape))}, results, no_parameter);
  const std::vector<Array> back = applied(inverse_of(there), arrays, 1, no_parameter);
  EXPECT_EQ(back.size(), 1U) << text;
  EXPECT_EQ(back.at(0).shape, shape) << text;
  EXPECT_EQ(elements_of(back.at(0)), counted(shape).elements) << text;
  return arrays;
}

TEST(Operation, of_some_tensors) {
  const Array a = array_of(counted({2, 3}));
  const auto turned = done("{ op = \"transpose\", of = [1] }", {a, a, a});
  ASSERT_EQ(turned.size(), 3U);
  EXPECT_EQ(turned[0].shape, (Shape{2, 3}));
  EXPECT_EQ(turned[1].shape, (Shape{3, 2}));
  EXPECT_EQ(turned[2].shape, (Shape{2, 3}));
  const auto back =
      applied(inverse_of(operation("{ op = \"transpose\", of = [1] }")), turned, 3, no_parameter);
  EXPECT_EQ(elements_of(back.at(1)), counted({2, 3}).elements);
  expect_error(ErrorCode::kShape, "of tensor 3, counted from 0, and there are 3", [&] {
    done("{ op = \"transpose\", of = [3] }", {a, a, a});
  });
  expect_error(ErrorCode::kUsage, "counts tensors from 0, each once",
               [] { operation("{ op = \"transpose\", of = [-1] }"); });
  expect_error(ErrorCode::kUsage, "counts tensors from 0, each once",
               [] { operation("{ op = \"transpose\", of = [1, 1] }"); });
  expect_error(ErrorCode::kUsage, "lists no tensor",
               [] { operation("{ op = \"transpose\", of = [] }"); });
  expect_error(ErrorCode::kUsage, "of", [] { operation("{ op = \"stack\", of = [0] }"); });
}

TEST(Operation, moves_are_undone) {
  there_and_back("\"transpose\"", {3, 4});
  there_and_back("{ op = \"transpose\", dims = [0, -1] }", {2, 3, 4});
  there_and_back("{ op = \"permute\", order = [2, 0, 1] }", {2, 3, 4});
  there_and_back("{ op = \"reshape\", to = [-1, 6], from = [2, 3, 4] }", {2, 3, 4});
  there_and_back("\"split\"", {6, 2}, 3);
  there_and_back("{ op = \"split\", dim = -1, sizes = [1, 4] }", {2, 5}, 2);
  there_and_back("{ op = \"unstack\", dim = 1 }", {2, 3, 4});
  there_and_back("{ op = \"swap\", dim = -1 }", {3, 4});
  there_and_back("{ op = \"rotary\", heads = 2, to = \"halves\" }", {8, 3});
  there_and_back("{ op = \"split_qkv\", heads = 4, kv_heads = 2 }", {16, 3}, 3);
  // Heads that the shape says: of queries, of keys; values of another size; a gate.
  there_and_back("{ op = \"split_qkv\", heads = -1, kv_heads = 2, head_dim = 2 }", {16, 3}, 3);
  there_and_back("{ op = \"split_qkv\", heads = 4, kv_heads = -1, head_dim = 3, value_dim = 2 }",
                 {22, 3}, 3);
  there_and_back("{ op = \"split_qkv\", heads = -1, kv_heads = 2, head_dim = 2, gated = true }",
                 {24, 3}, 4);
  there_and_back("\"tie\"", {3}, 2);
}

TEST(Operation, rows_of_a_head_go_from_pairs_to_halves) {
  // Two heads of four rows: 1 2 3 4, 5 6 7 8.  Pairs are (1, 2), (3, 4).
  const auto out =
      done("{ op = \"rotary\", heads = 2, to = \"halves\" }", {array_of(counted({8}))});
  EXPECT_EQ(elements_of(out[0]), (Shape{1, 3, 2, 4, 5, 7, 6, 8}));
}

TEST(Operation, queries_keys_and_values_are_taken_apart_by_groups) {
  // Two groups of two heads of queries, a key and a value, one row each.
  const auto out =
      done("{ op = \"split_qkv\", heads = 4, kv_heads = 2 }", {array_of(counted({8}))}, 3);
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(elements_of(out[0]), (Shape{1, 2, 5, 6}));
  EXPECT_EQ(elements_of(out[1]), (Shape{3, 7}));
  EXPECT_EQ(elements_of(out[2]), (Shape{4, 8}));
}

TEST(Operation, a_gate_follows_the_queries_of_a_group) {
  const auto out = done("{ op = \"split_qkv\", heads = 2, kv_heads = 2, gated = true }",
                        {array_of(counted({8}))}, 4);
  ASSERT_EQ(out.size(), 4U);
  EXPECT_EQ(elements_of(out[0]), (Shape{1, 5}));
  EXPECT_EQ(elements_of(out[1]), (Shape{2, 6}));
  EXPECT_EQ(elements_of(out[2]), (Shape{3, 7}));
  EXPECT_EQ(elements_of(out[3]), (Shape{4, 8}));
}

TEST(Operation, repeating_is_undone_by_taking_the_first_of_each) {
  const Operation repeat = operation("{ op = \"repeat\", dim = 0, count = 2 }");
  const auto out = applied(repeat, {array_of(counted({2, 2}))}, 1, no_parameter);
  EXPECT_EQ(out[0].shape, (Shape{4, 2}));
  EXPECT_EQ(elements_of(out[0]), (Shape{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(elements_of(applied(inverse_of(repeat), out, 1, no_parameter)[0]), (Shape{1, 2, 3, 4}));
  EXPECT_FALSE(only_moves(repeat));
}

TEST(Operation, padding_adds_at_the_end_and_trimming_takes_it_away) {
  const Operation pad = operation("{ op = \"pad\", dim = 1, to = 3, from = 2 }");
  const auto out = applied(pad, {array_of(counted({2, 2}))}, 1, no_parameter);
  EXPECT_EQ(elements_of(out[0]), (Shape{1, 2, 0, 3, 4, 0}));
  EXPECT_EQ(elements_of(applied(inverse_of(pad), out, 1, no_parameter)[0]), (Shape{1, 2, 3, 4}));
}

TEST(Operation, several_become_one) {
  const std::vector<Array> two = {array_of(counted({2, 2})), array_of(counted({2, 2}, 5))};
  EXPECT_EQ(elements_of(done("{ op = \"concatenate\", dim = 1 }", two)[0]),
            (Shape{1, 2, 5, 6, 3, 4, 7, 8}));
  EXPECT_EQ(done("{ op = \"stack\", dim = 2 }", two)[0].shape, (Shape{2, 2, 2}));
  EXPECT_EQ(elements_of(done("\"untie\"", two)[0]), counted({2, 2}).elements);
}

TEST(Operation, arithmetic_does_not_move_and_casts_do_not_count) {
  EXPECT_TRUE(only_moves(operation("\"transpose\"")));
  EXPECT_TRUE(only_moves(operation("{ op = \"cast\", to = \"float16\" }")));
  EXPECT_FALSE(only_moves(operation("{ op = \"add\", value = 1 }")));
  EXPECT_FALSE(only_moves(operation("{ op = \"scale\", by = 2 }")));
  EXPECT_FALSE(only_moves(operation("\"low_rank\"")));
  EXPECT_EQ(inverse_of(operation("{ op = \"scale\", by = 2 }")).number, 0.5);
  EXPECT_EQ(inverse_of(operation("{ op = \"add\", value = 2 }")).number, -2);
  const Operation quantize =
      inverse_of(operation("{ op = \"dequantize\", block = [2, 3], to = \"float16\" }"));
  EXPECT_EQ(quantize.kind, OperationKind::kQuantize);
  EXPECT_FALSE(only_moves(quantize));
  EXPECT_EQ(inverse_of(quantize).kind, OperationKind::kDequantize);
  EXPECT_EQ(inverse_of(quantize).dtype, DType::kFloat16);
  EXPECT_FALSE(only_moves(inverse_of(quantize)));
  const Operation int4 = inverse_of(
      operation("{ op = \"dequantize\", scheme = \"int4-asym\", group = 32, to = \"float16\" }"));
  EXPECT_EQ(int4.kind, OperationKind::kQuantize);
  EXPECT_EQ(int4.scheme.columns, 32);
  EXPECT_FALSE(int4.scheme.symmetric);
}

TEST(Operation, an_update_is_not_undone) {
  const Operation update = operation("{ op = \"low_rank\", scale = 2, fan_in_fan_out = true }");
  EXPECT_EQ(update.number, 2);
  EXPECT_TRUE(update.turned);
  EXPECT_EQ(operation("\"low_rank\"").number, 1);
  expect_error(ErrorCode::kUnsupported, "low_rank cannot be undone; its result does not hold A",
               [&] { inverse_of(update); });
}

TEST(Operation, names_of_parameters_come_from_every_expression) {
  EXPECT_EQ(parameters_of(operation("{ op = \"pad\", to = \"a + b\", from = \"c\" }")),
            (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(parameters_of(operation("{ op = \"fuse_qkv\", heads = \"h\", kv_heads = \"k\" }")),
            (std::vector<std::string>{"h", "k"}));
  EXPECT_EQ(parameters_of(operation("{ op = \"split_qkv\", heads = -1, kv_heads = 2, head_dim = "
                                    "\"d\", value_dim = \"v\" }")),
            (std::vector<std::string>{"d", "v"}));
  EXPECT_EQ(parameters_of(operation("{ op = \"quantize\", block = [\"m\", \"n\"] }")),
            (std::vector<std::string>{"m", "n"}));
}

TEST(Operation, shapes_that_do_not_fit_are_named) {
  const auto one = [](Shape shape) {
    return std::vector<Array>{array_of(counted(std::move(shape)))};
  };
  const std::vector<Array> unlike = {array_of(counted({2, 2})), array_of(counted({3, 2}))};
  const auto refused = [&](const std::string& text, const std::vector<Array>& arrays,
                           const char* says, std::size_t results = 1) {
    expect_error(ErrorCode::kShape, says, [&] { done(text, arrays, results); });
  };
  refused("\"split\"", one({5}), "[5] is not divisible into 2 equal parts", 2);
  refused("{ op = \"split\", sizes = [2, 2] }", one({5}), "do not add up to dimension 0 of [5]", 2);
  // The parts may be joined again: only the rule's last operation makes its tensors.
  EXPECT_EQ(done("{ op = \"split\", sizes = [2, 3] }", one({5}), 1).size(), 2U);
  refused("{ op = \"split\", sizes = [-1, 6] }", one({5}), "less than 0", 2);
  refused("\"split\"", unlike, "takes one tensor, not 2 tensors", 2);
  refused("\"concatenate\"", unlike, "unequal parts need `sizes`");
  refused("{ op = \"concatenate\", dim = 1 }", unlike,
          "tensors of like shapes, not [2, 2] and [3, 2]");
  refused("{ op = \"concatenate\", sizes = [2, 4] }", unlike, "has 3 in dimension 0");
  refused("\"stack\"", unlike, "like shapes");
  refused("\"transpose\"", one({5}), "there is no dimension 1 in [5]");
  refused("{ op = \"permute\", order = [0, 0] }", one({5, 2}), "is not one of the dimensions");
  refused("{ op = \"permute\", order = [0] }", one({5, 2}), "is not one of the dimensions");
  refused("{ op = \"reshape\", to = [3, -1] }", one({5}), "[5] cannot become [3, -1]");
  refused("{ op = \"reshape\", to = [4] }", one({5}), "has 5 elements");
  refused("{ op = \"reshape\", to = [-1, -1] }", one({5}), "does not fit");
  refused("{ op = \"reshape\", to = [5], from = [1, 5] }", one({5}), "expected [1, 5]");
  refused("\"swap\"", one({5}), "dimension 0 of [5] has no halves");
  refused("{ op = \"rotary\", heads = 2, to = \"pairs\" }", one({6}), "2 heads of an even size");
  refused("{ op = \"fuse_qkv\", heads = 4, kv_heads = 3 }", {unlike[0], unlike[0], unlike[0]},
          "not divisible into 3 groups");
  refused("{ op = \"fuse_qkv\", heads = 2, kv_heads = 1 }", {unlike[0], unlike[0], unlike[0]},
          "are not those of 2 heads");
  refused("{ op = \"split_qkv\", heads = 2, kv_heads = 2 }", one({8}), "is not that of", 3);
  refused("{ op = \"split_qkv\", heads = -1, kv_heads = 2, head_dim = 3 }", one({16}),
          "0 heads are not divisible into 2 groups", 3);
  refused("{ op = \"split_qkv\", heads = 4, kv_heads = 2, head_dim = 3 }", one({16}),
          "[16] is not that of 4 heads", 3);
  refused("{ op = \"fuse_qkv\", heads = 2, kv_heads = 2, gated = true }",
          {unlike[0], unlike[0], unlike[0]}, "takes query, gate, key and value, not 3 tensors");
  refused("{ op = \"split_qkv\", heads = 4611686018427387904, kv_heads = 2 }", one({16}),
          "no attention has 4611686018427387904 heads", 3);
  refused("{ op = \"every\", count = 2 }", one({5}), "[5] is not divisible by 2");
  refused("{ op = \"repeat\", count = 0 }", one({5}), "not 0");
  refused("{ op = \"pad\", to = 4 }", one({5}), "cannot be padded to 4");
  refused("{ op = \"trim\", to = 6 }", one({5}), "cannot be trimmed to 6");
  refused("{ op = \"trim\", to = 4, from = 6 }", one({5}), "is not 6");
  refused("\"low_rank\"", unlike, "takes a weight, A and B, not 2 tensors");
  expect_error(ErrorCode::kDtype, "takes floating tensors, not int64",
               [&] { done("{ op = \"add\", value = 1 }", one({5})); });
  expect_error(ErrorCode::kDtype, "not int64",
               [&] { done("{ op = \"pad\", to = 9, value = 1 }", one({5})); });
  expect_error(ErrorCode::kOverflow, "too large",
               [&] { done("{ op = \"pad\", to = 4611686018427387904 }", one({5})); });
}

TEST(Operation, what_is_declared_wrongly_is_refused_by_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"\"transpos\"", "did you mean transpose?"},
      {"3", "line 1"},
      {"{ dim = 1 }", "'op'"},
      {"{ op = \"transpose\", dims = [1] }", "needs two dims"},
      {"\"permute\"", "'order'"},
      {"\"reshape\"", "'to'"},
      {"{ op = \"rotary\", heads = 2, to = \"thirds\" }", "pairs or halves"},
      {"{ op = \"stack\", sizes = [1] }", "'sizes'"},
      {"{ op = \"trim\", to = 1, value = 2 }", "'value'"},
      {"{ op = \"cast\", to = \"int32\" }", "not a floating dtype"},
      {"{ op = \"add\", value = inf }", "line 1"},
      {"{ op = \"split_qkv\", heads = 1, kv_heads = 1, value_dim = 2 }", "'value_dim'"},
      {"\"repeat\"", "'count'"},
      {"{ op = \"low_rank\", rank = 2 }", "'rank'"},
      {"{ op = \"low_rank\", fan_in_fan_out = 1 }", "line 1"},
      {"{ op = \"split\", sizes = \"any\" }", "line 1"},
      {"{ op = \"dequantize\", scales = \"row\" }", "rows, tensor or mxfp4, not 'row'"},
      {"{ op = \"dequantize\", block = [1] }", "needs a block of two sizes"},
      {"{ op = \"dequantize\", scales = \"rows\", block = [1, 2] }", "'block'"},
      {"{ op = \"quantize\", to = \"float16\" }", "'to'"},
      {"{ op = \"quantize\", scales = \"mxfp4\" }", "cannot make mxfp4"},
      {"{ op = \"quantize\", scheme = \"int5\" }",
       "no scheme 'int5' of this dialect; there are fp8"},
      {"{ op = \"quantize\", scheme = \"int4\", dialect = \"transformers\" }",
       "there are fp8-block"},
      {"{ op = \"quantize\", scheme = \"int4\", dialect = \"gguf\" }", "not 'gguf'"},
      {"{ op = \"quantize\", scheme = \"nvfp4\", group = 32 }",
       "nvfp4 has no groups of other sizes"},
      {"{ op = \"quantize\", scheme = \"int4\", group = 0 }", "at least one element"},
      {"{ op = \"quantize\", scheme = \"int4\", block = [1, 2] }", "'block'"}};
  for (const auto& [text, says] : cases)
    expect_error(ErrorCode::kUsage, says, [text = text] { operation(text); });
}

}  // namespace
}  // namespace fsdp::formats::map
