// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/option_equality.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/writer.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats {
namespace {

// Tensors among the options of a group are single numbers, such as learning rates.
constexpr std::uint64_t kMaxOptionBytes = 64U << 10U;

}  // namespace

std::string OptionEquality::content_of(const Value& value) {
  if (const auto number = deferred_number(value)) {
    const auto known = known_.find(*number);
    if (known != known_.end()) return known->second;
    return known_.emplace(*number, content_of(resolved(checkpoint_, value))).first->second;
  }
  if (const auto number = tensor_number(value)) return tensor_content(*number);
  return "p" + write_pickle(value);
}

std::string OptionEquality::tensor_content(std::size_t number) const {
  const TensorEntry& tensor = checkpoint_.index().tensors[number];
  if (tensor.bytes() > kMaxOptionBytes) {
    throw Error(ErrorCode::kLimitSize, quote(tensor.key, 200), ": an option of ", tensor.bytes(),
                " bytes, at most ", kMaxOptionBytes);
  }
  std::string content = cat("t", torch_name(tensor.dtype), shape_text(tensor.shape));
  const TargetPiece piece = whole_tensor_piece(checkpoint_, number);
  VisitOptions options;
  options.max_buffer_bytes = 4 * kMaxOptionBytes;
  options.block_bytes = kMaxOptionBytes;
  visit_pieces(std::span(&piece, 1), options, [&](const TensorBlock& block) {
    for (const std::byte byte : block.bytes) content += static_cast<char>(byte);
  });
  return content;
}

}  // namespace fsdp::formats
