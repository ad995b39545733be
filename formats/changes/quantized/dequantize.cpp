// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <variant>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;
using arrays::BlockGrid;
using arrays::Code;
using arrays::Packing;

using Shape = std::vector<std::int64_t>;

// The names of a weight's tensors, after the name of its module.
struct Names {
  std::vector<std::string_view> numbers;  // one of them
  std::string_view scales;
  std::string_view zeros;   // empty: none
  std::string_view second;  // the scale of the scales; empty: none
  std::string_view shape;   // holds the weight's shape; empty: none
  std::string_view order;   // the group of each input; empty: none
};

Names names_of(Dialect dialect) {
  switch (dialect) {
    case Dialect::kCompressedTensors:
      return {{".weight_packed", ".weight"}, ".weight_scale", ".weight_zero_point",
              ".weight_global_scale",        ".weight_shape", ".weight_g_idx"};
    case Dialect::kModelOpt:
      return {{".weight"}, ".weight_scale", "", ".weight_scale_2", "", ""};
    case Dialect::kTransformersFp8:
      return {{".weight"}, ".weight_scale_inv", "", "", "", ""};
    case Dialect::kGptOss:
      return {{"_blocks"}, "_scales", "", "", "", ""};
    case Dialect::kGptq:
      return {{".qweight"}, ".scales", ".qzeros", "", "", ".g_idx"};
    case Dialect::kAwq:
      break;
  }
  return {{".qweight"}, ".scales", ".qzeros", "", "", ""};
}

// Endings of tensors that belong to activations and caches of a quantized model.
constexpr std::array<std::string_view, 12> kOfActivations = {
    ".input_scale",  ".input_zero_point",  ".input_global_scale",  ".activation_scale",
    ".output_scale", ".output_zero_point", ".output_global_scale", ".k_scale",
    ".v_scale",      ".q_scale",           ".k_zero_point",        ".v_zero_point"};
// A tensor that inputs are multiplied with before the weight.
constexpr std::string_view kInputFactors = ".pre_quant_scale";
// AWQ's order of eight numbers in a word, as places from the lowest bits on.
constexpr std::array<std::uint8_t, 8> kAwqOrder = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr std::uint64_t kMostInputs = 1U << 24U;

bool is_float8(DType dtype) {
  return is_floating(dtype) && item_bytes(dtype) == 1 && dtype != DType::kFloat8E8M0FNU;
}

std::uint64_t numel(const Shape& shape) {
  return volume({shape, shape});
}

class Dequantizer {
 public:
  Dequantizer(const Checkpoint& source, const Settings& settings, DType to)
      : source_(source),
        settings_(settings),
        to_(to),
        names_(names_of(settings.dialect)),
        computed_(std::make_shared<arrays::ComputedTensors>(
            std::vector{std::make_shared<arrays::ArraySource>(source)})) {}

