// SPDX-License-Identifier: Apache-2.0
// CMakeLists.txt keeps compilers from fusing multiplications and additions.
#include "formats/changes/arithmetic/low_rank_factors.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/threads.h"

namespace fsdp::formats {
namespace {

// Elements read at a time, in whole rows: at least one row.
constexpr std::size_t kRowsNumel = 1U << 20U;
constexpr std::size_t kMaxRowsAtOnce = 512;
// Vectors or rows that a thread takes at a time.
constexpr std::size_t kShare = 8;
// Limits of the energy: inside them, its square neither overflows nor vanishes.
constexpr double kLeastEnergy = 1e-140;
constexpr double kMostEnergy = 1e140;
// If the projection misses at most this part of the energy, it holds the whole matrix, up to
// rounding.
constexpr double kWhole = 1e-14;
// Singular values below this part of the largest one are rounding errors.
constexpr double kLeastValue = 1e-12;

// Calls each(begin, end) for parts of [0, count), on several threads.
template <typename Each>
void in_shares(unsigned threads, std::size_t count, const Each& each) {
  std::atomic<std::size_t> next{0};
  const auto work = [&](std::size_t /*thread*/) {
    for (std::size_t begin; (begin = next.fetch_add(kShare)) < count;)
      each(begin, std::min(begin + kShare, count));
  };
  const std::size_t shares = (count + kShare - 1) / kShare;
  const std::size_t helpers = std::min<std::size_t>(threads, shares);
  const auto running = start_helpers(helpers > 1 ? helpers - 1 : 0, work);
  work(0);
}

// Reads a matrix block by block.
class Blocks {
 public:
  explicit Blocks(MatrixRows& matrix)
      : matrix_(matrix),
        most_(std::clamp<std::size_t>(kRowsNumel / matrix.columns(), 1,
                                      std::min(kMaxRowsAtOnce, matrix.rows()))),
        rows_(most_ * matrix.columns()) {}

  // Calls each(first, count) for each block, whose rows rows() returns.
  template <typename Each>
  void run(const Each& each) {
    for (std::size_t first = 0; first < matrix_.rows(); first += most_) {
      throw_if_interrupted();
      const std::size_t count = std::min(most_, matrix_.rows() - first);
      matrix_.read(first, std::span(rows_).first(count * matrix_.columns()));
      each(first, count);
    }
  }
  std::vector<double>& rows() { return rows_; }

 private:
  MatrixRows& matrix_;
  std::size_t most_;
  std::vector<double> rows_;
};

// One random projection.
class Projection {
 public:
  Projection(MatrixRows& matrix, const FactorOptions& options)
      : options_(options),
        rows_(matrix.rows()),
        columns_(matrix.columns()),
        count_(std::min({options.rank + options.rank / 2 + 8, rows_, columns_})),
        blocks_(matrix),
        turned_(blocks_.rows().size()),
        range_(count_, columns_),
        image_(count_, rows_),
        back_(count_, columns_) {}

  std::optional<LowRankFactors> run() {
    fill_range();
    for (int pass = 0; pass < options_.passes; ++pass) {
      apply(pass == 0, true);
      if (pass == 0 && !nonzero_) return std::nullopt;
      if (pass == 0 && !(energy_ >= kLeastEnergy && energy_ <= kMostEnergy)) {
        throw Error(ErrorCode::kUnsupported,
                    "has elements too large or too small to be factorized");
      }
      if (pass != 0 && holds_all()) return factors();
      std::swap(range_, back_);
      orthonormalize(range_);
    }
    apply(false, false);
    return factors();
  }

 private:
  void fill_range() {
    std::uint64_t state = 0;
    for (double& number : range_.elements) {
      state += 0x9E3779B97F4A7C15U;
      std::uint64_t mixed = state;
      mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9U;
      mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBU;
      mixed = mixed ^ (mixed >> 31U);
      number = static_cast<double>(static_cast<std::int64_t>(mixed) >> 10) * 0x1p-53;
    }
  }

