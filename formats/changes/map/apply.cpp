// SPDX-License-Identifier: Apache-2.0
// Applies operations to arrays.
#include <algorithm>
#include <numeric>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/arrays/low_rank_update.h"
#include "formats/changes/map/heads.h"
#include "formats/changes/map/node_reader.h"
#include "formats/changes/map/operation.h"
#include "formats/changes/map/scaling.h"

namespace fsdp::formats::map {
namespace {

using arrays::Arithmetic;
using arrays::Array;
using arrays::ElementStep;

using Shape = std::vector<std::int64_t>;

// Models stack some hundreds of experts.
constexpr std::size_t kMaxArrays = 1U << 16U;

Error misfit(const std::string& what) {
  return Error(ErrorCode::kShape, what);
}

std::string shapes_text(std::span<const Array> arrays) {
  std::string text;
  for (std::size_t i = 0; i < arrays.size() && i < 4; ++i)
    text += (i == 0 ? "" : ", ") + shape_text(arrays[i].shape);
  return text + (arrays.size() > 4 ? ", ..." : "");
}

std::size_t dim_of(std::int64_t dim, std::size_t rank, const Shape& shape) {
  const auto count = static_cast<std::int64_t>(rank);
  if (dim < -count || dim >= count)
    throw misfit(cat("there is no dimension ", dim, " in ", shape_text(shape)));
  return static_cast<std::size_t>(dim < 0 ? dim + count : dim);
}

// One operation on the arrays of one rule.
class Application {
 public:
  Application(const Operation& operation, std::vector<Array> arrays, std::size_t results,
              const ParameterValue& parameter)
      : operation_(operation),
        arrays_(std::move(arrays)),
        results_(results),
        parameter_(parameter) {}

  std::vector<Array> run() {
    switch (operation_.kind) {
      case OperationKind::kConcatenate:
        return {concatenate()};
      case OperationKind::kSplit:
        return split();
      case OperationKind::kStack:
        return {stack()};
      case OperationKind::kUnstack:
        return unstack();
      case OperationKind::kFuseQkv:
        return {fuse_qkv()};
      case OperationKind::kSplitQkv:
        return split_qkv();
      case OperationKind::kTie:
        return std::vector<Array>(results_, single());
      case OperationKind::kUntie:
        return {arrays_.at(0)};
      case OperationKind::kDequantize:
        return dequantized(operation_, arrays_, parameter_);
      case OperationKind::kQuantize:
        return quantized(operation_, arrays_, parameter_);
      case OperationKind::kLowRank:
        return {low_rank()};
      default:
        for (Array& array : arrays_) array = each(array);
        return std::move(arrays_);
    }
  }

 private:
  Error wants(const std::string& what) const {
    return misfit(cat(operation_name(operation_.kind), " takes ", what, ", not ", arrays_.size(),
                      arrays_.size() == 1 ? " tensor" : " tensors"));
  }

  const Array& single() const {
    if (arrays_.size() != 1) throw wants("one tensor");
    return arrays_[0];
  }

  std::int64_t value(const Expression& expression) const { return expression.value(parameter_); }
  std::int64_t size_value(const Expression& expression) const {
    const std::int64_t size = value(expression);
    if (size < 0) throw misfit(cat(quote(expression.text()), " is ", size, ", less than 0"));
    return size;
  }

  void check_alike(std::span<const Array> arrays, std::size_t but) const {
    if (arrays.empty()) throw wants("at least one tensor");
    for (const Array& array : arrays) {
      if (array.dtype != arrays[0].dtype) {
        throw Error(ErrorCode::kDtype,
                    cat(operation_name(operation_.kind), " takes tensors of one dtype, not ",
                        torch_name(arrays[0].dtype), " and ", torch_name(array.dtype)));
      }
      bool alike = array.shape.size() == arrays[0].shape.size();
      for (std::size_t d = 0; alike && d < array.shape.size(); ++d)
        alike = d == but || array.shape[d] == arrays[0].shape[d];
      if (!alike) {
        throw misfit(cat(operation_name(operation_.kind), " takes tensors of like shapes, not ",
                         shape_text(arrays[0].shape), " and ", shape_text(array.shape)));
      }
    }
  }

