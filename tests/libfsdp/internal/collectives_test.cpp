// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/collectives.h"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/spawn_ranks.h"

namespace fsdp {
namespace {

using test::spawn_ranks;

const std::vector<int> kWorlds{1, 2, 3, 4};
const std::vector<std::int64_t> kSizes{0, 1, 7, 1000};
const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                          at::kLong,  at::kInt,    at::kByte,     at::kBool};

// What rank `rank` puts in: small whole numbers, so that sums are exact in every dtype.
at::Tensor input_of(int rank, std::int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel, at::kLong) * (rank + 1) % 7).to(dtype);
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& where) {
  TORCH_CHECK(found.scalar_type() == expected.scalar_type() && at::equal(found, expected), where,
              ": expected ", expected, ", but got ", found);
}

template <typename F>
void for_each_case(const F& f) {
  for (const int world : kWorlds) {
    spawn_ranks(world, [&](const auto& group) {
      for (const auto numel : kSizes) {
        for (const auto dtype : kDtypes) {
          f(group, numel, dtype, c10::str(world, " ranks, ", numel, " ", dtype));
        }
      }
    });
  }
}

TEST(Collectives, all_gather_holds_the_ranks_inputs_in_order) {
  for_each_case(
      [](const auto& group, std::int64_t numel, at::ScalarType dtype, const std::string& where) {
        std::vector<at::Tensor> parts;
        for (int r = 0; r < group->size(); ++r) parts.push_back(input_of(r, numel, dtype));
        auto output = at::empty({group->size() * numel}, dtype);
        all_gather(group, output, input_of(group->rank(), numel, dtype), "all-gather").wait();
        expect_equal(output, at::cat(parts), where);
      });
}

TEST(Collectives, all_to_all_transposes_blocks_and_ranks) {
  for_each_case([](const auto& group, std::int64_t numel, at::ScalarType dtype,
                   const std::string& where) {
    const auto world = group->size();
    std::vector<at::Tensor> parts;
    for (int r = 0; r < world; ++r) {
      parts.push_back(input_of(r, world * numel, dtype).narrow(0, group->rank() * numel, numel));
    }
    auto output = at::empty({world * numel}, dtype);
    all_to_all(group, output, input_of(group->rank(), world * numel, dtype), "all-to-all").wait();
    expect_equal(output, at::cat(parts), where);
  });
}

}  // namespace
}  // namespace fsdp
