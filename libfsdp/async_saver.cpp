// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <exception>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/training_parts.h"

namespace fsdp {
namespace {

// Copies of tensors on the CPU, whose memory serves the next save again.
class Staging {
 public:
  StateDict copy(const StateDict& state) {
    StateDict result = copy_dict(state, "");
    // What this save had not goes.
    buffers_ = std::exchange(next_, {});
    return result;
  }

 private:
  StateDict copy_dict(const StateDict& state, const std::string& prefix) {
    StateDict result;
    for (const auto& [key, value] : state.entries())
      result.set(key, copy_value(value, prefix + text_of(key)));
    return result;
  }

  StateList copy_list(const StateList& list, const std::string& key) {
    StateList result;
    for (const auto& item : list)
      result.push_back(copy_value(item, key + "." + std::to_string(result.size())));
    return result;
  }

  StateValue copy_value(const StateValue& value, const std::string& key) {
    if (const auto* tensor = value.as_tensor()) return copy_tensor(*tensor, key);
    if (const auto* sharded = value.as_sharded()) {
      ShardedTensor result = *sharded;
      result.local = copy_tensor(sharded->local, key);
      return result;
    }
    if (const auto* dict = value.as_dict()) return copy_dict(*dict, key + ".");
    if (const auto* list = value.as_list()) return copy_list(*list, key);
    if (const auto* tuple = value.as_tuple()) return StateTuple{copy_list(tuple->items, key)};
    return value;
  }

  at::Tensor copy_tensor(const at::Tensor& tensor, const std::string& key) {
    at::Tensor buffer;
    if (const auto found = buffers_.find(key); found != buffers_.end()) buffer = found->second;
    if (!buffer.defined() || buffer.sizes() != tensor.sizes() ||
        buffer.scalar_type() != tensor.scalar_type()) {
      // A CUDA device copies to memory that cannot be swapped out by itself.
      buffer = at::empty(tensor.sizes(),
                         at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
    }
    buffer.copy_(tensor.detach());
    next_[key] = buffer;
    return buffer;
  }

  std::unordered_map<std::string, at::Tensor> buffers_;
  std::unordered_map<std::string, at::Tensor> next_;
};

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

class AsyncSaver::Impl {
 public:
  explicit Impl(const std::shared_ptr<ProcessGroup>& group)
      : group_(group->subgroup(all_ranks(*group))) {}

  ~Impl() {
    join();
    if (error_) TORCH_WARN("a checkpoint was not saved: ", message());
  }

  // `meta`: null where there is none.
  void start(const std::filesystem::path& folder, const StateDict& state, const StateDict* meta,
             const SaveOptions& options) {
    wait();
    StateDict both{{"state", state}};
    if (meta != nullptr) both.set("meta", *meta);
    StateDict copies;
    agree(group_, "copying what is to be saved as " + folder.native(), [&] {
      const at::NoGradGuard no_grad;
      copies = staging_.copy(both);
    });
    busy_ = true;
    thread_ = std::jthread([this, folder, options, copies = std::move(copies)] {
      try {
        const StateDict& parts = copies.at("state").dict();
        if (const StateValue* const beside = copies.find("meta")) {
          save_with_meta(folder, parts, beside->dict(), group_, options);
        } else {
          save(folder, parts, group_, options);
        }
      } catch (...) {
        error_ = std::current_exception();
      }
      busy_ = false;
    });
  }

  void wait() {
    join();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  bool done() const noexcept { return !busy_; }

 private:
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::string message() const {
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      return error.what();
    } catch (...) {
      return "an exception of unknown type";
    }
  }

  const std::shared_ptr<ProcessGroup> group_;
  Staging staging_;
  std::exception_ptr
      error_;  // of the last save, until someone was told; the thread's while it runs
  std::atomic<bool> busy_ = false;
  std::jthread thread_;
};

AsyncSaver::AsyncSaver(const std::shared_ptr<ProcessGroup>& group)
    : impl_(std::make_unique<Impl>(group)) {}
AsyncSaver::~AsyncSaver() = default;

void AsyncSaver::async_save(const std::filesystem::path& folder, const StateDict& state,
                            const SaveOptions& options) {
  impl_->start(folder, state, nullptr, options);
}

void AsyncSaver::async_save(const std::filesystem::path& folder, const TrainingState& state,
                            const SaveOptions& options) {
  const TrainingParts parts = training_parts(state);
  impl_->start(folder, parts.parts, &parts.meta, options);
}

void AsyncSaver::wait() {
  impl_->wait();
}

bool AsyncSaver::done() const noexcept {
  return impl_->done();
}

}  // namespace fsdp
