# SPDX-License-Identifier: Apache-2.0
"""Public programs that are more than a model and one loss a step: twins of dcgan.cpp and language_model.cpp.

A loop takes the module, `shard` (a function that wraps a module), the case, the data of one rank by name, and returns the sharded modules
by the prefix of their names, and the numbers of every step.
"""
import torch
from torch import nn
from torch.nn import functional as F

from models import Linear, VOCABULARY, Model

NOISE, EMBEDDED, HIDDEN = 8, 12, 12


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.batch_norm1 = nn.ConvTranspose2d(NOISE, 12, 4, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.batch_norm2 = nn.ConvTranspose2d(12, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv3, self.batch_norm3 = nn.ConvTranspose2d(8, 5, 4, 2, 1, bias=False), nn.BatchNorm2d(5)
        self.conv4 = nn.ConvTranspose2d(5, 1, 4, 2, 1, bias=False)

    def forward(self, x):
        x = F.relu(self.batch_norm1(self.conv1(x)))
        x = F.relu(self.batch_norm2(self.conv2(x)))
        x = F.relu(self.batch_norm3(self.conv3(x)))
        return torch.tanh(self.conv4(x))


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 5, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(5, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2),
        nn.Conv2d(8, 12, 4, 2, 1, bias=False), nn.BatchNorm2d(12), nn.LeakyReLU(0.2),
        nn.Conv2d(12, 1, 3, bias=False), nn.Sigmoid())


def dcgan():
    return nn.ModuleDict({"generator": Generator(), "discriminator": discriminator()})


def digits(generator, lead):
    return {"real": torch.rand(*lead, 4, 1, 28, 28, generator=generator) * 2 - 1,
            "labels": 0.8 + 0.2 * torch.rand(*lead, 4, generator=generator),
            "noise": torch.randn(*lead, 4, NOISE, 1, 1, generator=generator)}


def train_dcgan(module, shard, case, data, steps):
    generator, discriminator = shard(module["generator"]), shard(module["discriminator"])
    generator_optimizer = torch.optim.Adam(generator.parameters(), 2e-3, (0.5, 0.5))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), 2e-3, (0.5, 0.5))
    losses = []
    for step in range(steps):
        discriminator.zero_grad()
        real_labels = data["labels"][step, 0]
        real_output = discriminator(data["real"][step, 0]).reshape(real_labels.shape)
        real_loss = F.binary_cross_entropy(real_output, real_labels)
        real_loss.backward()

        fake_images = generator(data["noise"][step, 0])
        fake_labels = torch.zeros_like(real_labels)
        fake_output = discriminator(fake_images.detach()).reshape(fake_labels.shape)
        fake_loss = F.binary_cross_entropy(fake_output, fake_labels)
        fake_loss.backward()
        discriminator_optimizer.step()

        generator.zero_grad()
        fake_output = discriminator(fake_images).reshape(fake_labels.shape)
        generator_loss = F.binary_cross_entropy(fake_output, torch.ones_like(fake_labels))
        generator_loss.backward()
        generator_optimizer.step()
        losses.append([real_loss.item(), (real_loss + fake_loss).item(), generator_loss.item()])
    return {"generator.": generator, "discriminator.": discriminator}, {"losses": losses, "norms": [], "evaluations": []}


class LanguageModel(nn.Module):
    """Its head computes with the embedding's weight; its own stays registered, unused, as in LibTorch when a member is assigned."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(VOCABULARY, EMBEDDED)
        self.rnn = nn.LSTM(EMBEDDED, HIDDEN, num_layers=2)
        self.decoder = Linear(HIDDEN, VOCABULARY)

    def forward(self, x, hidden):
        y, hidden = self.rnn(self.encoder(x), hidden)
        y = y.matmul(self.encoder.weight.t()) + self.decoder.bias
        return F.log_softmax(y.view(-1, VOCABULARY), 1), hidden


def text(generator, lead):
    """[lead, T, batch]"""
    words = torch.randint(VOCABULARY, (*lead, 8, 3), generator=generator)
    return {"x": words[..., :-1, :].contiguous(), "y": words[..., 1:, :].contiguous()}


def train_language_model(module, shard, case, data, steps):
    model = shard(module)
    hidden = (torch.zeros(2, 3, HIDDEN), torch.zeros(2, 3, HIDDEN))
    losses, norms = [], []
    for step in range(steps):
        hidden = tuple(state.detach() for state in hidden)  # continues with the text, but without backward into it
        model.zero_grad()
        found, hidden = model(data["x"][step, 0], hidden)
        loss = F.nll_loss(found, data["y"][step, 0].flatten())
        loss.backward()
        norms.append(model.clip_grad_norm_(0.25).item())
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-1.0)
        losses.append([loss.item()])
    return {"": model}, {"losses": losses, "norms": norms, "evaluations": []}


OWN_LOOPS = {
    "dcgan": Model(dcgan, (nn.Conv2d, nn.ConvTranspose2d), digits, loop=train_dcgan),
    "rnnlm": Model(LanguageModel, (nn.LSTM,), text, loop=train_language_model),
}
