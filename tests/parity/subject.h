// SPDX-License-Identifier: Apache-2.0
// The module that a case trains, as one rank sees it: sharded or not.
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

// Sets the module's own parameters and buffers to their initial values.  `name` is its name in the
// model; "" for the model.
void initialize(torch::nn::Module& module, const std::string& name, const Tensors& inputs);

// Collective.  Returns the tensors that a module has without sharding.
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

// Every rank's module in one thread, not sharded.  Ignores strategies and mixed
// precision.
class PlainRanks {
 public:
  PlainRanks(const ParityCase& wanted, const ParityInputs& inputs, int world);
  ~PlainRanks();

  Subject& rank(int rank);
  // Gives every rank the mean of their gradients, without ignored parameters.
  void average_gradients();

 private:
  class Plain;
  const ParityCase& case_;
  std::vector<std::unique_ptr<Plain>> ranks_;
};

}  // namespace fsdp::test