  Array concatenate() const {
    if (arrays_.empty()) throw wants("at least one tensor");
    const std::size_t dim = dim_of(operation_.dims[0], arrays_[0].shape.size(), arrays_[0].shape);
    check_alike(arrays_, dim);
    if (operation_.sizes && operation_.sizes->size() != arrays_.size())
      throw wants(cat(operation_.sizes->size(), " tensors, as many as sizes"));
    std::int64_t total = 0;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const std::int64_t size = arrays_[i].shape[dim];
      if (__builtin_add_overflow(total, size, &total))
        throw Error(ErrorCode::kOverflow, "sizes exceed 64 bits");
      if (operation_.any_sizes) continue;
      const std::int64_t expected =
          operation_.sizes ? size_value((*operation_.sizes)[i]) : arrays_[0].shape[dim];
      if (size != expected) {
        throw misfit(cat("tensor ", i, " has ", size, " in dimension ", dim, " of ",
                         shape_text(arrays_[i].shape), ", expected ", expected,
                         operation_.sizes ? "" : ", as the first; unequal parts need `sizes`"));
      }
    }
    return concatenated(arrays_, dim);
  }

  std::vector<Array> split() const {
    const Array& array = single();
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    Shape sizes;
    if (operation_.sizes) {
      for (const Expression& size : *operation_.sizes) sizes.push_back(size_value(size));
    } else {
      const auto count = static_cast<std::int64_t>(results_);
      if (count == 0 || array.shape[dim] % count != 0) {
        throw misfit(cat("dimension ", dim, " of ", shape_text(array.shape),
                         " is not divisible into ", count, " equal parts"));
      }
      sizes.assign(results_, array.shape[dim] / count);
    }
    std::int64_t left = array.shape[dim];
    std::vector<Array> out;
    for (const std::int64_t size : sizes) {
      if (size > left) break;
      out.push_back(sliced(array, dim, array.shape[dim] - left, size));
      left -= size;
    }
    if (left != 0 || out.size() != sizes.size()) {
      throw misfit(cat("sizes ", shape_text(sizes), " do not add up to dimension ", dim, " of ",
                       shape_text(array.shape)));
    }
    return out;
  }

  Array stack() const {
    if (arrays_.empty()) throw wants("at least one tensor");
    const std::size_t rank = arrays_[0].shape.size() + 1;
    const std::size_t dim = dim_of(operation_.dims[0], rank, arrays_[0].shape);
    check_alike(arrays_, rank);
    return stacked(arrays_, dim);
  }

  std::vector<Array> unstack() const {
    const Array& array = single();
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    if (array.shape[dim] > static_cast<std::int64_t>(kMaxArrays)) {
      throw misfit(cat("unstack would make ", array.shape[dim], " tensors of ",
                       shape_text(array.shape), ", at most ", kMaxArrays));
    }
    std::vector<Array> out;
    for (std::int64_t i = 0; i < array.shape[dim]; ++i)
      out.push_back(without_dimension(sliced(array, dim, i, 1), dim));
    return out;
  }

  // Returns `array` with its first dimension split into `groups`.
  Array grouped(const Array& array, std::int64_t groups) const {
    if (array.shape.empty() || array.shape[0] % groups != 0) {
      throw misfit(
          cat("dimension 0 of ", shape_text(array.shape), " is not divisible by ", groups));
    }
    Shape shape = array.shape;
    shape[0] /= groups;
    shape.insert(shape.begin(), groups);
    return reshaped(array, shape);
  }

  static Array ungrouped(const Array& array) {
    Shape shape(array.shape.begin() + 1, array.shape.end());
    shape[0] *= array.shape[0];
    return reshaped(array, shape);
  }

  Array fuse_qkv() const {
    if (arrays_.size() != (operation_.gated ? 4U : 3U))
      throw wants(operation_.gated ? "query, gate, key and value" : "query, key and value");
    check_alike(arrays_, 0);
    for (const Array& array : arrays_)
      if (array.shape.empty()) throw misfit("a number has no heads");
    const Heads heads =
        heads_of(operation_, {0, arrays_[0].shape[0], arrays_.end()[-2].shape[0]}, parameter_);
    std::vector<Array> parts;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      parts.push_back(grouped(arrays_[i], heads.groups));
      if (parts[i].shape[1] != heads.rows[i]) {
        throw misfit(cat("shapes ", shapes_text(arrays_), " are not those of ", heads.text()));
      }
    }
    return ungrouped(concatenated(parts, 1));
  }

