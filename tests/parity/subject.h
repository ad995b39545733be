// SPDX-License-Identifier: Apache-2.0
// What a case trains, as one rank sees it: a sharded module, or one that is not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/process_group.h"
#include "tests/parity/reference.h"

namespace fsdp::test {

struct ParityInputs {
  std::string model;
  std::int64_t steps;
  const Tensors& tensors;
};

// Gives a module the initial values of the parameters and buffers that it itself has.  `name` in
// the model; "" for the model.
void initialize(torch::nn::Module& module, const std::string& name, const Tensors& inputs);

// Collective.  What a module has without sharding.
Tensors full_tensors(ShardedModule& sharded);

class Subject {
 public:
  Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
  virtual ~Subject() = default;

  virtual at::Tensor forward(const at::Tensor& x) = 0;
  virtual void set_requires_gradient_sync(bool sync) = 0;
  virtual at::Tensor clip_grad_norm(double max_norm, double norm_type) = 0;
  // For the optimizer.
  virtual std::vector<at::Tensor> parameters() = 0;
  // Full parameters and buffers.
  virtual Tensors tensors() = 0;
  virtual std::vector<std::string> units() = 0;
};

// Collective.
std::unique_ptr<Subject> sharded_subject(const ParityCase& wanted, const ParityInputs& inputs,
                                         const std::shared_ptr<ProcessGroup>& group);

// Every rank a module of its own in one thread, not sharded.  Knows nothing of strategies and mixed
// precision.
class PlainRanks {
 public:
  PlainRanks(const ParityCase& wanted, const ParityInputs& inputs, int world);
  ~PlainRanks();

  Subject& rank(int rank);
  // Gives every rank the mean of their gradients, ignored parameters left out.
  void average_gradients();

 private:
  class Plain;
  const ParityCase& case_;
  std::vector<std::unique_ptr<Plain>> ranks_;
};

}  // namespace fsdp::test
