// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/low_rank_update.h"

#include <memory>
#include <utility>
#include <vector>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arithmetic/low_rank.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

// Reads an array for low_rank_source().
class ArrayElements : public ElementReader {
 public:
  ArrayElements(const Array& array, const std::shared_ptr<ReadContext>& context)
      : reader_(array, context), dtype_(array.dtype) {}
  DType dtype() const override { return dtype_; }
  bool checked() const { return reader_.checked(); }
  void read(std::uint64_t first, std::span<std::byte> out,
            std::span<std::byte> /*scratch*/) const override {
    reader_.read(first, out);
  }

 private:
  ArrayReader reader_;
  DType dtype_;
};

class UpdatedSource : public ComputedSource {
 public:
  UpdatedSource(std::shared_ptr<const ByteSource> elements, bool checked)
      : elements_(std::move(elements)), checked_(checked) {}
  std::uint64_t size() const override { return elements_->size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    elements_->read_at(offset, out);
  }
  bool checked() const override { return checked_; }

 private:
  std::shared_ptr<const ByteSource> elements_;
  bool checked_;
};

class Updated : public DenseOperand {
 public:
  explicit Updated(LowRankTerms terms)
      : DenseOperand(terms.weight.dtype, terms.weight.shape), terms_(std::move(terms)) {}

 protected:
  std::shared_ptr<const ComputedSource> source(
      const std::shared_ptr<ReadContext>& context) const override {
    auto weight = std::make_unique<ArrayElements>(terms_.weight, context);
    bool checked = weight->checked();
    const auto matrix = [&](const Array& array) {
      const ArrayReader reader(array, context);
      checked = checked && reader.checked();
      ThinMatrix made;
      made.dtype = array.dtype;
      made.transposed = terms_.turned;
      made.elements.resize(volume({array.shape, array.shape}) * item_bytes(array.dtype));
      reader.read(0, made.elements);
      return made;
    };
    LowRankUpdate update;
    update.left = matrix(terms_.turned ? terms_.a : terms_.b);
    update.right = matrix(terms_.turned ? terms_.b : terms_.a);
    update.rank = static_cast<std::uint64_t>(terms_.a.shape[0]);
    update.scale = terms_.scale;
    auto elements =
        low_rank_source(std::move(weight), {&update, 1}, static_cast<std::uint64_t>(shape()[1]),
                        dtype(), volume({shape(), shape()}));
    return std::make_shared<UpdatedSource>(std::move(elements), checked);
  }

 private:
  LowRankTerms terms_;
};

}  // namespace

Array with_low_rank_update(LowRankTerms terms) {
  for (const Array* const array : {&terms.weight, &terms.a, &terms.b}) {
    if (is_floating(array->dtype)) continue;
    throw Error(ErrorCode::kDtype,
                cat("low_rank takes floating tensors, not ", torch_name(array->dtype)));
  }
  const auto& w = terms.weight.shape;
  const auto& a = terms.a.shape;
  const auto& b = terms.b.shape;
  const bool matrices = w.size() == 2 && a.size() == 2 && b.size() == 2;
  if (!matrices || a[0] != b[1] || a[0] == 0 || b[0] != w[terms.turned ? 1 : 0] ||
      a[1] != w[terms.turned ? 0 : 1]) {
    throw Error(ErrorCode::kShape,
                cat("low_rank takes W ", terms.turned ? "[in, out]" : "[out, in]",
                    ", A [rank, in] and B [out, rank], not ", shape_text(w), ", ", shape_text(a),
                    " and ", shape_text(b)));
  }
  if (terms.weight.parts.empty()) return terms.weight;
  auto shape = w;
  return whole_array(std::make_shared<Updated>(std::move(terms)), std::move(shape));
}

}  // namespace fsdp::formats::arrays
