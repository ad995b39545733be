// SPDX-License-Identifier: Apache-2.0
// Moves of arrays against the same moves of elements, one by one.
#include "formats/changes/arrays/array.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/formats/changes/arrays/dense_operand.h"

namespace fsdp::formats::arrays {
namespace {

using Shape = std::vector<std::int64_t>;

// Makes the tensor of `shape` whose element at an index is `at(index)`.
template <typename At>
Counted made(Shape shape, const At& at) {
  Counted out{shape, {}};
  const std::uint64_t count = volume({shape, shape});
  for (std::uint64_t n = 0; n < count; ++n) {
    Shape index(shape.size());
    std::uint64_t rest = n;
    for (std::size_t d = shape.size(); d-- > 0;) {
      index[d] = static_cast<std::int64_t>(rest % static_cast<std::uint64_t>(shape[d]));
      rest /= static_cast<std::uint64_t>(shape[d]);
    }
    out.elements.push_back(at(index));
  }
  return out;
}

std::int64_t element(const Counted& tensor, const Shape& index) {
  std::int64_t place = 0;
  for (std::size_t d = 0; d < index.size(); ++d) place = place * tensor.shape[d] + index[d];
  return tensor.elements.at(static_cast<std::size_t>(place));
}

struct Both {
  Array array;
  Counted tensor;
};

class Moves {
 public:
  explicit Moves(unsigned seed) : random_(seed) {}

  std::int64_t below(std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random_);
  }

  Both begin() {
    Shape shape(static_cast<std::size_t>(below(4)) + 1);
    for (std::int64_t& size : shape) size = below(6) + 1;
    if (below(20) == 0) shape.clear();
    const Counted tensor = counted(shape);
    return {array_of(tensor, below(3) + 1), tensor};
  }

  void step(Both& both) {
    const std::size_t rank = both.tensor.shape.size();
    const auto dim =
        rank == 0 ? 0 : static_cast<std::size_t>(below(static_cast<std::int64_t>(rank)));
    switch (below(5)) {
      case 0:
        return permute(both);
      case 1:
        return reshape(both);
      case 2:
        return rank == 0 ? void() : slice(both, dim);
      case 3:
        return rank == 0 ? void() : concatenate(both, dim);
      default:
        return unsqueeze(both, dim);
    }
  }

 private:
  void permute(Both& both) {
    std::vector<std::size_t> order(both.tensor.shape.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    Shape shape;
    for (const std::size_t d : order) shape.push_back(both.tensor.shape[d]);
    both.tensor = made(shape, [&](const Shape& index) {
      Shape from(index.size());
      for (std::size_t d = 0; d < order.size(); ++d) from[order[d]] = index[d];
      return element(both.tensor, from);
    });
    both.array = permuted(both.array, order);
  }

  void reshape(Both& both) {
    auto left = static_cast<std::int64_t>(both.tensor.elements.size());
    Shape shape;
    while (left > 1 && shape.size() < 3) {
      std::int64_t size = below(left) + 1;
      while (left % size != 0) --size;
      shape.push_back(size);
      left /= size;
    }
    shape.push_back(left);
    // Few parts: what does not fit is gathered.
    both.array = reshaped(both.array, shape, below(2) == 0 ? 1 : kMaxParts);
    both.tensor.shape = shape;
  }

  void slice(Both& both, std::size_t dim) {
    const std::int64_t begin = below(both.tensor.shape[dim]);
    const std::int64_t size = below(both.tensor.shape[dim] - begin) + 1;
    Shape shape = both.tensor.shape;
    shape[dim] = size;
    both.tensor = made(shape, [&](Shape index) {
      index[dim] += begin;
      return element(both.tensor, index);
    });
    both.array = sliced(both.array, dim, begin, size);
  }

  void concatenate(Both& both, std::size_t dim) {
    if (both.tensor.elements.size() > 2000) return;
    Shape shape = both.tensor.shape;
    shape[dim] = below(3) + 1;
    const Counted other = counted(shape, 10'000 * (below(9) + 1));
    const bool first = below(2) == 0;
    const Counted& a = first ? other : both.tensor;
    const Counted& b = first ? both.tensor : other;
    shape[dim] += both.tensor.shape[dim];
    Counted joined = made(shape, [&](Shape index) {
      if (index[dim] < a.shape[dim]) return element(a, index);
      index[dim] -= a.shape[dim];
      return element(b, index);
    });
    const Array added = array_of(other, below(3) + 1);
    const Array arrays[] = {first ? added : both.array, first ? both.array : added};
    both.array = concatenated(arrays, dim);
    both.tensor = std::move(joined);
  }

  static void unsqueeze(Both& both, std::size_t dim) {
    if (both.tensor.shape.size() > dim && both.tensor.shape[dim] == 1) {
      both.array = without_dimension(both.array, dim);
      both.tensor.shape.erase(both.tensor.shape.begin() + static_cast<std::ptrdiff_t>(dim));
    } else if (both.tensor.shape.size() < 6) {
      both.array = with_dimension(both.array, dim);
      both.tensor.shape.insert(both.tensor.shape.begin() + static_cast<std::ptrdiff_t>(dim), 1);
    }
  }

  std::mt19937 random_;
};

TEST(Array, chains_of_moves_are_the_moves_of_elements) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    Moves moves(seed);
    Both both = moves.begin();
    for (std::int64_t step = moves.below(7); step >= 0; --step) {
      moves.step(both);
      ASSERT_EQ(both.array.shape, both.tensor.shape) << seed;
    }
    ASSERT_EQ(elements_of(both.array), both.tensor.elements) << seed;
  }
}

TEST(Array, a_transposed_tensor_is_one_part_of_its_chunk) {
  const std::size_t order[] = {1, 0};
  const Array array = permuted(array_of(counted({3, 4})), order);
  ASSERT_EQ(placed_parts(array).size(), 1U);
  const PlacedPart part = placed_parts(array)[0];
  EXPECT_EQ(chunk_data(part, part.operand->open(0)).strides, (Shape{1, 4}));
}

TEST(Array, parts_are_cut_along_chunks) {
  EXPECT_EQ(placed_parts(array_of(counted({6, 2}), 2)).size(), 3U);
  EXPECT_EQ(placed_parts(sliced(array_of(counted({6, 2}), 2), 0, 1, 3)).size(), 2U);
}

TEST(Array, empty_tensors_have_no_parts) {
  EXPECT_TRUE(placed_parts(array_of(counted({0, 4}))).empty());
  EXPECT_TRUE(placed_parts(reshaped(array_of(counted({0, 4})), Shape{2, 0})).empty());
}

}  // namespace
}  // namespace fsdp::formats::arrays
