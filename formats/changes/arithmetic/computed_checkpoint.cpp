// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/computed_checkpoint.h"

#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "formats/state/content/tensor_objects.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// Tensors that stay located: an output of several ranks returns to each of them.
constexpr std::size_t kMostOpen = 4;

class ComputedCheckpoint : public Checkpoint, public TensorObjects {
 public:
  ComputedCheckpoint(std::shared_ptr<const Checkpoint> base, std::string path,
                     std::map<std::size_t, ComputedTensor> computed, std::function<void()> finish,
                     std::vector<AddedTensor> added)
      : base_(std::move(base)), computed_(std::move(computed)), finish_(std::move(finish)) {
    description_ = base_->description();
    description_.path = std::move(path);
    findings_ = base_->findings();
    const Index& from = base_->index();
    index_.files = from.files;
    index_.transforms = from.transforms;
    for (const Index::EntryRef& ref : from.order) {
      if (!ref.is_tensor) {
        index_.add(from.values[ref.position]);
        continue;
      }
      const TensorEntry& own = from.tensors[ref.position];
      positions_.emplace(std::pair(own.key, own.path), ref.position);
      const auto found = computed_.find(ref.position);
      if (found == computed_.end()) {
        index_.add(own);
        continue;
      }
      index_.add(entry_of(own.key, own.path, found->second));
    }
    for (AddedTensor& one : added) {
      const std::size_t position = index_.tensors.size();
      positions_.emplace(std::pair(one.key, one.path), position);
      index_.add(entry_of(one.key, one.path, one.tensor));
      computed_.emplace(position, std::move(one.tensor));
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const std::size_t position = positions_.at({tensor.key, tensor.path});
    if (!computed_.contains(position)) return base_->chunk(base_->index().tensors[position], chunk);
    const ComputedElements elements = opened(position);
    ChunkData data;
    data.source = elements.source;
    data.file = description_.path;
    data.storage_bytes = elements.source->size();
    data.file_offset = position;
    data.self_checked = elements.checked;
    data.dtype = tensor.dtype;
    return data;
  }

  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    const std::size_t position = positions_.at({tensor.key, tensor.path});
    return !computed_.contains(position) &&
           base_->expect_chunk(base_->index().tensors[position], chunk, part);
  }

  Value value(const ValueEntry& value) const override { return base_->value(value); }
  ChunkData storage(const StorageRef& storage) const override { return base_->storage(storage); }
  std::optional<Value> tree() const override { return base_->tree(); }
  std::optional<Value> tensor_value(std::size_t tensor) const override {
    return computed_.contains(tensor) ? std::nullopt : base_->tensor_value(tensor);
  }
  std::optional<Value> tensor_object(std::size_t tensor) const override {
    return computed_.contains(tensor) ? std::nullopt : formats::tensor_object(*base_, tensor);
  }
  VerifyReport verify(const VerifyOptions& options) const override {
    return base_->verify(options);
  }
  void check_unchanged() const override {
    finish_();
    base_->check_unchanged();
  }

 private:
  static TensorEntry entry_of(const std::string& key, const KeyPath& path,
                              const ComputedTensor& tensor) {
    TensorEntry entry{key, path, tensor.dtype, tensor.shape, ChunkList(tensor.shape.size())};
    const Box whole = whole_box(entry.shape);
    entry.chunks.add(whole.offset, whole.size, {});
    return entry;
  }

  ComputedElements opened(std::size_t position) const {
    const std::lock_guard lock(mutex_);
    for (auto at = open_.begin(); at != open_.end(); ++at) {
      if (at->first != position) continue;
      open_.splice(open_.begin(), open_, at);
      return open_.front().second;
    }
    if (open_.size() == kMostOpen) open_.pop_back();
    open_.emplace_front(position, computed_.at(position).open());
    return open_.front().second;
  }

  std::shared_ptr<const Checkpoint> base_;
  std::map<std::size_t, ComputedTensor> computed_;
  std::function<void()> finish_;
  std::map<std::pair<std::string, KeyPath>, std::size_t> positions_;  // of tensors in the index
  mutable std::mutex mutex_;
  mutable std::list<std::pair<std::size_t, ComputedElements>> open_;  // most recently used first
};

}  // namespace

std::unique_ptr<Checkpoint> with_computed_tensors(std::shared_ptr<const Checkpoint> base,
                                                  std::string path,
                                                  std::map<std::size_t, ComputedTensor> computed,
                                                  std::function<void()> finish,
                                                  std::vector<AddedTensor> added) {
  return std::make_unique<ComputedCheckpoint>(std::move(base), std::move(path), std::move(computed),
                                              std::move(finish), std::move(added));
}

}  // namespace fsdp::formats
