// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/export_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Checkpoint;
using formats::TargetPiece;
using formats::Value;

struct Tensors {
  const Checkpoint* checkpoint;
  std::map<std::string, TargetPiece> pieces;
};

Tensors tensors_of(const Checkpoint& checkpoint, const Value& content) {
  Tensors out{&checkpoint, {}};
  for (const auto& [key, value] : formats::members_of(content)) {
    const auto tensor = formats::dense_tensor(value);
    if (!tensor || !tensor->storage->tensor) continue;
    out.pieces.emplace(*key.as_string(),
                       formats::reference_piece(checkpoint, *tensor->storage->tensor));
  }
  return out;
}

class Check {
 public:
  Check(const std::filesystem::path& folder, const CommonOptions& common)
      : shown_(formats::escape(folder.native())), common_(common) {}

  // Checks that `made` has the bits of `origin`.  Records what only `origin` has as left out.
  void compare(const Tensors& origin, const Tensors& made, ExportCheck& result) {
    std::vector<TargetPiece> left;
    std::vector<TargetPiece> right;
    for (const auto& [name, piece] : made.pieces) {
      const auto found = origin.pieces.find(name);
      if (found == origin.pieces.end())
        throw Error(ErrorCode::kMismatch, cat(shown_, ": has ", formats::quote(name, 200),
                                              ", which the model does not have"));
      TargetPiece own = found->second;
      if (own.box.size != piece.box.size || !fits(own, piece)) {
        throw Error(ErrorCode::kMismatch, cat(shown_, ": ", formats::quote(name, 200), " is ",
                                              text_of(piece), ", expected ", text_of(own)));
      }
      if (own.written_dtype() != piece.written_dtype()) own.cast_to = piece.written_dtype();
      own.key = name;
      left.push_back(std::move(own));
      right.push_back(piece);
    }
    for (const auto& [name, piece] : origin.pieces) {
      if (!made.pieces.contains(name)) result.left_out.push_back(name);
    }
    compare_bits(left, right);
    result.tensors = left.size();
    for (const TargetPiece& piece : right)
      result.bytes += formats::volume(piece.box.view()) * formats::item_bytes(piece.dtype);
  }

 private:
  static std::string text_of(const TargetPiece& piece) {
    return cat(formats::torch_name(piece.written_dtype()), " ",
               formats::shape_text(piece.box.size));
  }

  // Export casts floating tensors to one dtype.
  static bool fits(const TargetPiece& origin, const TargetPiece& made) {
    return origin.written_dtype() == made.written_dtype() ||
           (!origin.cast_to && formats::is_floating(origin.dtype) &&
            formats::is_floating(made.written_dtype()) &&
            formats::can_cast(origin.dtype, made.written_dtype()));
  }

  void compare_bits(const std::vector<TargetPiece>& left, const std::vector<TargetPiece>& right) {
    formats::VisitOptions options;
    options.threads = common_.threads;
    options.max_buffer_bytes = common_.max_memory_bytes / 4;
    options.cancelled = [] { return formats::interrupted(); };
    formats::visit_pairs(left, right, options, [&](const formats::TensorBlockPair& pair) {
      if (std::memcmp(pair.left.data(), pair.right.data(), pair.left.size()) == 0) return;
      const auto differs = std::mismatch(pair.left.begin(), pair.left.end(), pair.right.begin());
      const std::uint64_t element =
          pair.first + static_cast<std::uint64_t>(differs.first - pair.left.begin()) /
                           formats::item_bytes(left[pair.piece].written_dtype());
      throw Error(ErrorCode::kMismatch, cat(shown_, ": ", formats::quote(left[pair.piece].key, 200),
                                            ": element ", element, " is not what the model has"));
    });
  }

  std::string shown_;
  const CommonOptions& common_;
};

}  // namespace

ExportCheck check_export(const std::filesystem::path& folder, const NamedModel& model,
                         const Checkpoint& source, const Value& planned, const MapChoice& choice,
                         const CommonOptions& common) {
  const std::unique_ptr<Checkpoint> written = formats::open_checkpoint(folder, {});
  const Value content = formats::content_of(*written);
  ExportCheck result;
  Check check(folder, common);
  std::optional<formats::map::Mapped> back;
  if (model.map != kNoMap) {
    back = choice.undone(*written, content, model.map, model.steps);
    result.undone = back.has_value();
  }
  if (!result.undone) {
    check.compare(tensors_of(source, planned), tensors_of(*written, content), result);
  } else if (back) {
    check.compare(tensors_of(*model.source, model.before),
                  tensors_of(*back->checkpoint, back->content), result);
  } else {
    check.compare(tensors_of(*model.source, model.before), tensors_of(*written, content), result);
  }
  return result;
}

}  // namespace fsdp::cli