  std::vector<Array> split_qkv() const {
    const Shape& shape = single().shape;
    const Heads heads = heads_of(operation_, {shape.empty() ? 1 : shape[0]}, parameter_);
    const Array parts = grouped(single(), heads.groups);
    if (parts.shape[1] != std::accumulate(heads.rows.begin(), heads.rows.end(), std::int64_t{0})) {
      throw misfit(cat("dimension 0 of ", shape_text(shape), " is not that of ", heads.text()));
    }
    std::vector<Array> out;
    std::int64_t at = 0;
    for (const std::int64_t rows : heads.rows) {
      out.push_back(ungrouped(sliced(parts, 1, at, rows)));
      at += rows;
    }
    return out;
  }

  Array low_rank() const {
    if (arrays_.size() != 3) throw wants("a weight, A and B");
    return arrays::with_low_rank_update(
        arrays_[0], {arrays_[1], arrays_[2], operation_.number, operation_.turned});
  }

  Array each(const Array& array) const {
    switch (operation_.kind) {
      case OperationKind::kTranspose:
        return transpose(array);
      case OperationKind::kPermute:
        return permute(array);
      case OperationKind::kReshape:
        return reshape(array);
      case OperationKind::kSwap:
        return swap(array);
      case OperationKind::kRotary:
        return rotary(array);
      case OperationKind::kPad:
        return pad(array);
      case OperationKind::kTrim:
        return trim(array);
      case OperationKind::kRepeat:
        return repeat(array);
      case OperationKind::kEvery:
        return every(array);
      default:
        return compute(array);
    }
  }

