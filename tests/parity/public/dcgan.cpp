// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/public/dcgan.h"

#include <torch/torch.h>

#include "libfsdp/wrap_policy.h"
#include "tests/parity/case_options.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// The same as in own_loops.py.
constexpr std::int64_t kNoiseSize = 8;

nn::ConvTranspose2dOptions twice_as_large(std::int64_t channels_in, std::int64_t channels_out,
                                          std::int64_t kernel) {
  return nn::ConvTranspose2dOptions(channels_in, channels_out, kernel)
      .stride(2)
      .padding(1)
      .bias(false);
}

nn::Conv2d half_as_large(std::int64_t channels_in, std::int64_t channels_out) {
  return nn::Conv2d(
      nn::Conv2dOptions(channels_in, channels_out, 4).stride(2).padding(1).bias(false));
}

nn::LeakyReLU leaky_relu() {
  return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2));
}

void initialize_all(nn::Module& module, const std::string& name, const Tensors& inputs) {
  for (auto& item : module.named_modules(name)) initialize(*item.value(), item.key(), inputs);
}

void add(Training& training, const std::string& prefix, ShardedModule& sharded) {
  for (auto& [name, tensor] : full_tensors(sharded)) training.tensors[prefix + name] = tensor;
  for (const std::string& unit : sharded.unit_names()) training.units.push_back(prefix + unit);
}

}  // namespace

DCGANGeneratorImpl::DCGANGeneratorImpl(std::int64_t noise_size)
    : conv1(nn::ConvTranspose2dOptions(noise_size, 12, 4).bias(false)),
      conv2(twice_as_large(12, 8, 3)),
      conv3(twice_as_large(8, 5, 4)),
      conv4(twice_as_large(5, 1, 4)),
      batch_norm1(12),
      batch_norm2(8),
      batch_norm3(5) {
  register_module("conv1", conv1);
  register_module("conv2", conv2);
  register_module("conv3", conv3);
  register_module("conv4", conv4);
  register_module("batch_norm1", batch_norm1);
  register_module("batch_norm2", batch_norm2);
  register_module("batch_norm3", batch_norm3);
}

at::Tensor DCGANGeneratorImpl::forward(at::Tensor x) {
  x = torch::relu(batch_norm1(conv1(x)));
  x = torch::relu(batch_norm2(conv2(x)));
  x = torch::relu(batch_norm3(conv3(x)));
  return torch::tanh(conv4(x));
}

nn::Sequential create_discriminator() {
  return nn::Sequential(half_as_large(1, 5), leaky_relu(),                        //
                        half_as_large(5, 8), nn::BatchNorm2d(8), leaky_relu(),    //
                        half_as_large(8, 12), nn::BatchNorm2d(12), leaky_relu(),  //
                        nn::Conv2d(nn::Conv2dOptions(12, 1, 3).bias(false)), nn::Sigmoid());
}

Training train_dcgan(const ParityCase& wanted, const ParityInputs& inputs,
                     const std::shared_ptr<ProcessGroup>& group) {
  DCGANGenerator plain_generator(kNoiseSize);
  nn::Sequential plain_discriminator = create_discriminator();
  initialize_all(*plain_generator, "generator", inputs.tensors);
  initialize_all(*plain_discriminator, "discriminator", inputs.tensors);

  FsdpOptions options = case_options(wanted, group);
  options.auto_wrap_policy = module_wrap_policy<nn::Conv2dImpl, nn::ConvTranspose2dImpl>();
  FullyShardedDataParallel<DCGANGenerator> generator(plain_generator, options);
  FullyShardedDataParallel<nn::Sequential> discriminator(plain_discriminator, options);
  torch::optim::Adam generator_optimizer(generator.parameters(),
                                         torch::optim::AdamOptions(2e-3).betas({0.5, 0.5}));
  torch::optim::Adam discriminator_optimizer(discriminator.parameters(),
                                             torch::optim::AdamOptions(2e-3).betas({0.5, 0.5}));
  const auto batch = [&](const char* name, std::int64_t step) {
    return inputs.tensors.at(name)[step][group->rank()][0];
  };

  Training training;
  for (std::int64_t step = 0; step < inputs.steps; ++step) {
    // The discriminator, with real images.
    discriminator->zero_grad();
    const at::Tensor real_labels = batch("labels", step);
    const at::Tensor real_output =
        discriminator.forward(batch("real", step)).reshape(real_labels.sizes());
    const at::Tensor d_loss_real = torch::binary_cross_entropy(real_output, real_labels);
    d_loss_real.backward();

    // With fake ones.
    const at::Tensor fake_images = generator.forward(batch("noise", step));
    const at::Tensor fake_labels = torch::zeros_like(real_labels);
    at::Tensor fake_output =
        discriminator.forward(fake_images.detach()).reshape(fake_labels.sizes());
    const at::Tensor d_loss_fake = torch::binary_cross_entropy(fake_output, fake_labels);
    d_loss_fake.backward();
    const at::Tensor d_loss = d_loss_real + d_loss_fake;
    discriminator_optimizer.step();

    // The generator.
    generator->zero_grad();
    fake_labels.fill_(1);
    fake_output = discriminator.forward(fake_images).reshape(fake_labels.sizes());
    const at::Tensor g_loss = torch::binary_cross_entropy(fake_output, fake_labels);
    g_loss.backward();
    generator_optimizer.step();

    training.losses.push_back(
        {d_loss_real.item<float>(), d_loss.item<float>(), g_loss.item<float>()});
  }
  add(training, "generator.", generator);
  add(training, "discriminator.", discriminator);
  return training;
}

}  // namespace fsdp::test
