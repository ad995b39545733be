// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/model_division.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"
#include "tests/support/expect_error.h"

namespace fsdp::formats::flat {
namespace {

using Kind = FlatModel::Member::Kind;

FlatRun run(std::uint32_t file, std::int64_t begin, std::int64_t count) {
  return {.file = file, .begin = begin, .count = count, .view = {}};
}

// A model with a flat parameter of itself and one of "b", and a buffer, on two ranks.
FlatModel model(std::int64_t own, std::int64_t of_b) {
  FlatModel out;
  const auto flat = [](const std::string& module, std::int64_t numel) {
    const std::int64_t half = (numel + 1) / 2;
    FlatParameter one{.key = module + "_flat_param", .module = module};
    one.size = {.numel = numel, .shard = half};
    one.runs = {run(0, 0, half), run(1, half, numel - half)};
    return one;
  };
  out.flats = {flat("", own), flat("b", of_b)};
  out.members = {{Kind::kFlat, 0, "_flat_param"},
                 {Kind::kFlat, 1, "b._flat_param"},
                 {Kind::kOther, 0, "seen"}};
  return out;
}

bool any_padding(const FlatParameter& /*flat*/, const FlatRange& /*range*/, bool /*at_end*/) {
  return true;
}

std::string text(const ModelDivision& division) {
  std::string out;
  for (const DividedParameter& one : division.parameters) {
    out += cat(out.empty() ? "" : ", ", one.listed->name, " ", one.flat, ":", one.begin, "+",
               one.numel, one.tied ? " tied" : "");
  }
  return out;
}

ParameterList list(std::vector<ListedParameter> parameters) {
  return {.origin = "x.json", .parameters = std::move(parameters)};
}

TEST(ModelDivision, modules_tell_the_flat_parameter_and_the_list_the_order) {
  const ParameterList given =
      list({{"seen", {9}}, {"w", {2, 3}}, {"b.w", {4}}, {"b.c.w", {3}}, {"v", {1}}});
  EXPECT_EQ(text(divide(model(7, 7), given, any_padding)),
            "w 0:0+6, b.w 1:0+4, b.c.w 1:4+3, v 0:6+1");
}

TEST(ModelDivision, tied_names_have_no_elements_of_their_own) {
  ParameterList given = list({{"w", {2, 3}}, {"b.w", {4}}, {"head", {2, 3}}});
  test::expect_error(
      ErrorCode::kShape,
      "the flat parameter of the model itself has 6 elements, expected 12 in the 2 parameters of "
      "x.json from 'w' to 'head', and padding; it would fit if 'head' were tied to 'w'",
      [&] { (void)divide(model(6, 4), given, any_padding); });
  given.parameters[2].tied = "w";
  EXPECT_EQ(text(divide(model(6, 4), given, any_padding)), "w 0:0+6, b.w 1:0+4, head 0:0+6 tied");
}

TEST(ModelDivision, what_the_list_does_not_name_stays_flat) {
  const ParameterList given = list({{"w", {6}}});
  const ModelDivision division = divide(model(6, 4), given, any_padding);
  EXPECT_EQ(text(division), "w 0:0+6");
  EXPECT_THAT(division.divided, testing::ElementsAre(1, 0));
}

TEST(ModelDivision, padding_decides_between_alignments) {
  // Two ranks: multiples of 2 and one element at the end, or multiples of 4.
  const ParameterList given = list({{"w", {1}}, {"v", {4}}, {"u", {1}}});
  FlatModel eight = model(8, 4);
  const auto sized = [&](std::int64_t numel) {
    eight.flats[0].size = {.numel = numel, .shard = numel / 2};
  };
  sized(8);
  EXPECT_EQ(text(divide(eight, given, any_padding)), "w 0:0+1, v 0:2+4, u 0:6+1");
  eight.flats[0].size = {.numel = 9, .shard = 3};
  test::expect_error(ErrorCode::kRekeyAmbiguous, "'v' may begin at element 2 or 4",
                     [&] { (void)divide(eight, given, any_padding); });
  const auto not_three = [](const FlatParameter&, const FlatRange& range, bool) {
    return range.begin > 3 || range.end <= 3;
  };
  EXPECT_EQ(text(divide(eight, given, not_three)), "w 0:0+1, v 0:2+4, u 0:6+1");
  test::expect_error(ErrorCode::kMismatch, "elements 1 to 2 would be padding",
                     [&] { (void)divide(eight, given, [](auto&&...) { return false; }); });
}

TEST(ModelDivision, an_unknown_order_is_refused_unless_files_name_the_parts) {
  ParameterList given = list({{"b", {1}}, {"w", {5}}});
  given.ordered = false;
  FlatModel named = model(6, 4);
  test::expect_error(ErrorCode::kRekeyAmbiguous, "may hold 'b' or 'w' first: the order in x.json",
                     [&] { (void)divide(named, given, any_padding); });
  named.named = {{"w", 0, {{0, {0, 3}}, {1, {3, 5}}}}, {"b", 0, {{0, {}}, {1, {5, 6}}}}};
  named.members = {{Kind::kNamed, 0, "w"}, {Kind::kNamed, 1, "b"}, {Kind::kFlat, 0, "_flat_param"}};
  EXPECT_EQ(text(divide(named, given, any_padding)), "b 0:5+1, w 0:0+5");
  given.parameters[0].shape = {2};
  given.parameters[1].shape = {4};
  test::expect_error(ErrorCode::kMismatch, "the places of parameters in the files are not those",
                     [&] { (void)divide(named, given, any_padding); });
  given.parameters.pop_back();
  test::expect_error(ErrorCode::kKey, "lacks the shape of 'w'",
                     [&] { (void)divide(named, given, any_padding); });
}

TEST(ModelDivision, names_that_the_files_lack_are_refused) {
  FlatModel apart = model(6, 4);
  apart.flats.erase(apart.flats.begin());
  apart.members = {{Kind::kFlat, 0, "b._flat_param"}};
  test::expect_error(ErrorCode::kKey, "'w' is neither a key of the files nor below a module", [&] {
    (void)divide(apart, list({{"w", {6}}, {"b.w", {4}}}), any_padding);
  });
  FlatModel shaped = model(6, 4);
  shaped.members[2].shape = {{3}};
  test::expect_error(ErrorCode::kShape, "'seen' has shape [4], in the files [3]", [&] {
    (void)divide(shaped, list({{"seen", {4}}, {"w", {6}}}), any_padding);
  });
  test::expect_error(ErrorCode::kKey, "'w' occurs twice", [&] {
    (void)divide(model(6, 4), list({{"w", {6}}, {"w", {6}}}), any_padding);
  });
}

}  // namespace
}  // namespace fsdp::formats::flat
