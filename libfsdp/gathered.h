// SPDX-License-Identifier: Apache-2.0
// "Whole now": for code in a forward that reads parameters without an operator.
//
// Operators gather the parameters that they take.  What asks for memory itself (data_ptr(),
// accessor(), a kernel of your own that is called with pointers) must say so:
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

struct EngineLife;
struct Unit;

// While it lives, and forward or backward has not ended, these parameters are whole.  They are to
// be read: what is written is lost.  Tensors that are no sharded parameters are whole anyway.
class Gathered {
 public:
  // Collective, as an operator on the parameters.
  // Throws: c10::Error outside of forward and backward of their sharded module.
  explicit Gathered(const std::vector<at::Tensor>& parameters);
  ~Gathered();
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  struct Pin {
    std::weak_ptr<EngineLife> life;
    Unit* unit;
  };
  std::vector<Pin> pins_;
};

}  // namespace fsdp
