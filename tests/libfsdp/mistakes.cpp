// SPDX-License-Identifier: Apache-2.0
// Programs as people write them at first, none of which compiles.  check_mistakes.py compares what
// the compiler says with the comments.
#include "libfsdp/fsdp.h"

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Net);
struct LazyImpl : torch::nn::Module {};
TORCH_MODULE(Lazy);

using fsdp::FsdpOptions;
using fsdp::FullyShardedDataParallel;

#ifdef WITH_MISTAKES
void mistakes(Net net, Lazy lazy, NetImpl plain, FsdpOptions options, const at::Tensor& x) {
  const fsdp::FullyShardOptions composed;
  // M is a module's holder or its type, not a pointer
  FullyShardedDataParallel<std::shared_ptr<NetImpl>> of_pointer(net.ptr(), options);
  // give its holder or a std::shared_ptr to it, not the module itself
  FullyShardedDataParallel<Net> by_value(plain, options);
  // give its holder or a std::shared_ptr to it, not a plain pointer
  FullyShardedDataParallel<Net> by_pointer(&plain, options);
  // the module is not an M
  FullyShardedDataParallel<Net> of_another(lazy, options);
  // the module has no forward() that takes these arguments
  FullyShardedDataParallel<Net>(net, options).forward(x, x);
  // the module has no forward() that takes these arguments
  FullyShardedDataParallel<Lazy>(lazy, options).forward(x);
  // a policy selects types of torch::nn::Module
  options.auto_wrap_policy = fsdp::module_wrap_policy<at::Tensor>();
  // the function cannot be called with these arguments
  fsdp::checkpoint([](at::Tensor&& value) { return value; }, x);
  // fsdp::checkpoint() takes a function
  fsdp::checkpoint_module([](const at::Tensor& value) { return value; }, x);
  // fsdp::fully_shard() takes fsdp::FullyShardOptions
  fsdp::fully_shard(net, options);
  // fsdp::fully_shard() takes a module's holder or a std::shared_ptr
  fsdp::fully_shard(plain, composed);
}
#endif

// Those beside them do.
void programs(Net net, const FsdpOptions& options, const at::Tensor& x) {
  FullyShardedDataParallel deduced(net, options);
  const FullyShardedDataParallel from_pointer(net.ptr(), options);
  static_assert(std::is_same_v<decltype(deduced), FullyShardedDataParallel<NetImpl>>);
  deduced(x);
  fsdp::fully_shard(net.ptr(), {.process_group = nullptr});
  fsdp::fully_shard(net, fsdp::FullyShardOptions())->reshard();
  fsdp::call(net, fsdp::call(*net, x));
  fsdp::checkpoint_module(net, fsdp::checkpoint(net, x));
}
