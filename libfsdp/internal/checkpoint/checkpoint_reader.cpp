// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/remote/remote_stores.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp::internal {

using formats::Value;

namespace {

// Registers the stores of URLs at the first URL, so that other programs do not pay for them.
const std::filesystem::path& known_place(const std::filesystem::path& path) {
  static std::once_flag once;
  if (formats::is_url(path.native())) std::call_once(once, formats::register_remote_stores);
  return path;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::filesystem::path& path,
                                   const std::set<std::string>& allowed_globals)
    : checkpoint_(formats::open_checkpoint(known_place(path), {allowed_globals})),
      content_(formats::content_of(*checkpoint_)) {}

void CheckpointReader::want(std::size_t number, const at::Tensor& target,
                            std::optional<Part> part) {
  const formats::TensorEntry& entry = tensor(number);
  if (target.numel() == 0) return;
  Wanted wanted;
  wanted.alone = part && part->alone;
  wanted.piece =
      formats::box_piece(std::make_shared<formats::TensorSource>(*checkpoint_, number, chunks_),
                         part ? std::move(part->box) : formats::whole_box(entry.shape),
                         dtype_of(target.scalar_type()));
  wanted.target = target;
  if (entry.chunks.size() != 0) {
    const formats::Location& location = entry.chunks.location(0);
    wanted.place = {checkpoint_->index().files[location.file].name, location.offset};
  }
  wanted_.push_back(std::move(wanted));
}

StateValue CheckpointReader::value(const Value& value, const std::string& key,
                                   std::vector<std::string>& left_out) {
  return state_value(
      formats::with_values(*checkpoint_, value), key,
      [&](const formats::TensorValue& tensor) { return tensor_of(tensor); }, left_out);
}

at::Tensor CheckpointReader::tensor_of(const formats::TensorValue& tensor) {
  const c10::ScalarType type = scalar_type_of(tensor.dtype);
  if (tensor.storage->tensor) {
    at::Tensor target = at::empty(tensor.shape, type);
    want(tensor.storage->tensor->number, target);
    return target;
  }
  const std::string name = std::to_string(tensor.storage->archive) + " " + tensor.storage->key;
  at::Tensor& storage = storages_[name];
  if (!storage.defined()) {
    storage = at::empty({static_cast<std::int64_t>(tensor.storage->numel)},
                        scalar_type_of(tensor.storage->dtype));
    if (storage.numel() != 0)
      wanted_.push_back(
          {formats::storage_piece(*checkpoint_, *tensor.storage), storage, {}, {}, false});
  }
  const auto elements = storage.view(type);
  auto result = elements.as_strided(tensor.shape, tensor.strides,
                                    static_cast<std::int64_t>(tensor.storage_offset));
  FSDP_CHECK(!tensor.conjugate && !tensor.negate,
             "a tensor inside a value is a conjugate or negative view, which cannot be read");
  return result;
}

void CheckpointReader::read(const std::shared_ptr<ProcessGroup>& group, const std::string& what,
                            bool verify) {
  std::vector<formats::PartialRead> partial;
  agree(group, what, [&] { partial = read_own(verify); });
  if (!verify) return;
  const auto texts = all_gather_text(group, formats::text_of(partial), what + ": checksums");
  std::vector<std::vector<formats::PartialRead>> readers;
  for (const std::string& text : texts) readers.push_back(formats::partial_reads_from(text));
  try {
    formats::check_together(readers);
  } catch (const Error& error) {
    FSDP_CHECK(false, what, ": ", error.what());
  }
}

std::vector<formats::PartialRead> CheckpointReader::read_own(bool verify) {
  std::stable_sort(wanted_.begin(), wanted_.end(),
                   [](const Wanted& a, const Wanted& b) { return a.place < b.place; });
  std::vector<formats::MemoryPiece> pieces;
  pieces.reserve(wanted_.size());
  for (Wanted& wanted : wanted_) {
    formats::MemoryPiece piece;
    piece.piece = wanted.piece;
    piece.target = [&wanted] {
      if (!is_host_memory(wanted.target)) {
        // Reads through a copy on the CPU.
        const auto options = wanted.target.options().device(at::kCPU);
        wanted.copy = at::empty(wanted.target.sizes(), options);
      }
      const at::Tensor& tensor = wanted.copy.defined() ? wanted.copy : wanted.target;
      return formats::BlockTarget{host_memory(tensor), wanted.alone};
    };
    piece.done = [&wanted] {
      if (!wanted.copy.defined()) return;
      wanted.target.detach().copy_(wanted.copy);
      wanted.copy.reset();
    };
    pieces.push_back(std::move(piece));
  }
  auto partial = formats::read_into_memory(pieces, verify);
  checkpoint_->check_unchanged();
  wanted_.clear();
  storages_.clear();
  return partial;
}

}  // namespace fsdp::internal