  Array repeat(const Array& array) const {
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    const std::int64_t count = size_value(operation_.to[0]);
    if (count < 1 || count > static_cast<std::int64_t>(kMaxArrays))
      throw misfit(cat("repeat makes 1 to ", kMaxArrays, " of one, not ", count));
    Shape shape = array.shape;
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, 1);
    const std::vector<Array> copies(static_cast<std::size_t>(count), reshaped(array, shape));
    shape = array.shape;
    shape[dim] *= count;
    return reshaped(concatenated(copies, dim + 1), shape);
  }

  Array every(const Array& array) const {
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    const std::int64_t count = size_value(operation_.to[0]);
    if (count < 1 || array.shape[dim] % count != 0) {
      throw misfit(
          cat("dimension ", dim, " of ", shape_text(array.shape), " is not divisible by ", count));
    }
    Shape shape = array.shape;
    shape[dim] /= count;
    Shape apart = shape;
    apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(dim) + 1, count);
    return reshaped(sliced(reshaped(array, apart), dim + 1, 0, 1), shape);
  }

  Array transpose(const Array& array) const {
    const std::size_t rank = array.shape.size();
    std::vector<std::size_t> order(rank);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::swap(order[dim_of(operation_.dims[0], rank, array.shape)],
              order[dim_of(operation_.dims[1], rank, array.shape)]);
    return permuted(array, order);
  }

  Array permute(const Array& array) const {
    std::vector<std::size_t> order;
    for (const std::int64_t dim : operation_.dims)
      order.push_back(dim_of(dim, array.shape.size(), array.shape));
    std::vector<std::size_t> sorted = order;
    std::ranges::sort(sorted);
    if (order.size() != array.shape.size() || std::ranges::adjacent_find(sorted) != sorted.end()) {
      throw misfit(cat("order ", shape_text(operation_.dims), " is not one of the dimensions of ",
                       shape_text(array.shape)));
    }
    return permuted(array, order);
  }

  Shape sizes_of(const std::vector<Expression>& expressions, const Shape& from) const {
    Shape shape;
    const std::uint64_t numel = volume({from, from});
    std::uint64_t known = 1;
    std::optional<std::size_t> open;
    for (const Expression& expression : expressions) {
      const std::int64_t size = value(expression);
      if (size == -1 && !open) {
        open = shape.size();
      } else if (size < 0 ||
                 __builtin_mul_overflow(known, static_cast<std::uint64_t>(size), &known)) {
        throw misfit(cat("a size of ", size, " does not fit ", shape_text(from)));
      }
      shape.push_back(size);
    }
    if (open) {
      if (known == 0 || numel % known != 0)
        throw misfit(cat(shape_text(from), " cannot become ", shape_text(shape)));
      shape[*open] = static_cast<std::int64_t>(numel / known);
    } else if (known != numel) {
      throw misfit(
          cat(shape_text(from), " has ", numel, " elements and cannot become ", shape_text(shape)));
    }
    return shape;
  }

  Array reshape(const Array& array) const {
    if (operation_.from) {
      const Shape from = sizes_of(*operation_.from, array.shape);
      if (from != array.shape)
        throw misfit(cat("is ", shape_text(array.shape), ", expected ", shape_text(from)));
    }
    return reshaped(array, sizes_of(operation_.to, array.shape));
  }

  Array swap(const Array& array) const {
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    const std::int64_t half = array.shape[dim] / 2;
    if (array.shape[dim] != 2 * half)
      throw misfit(cat("dimension ", dim, " of ", shape_text(array.shape), " has no halves"));
    const Array halves[] = {sliced(array, dim, half, half), sliced(array, dim, 0, half)};
    return concatenated(halves, dim);
  }

  Array rotary(const Array& array) const {
    const std::int64_t heads = value(operation_.heads[0]);
    if (heads <= 0 || array.shape.empty() || array.shape[0] % heads != 0 ||
        array.shape[0] / heads % 2 != 0) {
      throw misfit(cat("dimension 0 of ", shape_text(array.shape), " is not that of ", heads,
                       " heads of an even size"));
    }
    const std::int64_t half = array.shape[0] / heads / 2;
    Shape inner = {heads, operation_.halves ? half : 2, operation_.halves ? 2 : half};
    inner.insert(inner.end(), array.shape.begin() + 1, array.shape.end());
    std::vector<std::size_t> order(inner.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::swap(order[1], order[2]);
    return reshaped(permuted(reshaped(array, inner), order), array.shape);
  }

  void check_from(const Array& array, std::size_t dim) const {
    if (!operation_.from) return;
    const std::int64_t from = size_value(operation_.from->front());
    if (array.shape[dim] == from) return;
    throw misfit(cat("dimension ", dim, " of ", shape_text(array.shape), " is not ", from));
  }

  Array pad(const Array& array) const {
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    check_from(array, dim);
    const std::int64_t to = size_value(operation_.to[0]);
    if (to < array.shape[dim]) {
      throw misfit(
          cat("dimension ", dim, " of ", shape_text(array.shape), " cannot be padded to ", to));
    }
    if (operation_.number != 0 && !is_floating(array.dtype)) throw not_floating(array);
    Shape rest = array.shape;
    rest[dim] = to - array.shape[dim];
    Shape all = array.shape;
    all[dim] = to;
    arrays::check_bytes(all, array.dtype);
    const Array both[] = {array, arrays::constant_array(array.dtype, rest, operation_.number)};
    return concatenated(both, dim);
  }

  Array trim(const Array& array) const {
    const std::size_t dim = dim_of(operation_.dims[0], array.shape.size(), array.shape);
    check_from(array, dim);
    const std::int64_t to = size_value(operation_.to[0]);
    if (to > array.shape[dim]) {
      throw misfit(
          cat("dimension ", dim, " of ", shape_text(array.shape), " cannot be trimmed to ", to));
    }
    return sliced(array, dim, 0, to);
  }

  Error not_floating(const Array& array) const {
    return Error(ErrorCode::kDtype,
                 cat(operation_name(operation_.kind), " takes floating tensors, ", "not ",
                     torch_name(array.dtype)));
  }

  Array compute(const Array& array) const {
    if (!is_floating(array.dtype)) throw not_floating(array);
    ElementStep step;
    step.number = operation_.number;
    if (operation_.kind == OperationKind::kCast) {
      if (operation_.was && array.dtype != *operation_.was) {
        throw Error(ErrorCode::kDtype, cat("is ", torch_name(array.dtype), ", expected ",
                                           torch_name(*operation_.was)));
      }
      step.to = operation_.dtype;
    } else {
      step.kind = operation_.kind == OperationKind::kAdd ? Arithmetic::kAdd : Arithmetic::kScale;
    }
    return with_step(array, step);
  }

  const Operation& operation_;
  std::vector<Array> arrays_;
  std::size_t results_;
  const ParameterValue& parameter_;
};

}  // namespace

std::vector<Array> applied(const Operation& operation, std::vector<Array> arrays,
                           std::size_t results, const ParameterValue& parameter) {
  if (operation.of.empty())
    return Application(operation, std::move(arrays), results, parameter).run();
  for (const std::int64_t place : operation.of) {
    const auto at = static_cast<std::size_t>(place);
    if (at >= arrays.size()) {
      throw Error(ErrorCode::kShape, cat(operation_name(operation.kind), " is of tensor ", place,
                                         ", counted from 0, and there are ", arrays.size()));
    }
    arrays[at] = Application(operation, {arrays[at]}, 1, parameter).run().at(0);
  }
  return arrays;
}

}  // namespace fsdp::formats::map