  // image = M range; back = M^T image.
  void apply(bool measure, bool with_back) {
    std::ranges::fill(image_.elements, 0.0);
    std::ranges::fill(back_.elements, 0.0);
    blocks_.run([&](std::size_t first, std::size_t count) {
      const double* const block = blocks_.rows().data();
      if (measure) measure_rows(block, count);
      // Zeros add nothing: most of a model may be unchanged.
      if (std::all_of(block, block + count * columns_, [](double element) { return element == 0; }))
        return;
      for (std::size_t r = 0; r < count; ++r) {
        for (std::size_t c = 0; c < columns_; ++c) turned_[c * count + r] = block[r * columns_ + c];
      }
      in_shares(options_.threads, count_, [&](std::size_t begin, std::size_t end) {
        const Rows<double> image{image_.at(begin) + first, rows_};
        add_product(image, {range_.at(begin), columns_}, {turned_.data(), count}, end - begin,
                    columns_, count);
        if (!with_back) return;
        add_product({back_.at(begin), columns_}, {image.begin, image.stride}, {block, columns_},
                    end - begin, count, columns_);
      });
    });
  }

  void measure_rows(const double* block, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r) {
      const double* const row = block + r * columns_;
      energy_ = energy_ + dot(row, row, columns_);
      nonzero_ =
          nonzero_ || std::any_of(row, row + columns_, [](double element) { return element != 0; });
    }
  }

  bool holds_all() const {
    double held = 0;
    for (std::size_t k = 0; k < count_; ++k) held = held + dot(image_.at(k), image_.at(k), rows_);
    return held >= energy_ - kWhole * energy_;
  }

  LowRankFactors factors() {
    diagonalize(image_, range_);
    LowRankFactors out{Vectors(options_.rank, rows_), Vectors(options_.rank, columns_), energy_, 0};
    double largest = 0;
    for (std::size_t k = 0; k < options_.rank; ++k) {
      const double square = dot(image_.at(k), image_.at(k), rows_);
      const double value = std::sqrt(square);
      largest = std::max(largest, value);
      if (value <= kLeastValue * largest) break;
      out.kept = out.kept + square;
      const double root = std::sqrt(value);
      for (std::size_t i = 0; i < rows_; ++i) out.left.at(k)[i] = image_.at(k)[i] / root;
      for (std::size_t i = 0; i < columns_; ++i) out.right.at(k)[i] = range_.at(k)[i] * root;
    }
    return out;
  }

  const FactorOptions& options_;
  std::size_t rows_;
  std::size_t columns_;
  std::size_t count_;  // of vectors
  Blocks blocks_;
  std::vector<double> turned_;  // the block with its rows as columns
  Vectors range_;
  Vectors image_;
  Vectors back_;
  double energy_ = 0;
  bool nonzero_ = false;
};

}  // namespace

std::optional<LowRankFactors> low_rank_factors(MatrixRows& matrix, const FactorOptions& options) {
  if (matrix.rows() == 0 || matrix.columns() == 0) return std::nullopt;
  return Projection(matrix, options).run();
}

double residual_energy(MatrixRows& matrix, const Vectors& left, const Vectors& right,
                       unsigned threads) {
  const std::size_t columns = matrix.columns();
  Blocks blocks(matrix);
  std::vector<double> factors;  // for each row of the block, its elements of `left`, negated
  std::vector<double> sums;
  double energy = 0;
  blocks.run([&](std::size_t first, std::size_t count) {
    factors.resize(count * left.count);
    sums.resize(count);
    double* const block = blocks.rows().data();
    in_shares(threads, count, [&](std::size_t begin, std::size_t end) {
      for (std::size_t r = begin; r < end; ++r) {
        for (std::size_t k = 0; k < left.count; ++k)
          factors[r * left.count + k] = -left.at(k)[first + r];
      }
      add_product({block + begin * columns, columns}, {&factors[begin * left.count], left.count},
                  {right.elements.data(), columns}, end - begin, left.count, columns);
      for (std::size_t r = begin; r < end; ++r)
        sums[r] = dot(block + r * columns, block + r * columns, columns);
    });
    for (const double sum : sums) energy = energy + sum;
  });
  return energy;
}

}  // namespace fsdp::formats