  DequantizedModel run(const Value& tensors) {
    for (const auto& [key, value] : members_of(tensors)) {
      const auto number = tensor_number(value);
      if (!number) throw unsupported(*key.as_string(), "is not a dense tensor");
      numbers_.emplace(*key.as_string(), *number);
    }
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : members_of(tensors)) {
      const std::string& name = *key.as_string();
      if (const auto weight = weight_at(name)) {
        entries.emplace_back(Value::string(weight->name),
                             computed_->shared({weight->name}, weight->array));
        ++counts_[weight->scheme];
      } else if (is_part(name)) {
        continue;
      } else if (of_activations(name)) {
        out_.left_out.push_back(name);
      } else {
        refuse_rest(name);
        entries.emplace_back(key, value);
      }
    }
    if (counts_.empty()) {
      throw Error(
          ErrorCode::kNotFound,
          cat(source_.description().path, ": no tensors of quantized weights, ", settings_.method,
              " names them NAME", names_.numbers[0], " and NAME", names_.scales));
    }
    out_.weights.assign(counts_.begin(), counts_.end());
    out_.content = Value::dict(std::move(entries));
    out_.checkpoint = std::move(computed_);
    return std::move(out_);
  }

 private:
  struct Weight {
    std::string name;
    std::string scheme;
    Array array;
  };
  // The tensors of a weight, by their roles.
  struct Parts {
    std::string name;  // of the numbers, for messages
    bool packed = false;
    Array numbers;
    Array scales;
    std::optional<Array> zeros = std::nullopt;
    std::optional<Array> second = std::nullopt;
    std::optional<Array> shape = std::nullopt;
    std::optional<Array> order = std::nullopt;
  };
  // A weight, or why a scheme does not explain its tensors.
  using Tried = std::variant<Array, std::string>;

  Error unsupported(const std::string& name, const std::string& what) const {
    return Error(ErrorCode::kUnsupported,
                 cat(source_.description().path, ": ", quote(name, 200), " ", what));
  }

  // Returns the name without an ending; nothing if it has another one.
  static std::optional<std::string> before(const std::string& name, std::string_view ending) {
    if (ending.empty() || !name.ends_with(ending) || name.size() == ending.size())
      return std::nullopt;
    return name.substr(0, name.size() - ending.size());
  }

  std::optional<Array> tensor(const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) return std::nullopt;
    return computed_->source_array(found->second);
  }
  std::optional<Array> part(const std::string& module, std::string_view ending) const {
    return ending.empty() ? std::nullopt : tensor(module + std::string(ending));
  }

  bool of_activations(const std::string& name) const {
    return std::ranges::any_of(kOfActivations,
                               [&](std::string_view end) { return name.ends_with(end); });
  }

  // Returns whether a tensor belongs to the numbers of a weight.
  bool is_part(const std::string& name) const {
    for (const std::string_view ending :
         {names_.scales, names_.zeros, names_.second, names_.shape, names_.order}) {
      const auto module = before(name, ending);
      if (!module) continue;
      for (const std::string_view numbers : names_.numbers) {
        if (numbers_.contains(*module + std::string(numbers)) && has_scales(*module)) return true;
      }
    }
    return false;
  }
  bool has_scales(const std::string& module) const {
    return numbers_.contains(module + std::string(names_.scales));
  }

  // Refuses a tensor that would be left over from a quantized weight.
  void refuse_rest(const std::string& name) const {
    const TensorEntry& entry = source_.index().tensors[numbers_.at(name)];
    if (name.ends_with(kInputFactors)) {
      throw unsupported(name,
                        "multiplies the inputs of a weight: the weight alone is not that of "
                        "the model before quantization");
    }
    for (const std::string_view ending :
         {names_.scales, names_.zeros, names_.second, names_.shape, names_.order}) {
      const auto module = before(name, ending);
      if (!module) continue;
      throw Error(ErrorCode::kNotFound,
                  cat(source_.description().path, ": ", quote(name, 200), " has no ",
                      quote(*module + std::string(names_.numbers[0]), 200), " beside it"));
    }
    if (is_float8(entry.dtype) || entry.dtype == DType::kFloat8E8M0FNU || is_numbers(name)) {
      throw Error(ErrorCode::kNotFound,
                  cat(source_.description().path, ": ", quote(name, 200), " is ",
                      arrays::tensor_text(entry), " and has no scales beside it, as ",
                      settings_.method, " names them: NAME", names_.scales));
    }
  }
  // Returns whether only quantized weights have that name.
  bool is_numbers(const std::string& name) const {
    return std::ranges::any_of(names_.numbers, [&](std::string_view ending) {
      return ending != ".weight" && name.ends_with(ending);
    });
  }

  std::optional<Weight> weight_at(const std::string& name) const {
    for (const std::string_view ending : names_.numbers) {
      const auto module = before(name, ending);
      if (!module || !has_scales(*module)) continue;
      Parts parts{name, ending != ".weight", *tensor(name), *part(*module, names_.scales)};
      parts.zeros = part(*module, names_.zeros);
      parts.second = part(*module, names_.second);
      parts.shape = part(*module, names_.shape);
      parts.order = part(*module, names_.order);
      if (numbers_.contains(*module + std::string(kInputFactors)))
        refuse_rest(*module + std::string(kInputFactors));
      const bool plain = settings_.dialect == Dialect::kGptOss;
      return explained(plain ? *module : *module + ".weight", parts);
    }
    return std::nullopt;
  }

  // Returns the weight by the only scheme that explains its tensors.
  Weight explained(std::string name, const Parts& parts) const {
    std::optional<Weight> found;
    std::string reasons;
    for (const Scheme& scheme : settings_.schemes) {
      Tried tried = by_scheme(scheme, parts);
      if (auto* const array = std::get_if<Array>(&tried)) {
        if (found && found->scheme != scheme.name) {
          throw Error(ErrorCode::kMismatch,
                      cat(source_.description().path, ": ", quote(parts.name, 200),
                          ": two schemes of the configuration explain its tensors: ", found->scheme,
                          "; ", scheme.name));
        }
        found = Weight{name, scheme.name, std::move(*array)};
      } else {
        reasons +=
            cat(reasons.empty() ? "" : "; ", scheme.name, ": ", std::get<std::string>(tried));
      }
    }
    if (found) return std::move(*found);
    throw Error(ErrorCode::kMismatch,
                cat(source_.description().path, ": ", quote(parts.name, 200),
                    ": the tensors of this weight are not as the configuration says: ",
                    reasons.empty() ? "it has no scheme" : reasons));
  }

  static std::string is_text(const char* what, const Array& array, const std::string& wanted) {
    return cat(what, " ", torch_name(array.dtype), " ", shape_text(array.shape), ", expected ",
               wanted);
  }

  Tried by_scheme(const Scheme& scheme, const Parts& parts) const {
    if (parts.order && settings_.dialect != Dialect::kGptq)
      return "groups in another order than the inputs";
    if (settings_.dialect == Dialect::kGptq || settings_.dialect == Dialect::kAwq)
      return by_inputs(scheme, parts);
    Shape shape;
    Tried numbers = numbers_by(scheme, parts, shape);
    if (std::holds_alternative<std::string>(numbers)) return numbers;
    BlockGrid grid;
    Shape expected;
    if (std::string why = cut(scheme, shape, grid, expected); !why.empty()) return why;
    arrays::check_bytes(shape, to_);
    arrays::Dequantization from{std::get<Array>(std::move(numbers)), parts.scales, grid};
    from.to = to_;
    if (std::string why = scales_by(scheme, parts, expected, from); !why.empty()) return why;
    if (std::string why = zeros_by(scheme, parts, shape, expected, from); !why.empty()) return why;
    Array weight = arrays::dequantized(from, shape);
    if (settings_.dialect != Dialect::kGptOss) return weight;
    if (weight.shape.size() != 3) return "expected [experts, outputs, groups, 16]";
    return arrays::permuted(weight, std::array<std::size_t, 3>{0, 2, 1});
  }

  // Returns the numbers of a weight as floats; sets its shape.
  Tried numbers_by(const Scheme& scheme, const Parts& parts, Shape& shape) const {
    const Array& numbers = parts.numbers;
    shape = numbers.shape;
    if (scheme.numbers == NumberKind::kFloat && scheme.bits == 8) {
      if (parts.packed || !is_float8(numbers.dtype))
        return is_text("numbers", numbers, "8-bit floats");
      return numbers;
    }
    if (shape.empty()) return is_text("numbers", numbers, "at least one dimension");
    if (scheme.numbers == NumberKind::kFloat) {
      const bool bytes = numbers.dtype == DType::kUInt8 || numbers.dtype == DType::kFloat4E2M1FNx2;
      if (!bytes) return is_text("numbers", numbers, "two numbers of 4 bits in a uint8");
      if (settings_.dialect == Dialect::kGptOss) {
        // [experts, outputs, groups, 16 bytes of a group]
        if (shape.size() != 4 || shape.back() != 16)
          return is_text("numbers", numbers, "[experts, outputs, groups, 16]");
        shape.pop_back();
        if (__builtin_mul_overflow(shape.back(), 32, &shape.back())) return "sizes exceed 64 bits";
      } else if (__builtin_mul_overflow(shape.back(), 2, &shape.back())) {
        return "sizes exceed 64 bits";
      }
      return arrays::decoded(numbers, {.code = Code::kFloat4, .bits = 4}, shape);
    }
    if (settings_.dialect == Dialect::kModelOpt && scheme.bits == 4) {
      // Two rows in a byte.
      if (numbers.dtype != DType::kUInt8 || shape.size() != 2)
        return is_text("numbers", numbers, "two rows of 4 bits in a uint8 matrix");
      if (__builtin_mul_overflow(shape[0], 2, shape.data())) return "sizes exceed 64 bits";
      return arrays::decoded(numbers, {.code = Code::kSigned, .bits = 4, .first_dimension = true},
                             shape);
    }
    if (!parts.packed) {
      if (scheme.bits != 8 || numbers.dtype != DType::kInt8)
        return is_text("numbers", numbers, cat("int", scheme.bits));
      return arrays::decoded(numbers, {.code = Code::kSigned, .bits = 8}, shape);
    }
    if (numbers.dtype != DType::kInt32) return is_text("numbers", numbers, "words of int32");
    if (!parts.shape) return "no weight_shape";
    const auto given = small_integers(*parts.shape);
    if (!given || given->size() != shape.size())
      return is_text("weight_shape", *parts.shape, cat(shape.size(), " integers"));
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const bool last = d + 1 == shape.size();
      const std::int64_t size = (*given)[d];
      const bool fits = size >= 0 && (last ? arrays::packed_size(static_cast<std::uint64_t>(size),
                                                                 scheme.bits, DType::kInt32) ==
                                                 static_cast<std::uint64_t>(shape[d])
                                           : size == shape[d]);
      if (!fits)
        return cat("weight_shape ", shape_text(*given), ", but packed numbers ", shape_text(shape));
    }
    shape = *given;
    return arrays::decoded(numbers, {.code = Code::kOffset, .bits = scheme.bits}, shape);
  }

  // Returns the integers of a short tensor; nothing if it is not one.
  static std::optional<Shape> small_integers(const Array& array) {
    constexpr std::uint64_t kMost = 8;
    const bool wide = array.dtype == DType::kInt64;
    if ((!wide && array.dtype != DType::kInt32) || array.shape.size() != 1 ||
        numel_of(array) > kMost)
      return std::nullopt;
    std::vector<std::byte> bytes(numel_of(array) * item_bytes(array.dtype));
    arrays::ArrayReader(array).read(0, bytes);
    Shape out;
    for (std::size_t i = 0; i < numel_of(array); ++i) {
      std::int64_t number = 0;
      std::int32_t narrow = 0;
      std::memcpy(wide ? static_cast<void*>(&number) : &narrow,
                  bytes.data() + i * item_bytes(array.dtype), item_bytes(array.dtype));
      out.push_back(wide ? number : narrow);
    }
    return out;
  }

  // Cuts a weight into the parts that share a scale; returns why that cannot be.
  static std::string cut(const Scheme& scheme, const Shape& shape, BlockGrid& grid,
                         Shape& expected) {
    if (scheme.sharing == Sharing::kTensor) {
      grid.columns = numel(shape);
      grid.block_columns = std::max<std::uint64_t>(1, grid.columns);
      return {};
    }
    const std::size_t least = scheme.sharing == Sharing::kBlocks ? 2 : 1;
    if (shape.size() < least) return cat("a weight of shape ", shape_text(shape));
    expected.assign(shape.begin(), shape.end() - static_cast<std::ptrdiff_t>(least));
    grid.matrices = numel(expected);
    grid.columns = static_cast<std::uint64_t>(shape.back());
    const bool whole = scheme.sharing == Sharing::kRows || scheme.columns < 0;
    grid.block_columns = whole ? std::max<std::uint64_t>(1, grid.columns)
                               : static_cast<std::uint64_t>(scheme.columns);
    if (scheme.sharing == Sharing::kBlocks) {
      grid.rows = static_cast<std::uint64_t>(shape[shape.size() - 2]);
      grid.block_rows = static_cast<std::uint64_t>(scheme.rows);
      expected.push_back(static_cast<std::int64_t>(grid.scale_rows()));
    }
    expected.push_back(static_cast<std::int64_t>(grid.scale_columns()));
    return {};
  }

  // Returns whether scales have a shape, dimensions of one element aside.
  static bool goes_with(const Shape& shape, const Shape& expected) {
    const auto without_ones = [](Shape sizes) {
      std::erase(sizes, 1);
      return sizes;
    };
    return without_ones(shape) == without_ones(expected);
  }

  std::string scales_by(const Scheme& scheme, const Parts& parts, const Shape& expected,
                        arrays::Dequantization& from) const {
    const Array& scales = parts.scales;
    if (!goes_with(scales.shape, expected)) return is_text("scales", scales, shape_text(expected));
    if (scheme.powers) {
      if (scales.dtype != DType::kUInt8 && scales.dtype != DType::kFloat8E8M0FNU)
        return is_text("scales", scales, "exponents in uint8");
      from.scales = powers_of_two(scales);
    } else if (!is_floating(scales.dtype)) {
      return is_text("scales", scales, "floating numbers");
    }
    if (scheme.second_scale != parts.second.has_value())
      return scheme.second_scale ? cat("no NAME", names_.second) : cat("a NAME", names_.second);
    if (parts.second) {
      if (!is_floating(parts.second->dtype) || numel_of(*parts.second) != 1)
        return is_text("the scale of scales", *parts.second, "one floating number");
      from.global = parts.second;
      from.divides = settings_.dialect == Dialect::kCompressedTensors;
    }
    // compressed-tensors computes in the dtype of the scales, and in bfloat16 if these have 8 bits.
    if (settings_.dialect == Dialect::kCompressedTensors)
      from.product = item_bytes(scales.dtype) > 1 ? scales.dtype : DType::kBFloat16;
    return {};
  }

  std::string zeros_by(const Scheme& scheme, const Parts& parts, const Shape& shape,
                       const Shape& expected, arrays::Dequantization& from) const {
    if (scheme.symmetric) return parts.zeros ? "zero points, but it is symmetric" : "";
    if (!parts.zeros) return "no zero points, but it is not symmetric";
    const Array& zeros = *parts.zeros;
    if (scheme.numbers == NumberKind::kFloat) {
      if (!is_floating(zeros.dtype) || !goes_with(zeros.shape, expected))
        return is_text("zero points", zeros, cat("floating ", shape_text(expected)));
      from.zeros = zeros;
      return {};
    }
    if (!parts.packed || scheme.sharing == Sharing::kTensor) {
      if (zeros.dtype != DType::kInt8 || !goes_with(zeros.shape, expected))
        return is_text("zero points", zeros, cat("int8 ", shape_text(expected)));
      from.zeros = arrays::decoded(zeros, {.code = Code::kSigned, .bits = 8}, zeros.shape);
      return {};
    }
    // Packed along the rows of the weight, where a word may hold numbers of any bits.
    if (shape.size() != 2 || 32 % scheme.bits != 0)
      return cat("zero points of ", scheme.bits, " bits in words");
    const auto words = static_cast<std::int64_t>(
        arrays::packed_size(static_cast<std::uint64_t>(shape[0]), scheme.bits, DType::kInt32));
    if (zeros.dtype != DType::kInt32 || zeros.shape != Shape{words, expected.back()})
      return is_text("zero points", zeros,
                     cat("int32 ", shape_text(Shape{words, expected.back()})));
    from.zeros = arrays::decoded(
        zeros, {.code = Code::kOffset, .bits = scheme.bits, .first_dimension = true}, expected);
    return {};
  }

  // GPTQ and AWQ: matrices [inputs, outputs], which are turned at the end.
  Tried by_inputs(const Scheme& scheme, const Parts& parts) const {
    const bool gptq = settings_.dialect == Dialect::kGptq;
    const Array& words = parts.numbers;
    if (words.dtype != DType::kInt32 || words.shape.size() != 2)
      return is_text("qweight", words, "a matrix of int32");
    const std::int64_t each = 32 / scheme.bits;
    Shape shape = words.shape;
    if (__builtin_mul_overflow(shape[gptq ? 0 : 1], each, &shape[gptq ? 0 : 1]))
      return "sizes exceed 64 bits";
    const std::int64_t size =
        scheme.columns < 0 ? std::max<std::int64_t>(shape[0], 1) : scheme.columns;
    BlockGrid grid;
    grid.rows = static_cast<std::uint64_t>(shape[0]);
    grid.columns = static_cast<std::uint64_t>(shape[1]);
    grid.block_rows = static_cast<std::uint64_t>(size);
    const Shape expected = {static_cast<std::int64_t>(grid.scale_rows()), shape[1]};
    if (!is_floating(parts.scales.dtype) || parts.scales.shape != expected)
      return is_text("scales", parts.scales, cat("floating ", shape_text(expected)));
    Packing packing{.code = Code::kUnsigned, .bits = scheme.bits, .first_dimension = gptq};
    if (!gptq) packing.order = kAwqOrder;
    arrays::check_bytes(shape, to_);
    arrays::Dequantization from{arrays::decoded(words, packing, shape), parts.scales, grid};
    from.product = parts.scales.dtype;
    from.to = to_;
    const Shape zero_words = {expected[0], shape[1] / each};
    if (parts.zeros) {
      if (shape[1] % each != 0 || parts.zeros->dtype != DType::kInt32 ||
          parts.zeros->shape != zero_words)
        return is_text("qzeros", *parts.zeros, cat("int32 ", shape_text(zero_words)));
      packing.first_dimension = false;
      packing.code = scheme.zeros_plus_one ? Code::kLessOne : Code::kUnsigned;
      from.zeros = arrays::decoded(*parts.zeros, packing, expected);
    } else if (!scheme.symmetric || gptq) {
      return "no qzeros";
    } else {
      from.zeros = arrays::constant_array(DType::kFloat32, expected, 1 << (scheme.bits - 1));
    }
    if (parts.order) {
      const auto order = groups_of(*parts.order, shape[0], expected[0]);
      if (!order) return is_text("g_idx", *parts.order, "a group for each input");
      reorder(*order, size, from);
    }
    return arrays::permuted(arrays::dequantized(from, shape), std::array<std::size_t, 2>{1, 0});
  }

  // Returns the group of each input; nothing if the tensor does not hold that.
  static std::optional<std::vector<std::uint64_t>> groups_of(const Array& array,
                                                             std::int64_t inputs,
                                                             std::int64_t groups) {
    if (array.dtype != DType::kInt32 || array.shape != Shape{inputs} ||
        numel_of(array) > kMostInputs)
      return std::nullopt;
    std::vector<std::int32_t> held(numel_of(array));
    arrays::ArrayReader(array).read(0, std::as_writable_bytes(std::span(held)));
    std::vector<std::uint64_t> out;
    for (const std::int32_t group : held) {
      if (group < 0 || group >= groups) return std::nullopt;
      out.push_back(static_cast<std::uint64_t>(group));
    }
    return out;
  }

  // Gives each input the scales and zero points of its group, unless groups follow each other.
  static void reorder(const std::vector<std::uint64_t>& groups, std::int64_t size,
                      arrays::Dequantization& from) {
    bool follow = true;
    for (std::size_t i = 0; i < groups.size(); ++i)
      follow = follow && groups[i] == i / static_cast<std::uint64_t>(size);
    if (follow) return;
    const auto by_input = [&](const Array& rows) {
      std::vector<Array> each;
      for (std::size_t begin = 0; begin < groups.size();) {
        each.push_back(arrays::sliced(rows, 0, static_cast<std::int64_t>(groups[begin]), 1));
        ++begin;
      }
      return arrays::concatenated(each, 0);
    };
    from.scales = by_input(from.scales);
    if (from.zeros) from.zeros = by_input(*from.zeros);
    from.grid.block_rows = 1;
  }

  const Checkpoint& source_;
  const Settings& settings_;
  DType to_;
  Names names_;
  std::shared_ptr<arrays::ComputedTensors> computed_;
  std::map<std::string, std::size_t> numbers_;  // tensors of the source by name
  std::map<std::string, std::size_t> counts_;   // weights by scheme
  DequantizedModel out_;
};

}  // namespace

DequantizedModel dequantized_model(const Checkpoint& source, const Value& tensors,
                                   const Settings& settings, DType to) {
  return Dequantizer(source, settings, to).run(tensors);
}

}  // namespace fsdp::formats::quantized
