// SPDX-License-Identifier: Apache-2.0
// A deep convolutional GAN with its own loop: two sharded modules, two optimizers, gradients of two
// backwards summed before a step, and a backward through one module into the other.
#pragma once

#include <memory>

#include <torch/nn/modules/container/sequential.h>

#include "tests/parity/models.h"
#include "tests/parity/subject.h"

namespace fsdp::test {

struct DCGANGeneratorImpl : torch::nn::Module {
  explicit DCGANGeneratorImpl(std::int64_t noise_size);
  at::Tensor forward(at::Tensor x);

  torch::nn::ConvTranspose2d conv1, conv2, conv3, conv4;
  torch::nn::BatchNorm2d batch_norm1, batch_norm2, batch_norm3;
};
TORCH_MODULE(DCGANGenerator);

torch::nn::Sequential create_discriminator();

// Collective.
Training train_dcgan(const ParityCase& wanted, const ParityInputs& inputs,
                     const std::shared_ptr<ProcessGroup>& group);

}  // namespace fsdp::test
