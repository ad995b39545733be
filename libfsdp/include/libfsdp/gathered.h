// SPDX-License-Identifier: Apache-2.0
// Gathers parameters for code in a forward that reads them without an operator.
//
// Operators gather the parameters that they take.  Code that asks for memory itself (data_ptr(),
// accessor(), a custom kernel that is called with pointers) must say so:
//
//   Tensor forward(const Tensor& x) {
//     const fsdp::Gathered whole({weight, bias});
//     return my_kernel(x, weight.data_ptr<float>(), bias.data_ptr<float>());
//   }
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace fsdp {

namespace internal {
struct EngineLife;
struct Unit;
}  // namespace internal

// Keeps parameters whole while it lives, at most until forward or backward ends.  Only read them:
// writes are lost.  Tensors that are not sharded parameters are always whole.
class Gathered {
 public:
  // Collective, like an operator on the parameters.
  // Throws: c10::Error outside of forward and backward of their sharded module.
  explicit Gathered(const std::vector<at::Tensor>& parameters);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  struct Pin {
    std::weak_ptr<internal::EngineLife> life;
    internal::Unit* unit;
  };
  std::vector<Pin> pins_;
};

// Collective over the ranks that have the parameter.  Returns a copy of the whole parameter of
// `shard`, a tensor of ShardedModule::parameters() that is not flat; for any other tensor, the
// tensor itself.  `values`: a tensor laid out like the shard (its gradient or optimizer state),
// which is gathered instead.
at::Tensor full_tensor(const at::Tensor& shard);
at::Tensor full_tensor(const at::Tensor& shard, const at::Tensor& values);

}  // namespace fsdp
