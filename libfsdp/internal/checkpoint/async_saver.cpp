// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "formats/bytes/base/huge_pages.h"
#include "libfsdp/agree.h"
#include "libfsdp/checkpoint.h"
#include "libfsdp/internal/checkpoint/stream_copy.h"
#include "libfsdp/internal/checkpoint/tensor_bridge.h"
#include "libfsdp/internal/checkpoint/training_parts.h"
#include "libfsdp/internal/comm/devices.h"

namespace fsdp {
using namespace internal;
namespace {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

// Returns the state with every tensor in it replaced.
StateValue mapped(const StateValue& value, const TensorMap& map);

StateDict mapped(const StateDict& state, const TensorMap& map) {
  StateDict result;
  for (const auto& [key, value] : state.entries()) result.set(key, mapped(value, map));
  return result;
}

StateList mapped(const StateList& list, const TensorMap& map) {
  StateList result;
  for (const StateValue& item : list) result.push_back(mapped(item, map));
  return result;
}

StateValue mapped(const StateValue& value, const TensorMap& map) {
  if (const auto* tensor = value.as_tensor()) return map(*tensor);
  if (const auto* sharded = value.as_sharded()) {
    ShardedTensor result = *sharded;
    result.local = map(sharded->local);
    return result;
  }
  if (const auto* dict = value.as_dict()) return mapped(*dict, map);
  if (const auto* list = value.as_list()) return mapped(*list, map);
  if (const auto* tuple = value.as_tuple()) return StateTuple{mapped(tuple->items, map)};
  return value;
}

// Holds copies of tensors on the CPU, in memory that the next save uses again.
class Staging {
 public:
  StateDict copy(const StateDict& state) {
    std::int64_t bytes = 0;
    bool pinned = false;
    mapped(state, [&](const at::Tensor& tensor) {
      bytes += room_for(tensor);
      pinned = pinned || copies_from_pinned_memory(tensor.device());
      return tensor;
    });
    if (!memory_.defined() || memory_.numel() < bytes || (pinned && !memory_.is_pinned())) {
      memory_.reset();  // first: both together may not fit
      memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(pinned));
      if (!pinned) formats::advise_huge(memory_.data_ptr(), memory_.nbytes());
    }
    std::int64_t next = 0;
    return mapped(state, [&](const at::Tensor& tensor) {
      const auto bytes_here = static_cast<std::int64_t>(tensor.nbytes());
      at::Tensor copy =
          memory_.narrow(0, next, bytes_here).view(tensor.scalar_type()).view(tensor.sizes());
      next += room_for(tensor);
      fill(copy, tensor);
      return copy;
    });
  }

 private:
  // Each copy begins at a multiple of 64 bytes: LibTorch's memory does, too.
  static std::int64_t room_for(const at::Tensor& tensor) {
    constexpr std::int64_t kAlignment = 64;
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  static void fill(const at::Tensor& copy, const at::Tensor& tensor) {
    if (!is_host_memory(tensor)) {
      copy.copy_(tensor.detach());
      return;
    }
    // Fast, because training waits for the copy.
    stream_copy(host_memory(tensor), host_memory(copy));
  }

  at::Tensor memory_;
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
    if (error_) {
      TORCH_WARN("a checkpoint was not saved: ", message());
    }
  }

  // `meta`: null if there is none.
  void start(const std::filesystem::path& folder, const StateDict& state, const StateDict* meta,
             const SaveOptions& options) {
    wait();
    StateDict both{{"state", state}};
    if (meta != nullptr) both.set("meta", *meta);
    StateDict copies;
    agree(group_, "copying the state to save as " + folder.native(), [&] {
      const at::NoGradGuard no_grad;
      copies = staging_.copy(both);
    });
    busy_ = true;
    const auto write = [this, folder, options, copies = std::move(copies)] {
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
    };
    try {
      thread_ = std::jthread(write);
    } catch (const std::exception&) {
      // No thread could be started, but the other ranks are saving already and wait for this rank.
      write();
    }
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
      error_;  // of the last save, until it was reported; the thread owns it while it runs
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
