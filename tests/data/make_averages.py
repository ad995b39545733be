#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes averages/: checkpoints with averages of weights as libraries keep them, and what each library itself makes of them.

  python make_averages.py NEMO AUTOMODEL LITEMA [NAME...]
                                             needs torch 2.11, lightning 2.6.6, diffusers 0.42.1, torch_ema 0.3, schedulefree
                                             1.4.1, pytorch_optimizer 4.1.0, timm 1.0.31; and the files callbacks/ema.py of
                                             nemo_toolkit 3.0.0, components/training/ema.py of nemo_automodel 0.7.0 and
                                             sgm/modules/ema.py of Stability's generative-models at 0ad7de9a

NAME.pt has the state of training, NAME.expected.pt the model's state dict after the library put its averages there.
"""
import copy
import importlib
import importlib.util
import os
import sys
import tempfile

import torch
from torch import nn

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "averages")


def module_at(path):
    spec = importlib.util.spec_from_file_location("producer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model():
    """Two matrices have one shape, so that only names or an order tell them apart; batch norm has buffers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))


def train(net, optimizer, after=lambda: None, steps=3):
    for step in range(steps):
        torch.manual_seed(step + 1)
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        after()


def write(name, state, expected):
    torch.save(state, os.path.join(OUT, name + ".pt"))
    torch.save({"model": expected}, os.path.join(OUT, name + ".expected.pt"))


def copied(net):
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def nemo(path):
    # No weight decay for biases: the groups are not in the model's order.
    net = model()
    groups = [{"params": [p for p in net.parameters() if p.dim() == 2]},
              {"params": [p for p in net.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    optimizer = module_at(path).EMAOptimizer(torch.optim.AdamW(groups, lr=0.1), torch.device("cpu"), decay=0.5)
    train(net, optimizer)
    # A swap exchanges the elements of both.
    state = copy.deepcopy({"model": copied(net), "optimizer_states": [optimizer.state_dict()]})
    with optimizer.swap_ema_weights():
        write("nemo", state, copied(net))


def automodel(path):
    net = model()
    ema = module_at(path).EMAManager(net, decay=0.5)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), lambda: ema.update(net))
    write("automodel", {"model": copied(net), "ema": ema.state_dict()}, {**copied(net), **ema.state_dict()})


def averaged_model():
    net = model()
    swa = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), lambda: swa.update_parameters(net))
    write("averaged_model", {"model": copied(net), "averaged": swa.state_dict()}, copied(swa.module))


def lightning():
    import lightning
    from lightning.pytorch.callbacks import EMAWeightAveraging

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, _):
            return self.net(batch).square().sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    averaging = EMAWeightAveraging(decay=0.5)
    trainer = lightning.Trainer(accelerator="cpu", max_steps=3, logger=False, enable_checkpointing=False, callbacks=[averaging],
                                enable_progress_bar=False, enable_model_summary=False)
    inner = Module()
    path = os.path.join(OUT, "lightning.pt")

    class Saving(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            trainer.save_checkpoint(path)
            torch.save({"state_dict": copied(averaging._average_model.module)}, os.path.join(OUT, "lightning.expected.pt"))

    trainer.callbacks.append(Saving())
    torch.manual_seed(5)
    trainer.fit(inner, torch.utils.data.DataLoader(torch.randn(12, 4), batch_size=4))


def listed(name, ema, net, step, copy_to):
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), step)
    state = {"model": copied(net), "ema": ema.state_dict()}
    copy_to()
    write(name, state, copied(net))


def diffusers():
    from diffusers.training_utils import EMAModel
    net = model()
    ema = EMAModel(net.parameters(), decay=0.5)
    listed("diffusers", ema, net, lambda: ema.step(net.parameters()), lambda: ema.copy_to(net.parameters()))


def torch_ema():
    from torch_ema import ExponentialMovingAverage
    net = model()
    ema = ExponentialMovingAverage(net.parameters(), decay=0.5)
    listed("torch_ema", ema, net, ema.update, ema.copy_to)


def timm(name, kind, **options):
    """state_dict_ema by its CheckpointSaver, and the state of the averaging module itself, whose names begin with "module."."""
    from timm.models import load_checkpoint
    from timm.utils import CheckpointSaver
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ema = kind(net, decay=0.5, **options)
    train(net, optimizer, lambda: ema.update(net))
    with tempfile.TemporaryDirectory() as tmp:
        saver = CheckpointSaver(net, optimizer, model_ema=ema, checkpoint_dir=tmp, recovery_dir=tmp)
        saver.save_checkpoint(1, 0.5)
        path = os.path.join(tmp, "last.pth.tar")
        state, averaged = torch.load(path), model()
        load_checkpoint(averaged, path, use_ema=True)
    torch.save(state, os.path.join(OUT, name + ".pt"))
    torch.save({"state_dict": copied(averaged)}, os.path.join(OUT, name + ".expected.pt"))
    write(name + "_module", {"model": copied(net), "ema": ema.state_dict()}, copied(averaged))


def lit_ema(path):
    """As DDPM of latent-diffusion has it: beside the averaged model there are others, and buffers."""
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.diffusion_model = model()

    class Diffusion(nn.Module):
        def __init__(self, own):
            super().__init__()
            self.register_buffer("betas", torch.arange(3.0))
            self.model = Wrapper()
            self.model_ema = own.LitEma(self.model, decay=0.5)
            self.first_stage_model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    torch.manual_seed(1)
    whole = Diffusion(module_at(path))
    net = whole.model.diffusion_model
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), lambda: whole.model_ema(whole.model))
    state = {"state_dict": copied(whole)}
    whole.model_ema.copy_to(whole.model)
    torch.save(state, os.path.join(OUT, "lit_ema.pt"))
    torch.save({"state_dict": copied(whole)}, os.path.join(OUT, "lit_ema.expected.pt"))

    # As the autoencoders of generative-models have it: of all that is beside it.
    class Autoencoder(nn.Module):
        def __init__(self, own):
            super().__init__()
            self.encoder, self.decoder = model(), nn.Linear(2, 4)
            self.model_ema = own.LitEma(self, decay=0.5)

    torch.manual_seed(2)
    whole = Autoencoder(module_at(path))
    train(whole.encoder, torch.optim.SGD(whole.parameters(), lr=0.1), lambda: whole.model_ema(whole))
    state = {"state_dict": copied(whole)}
    whole.model_ema.copy_to(whole)
    torch.save(state, os.path.join(OUT, "lit_ema_all.pt"))
    torch.save({"state_dict": copied(whole)}, os.path.join(OUT, "lit_ema_all.expected.pt"))


def wrapped(name, kind):
    """A wrapper does not save its momentum; that of the reference keeps the averages."""
    schedule_free(name, lambda parameters, lr: kind(torch.optim.SGD(parameters, lr=lr), momentum=0.8))


def schedule_free(name, kind, **options):
    net = model()
    optimizer = kind(net.parameters(), lr=0.1, **options)
    optimizer.train()
    train(net, optimizer)
    state = {"model": copied(net), "optimizer": optimizer.state_dict()}
    optimizer.eval()
    write(name, state, copied(net))
    return {"model": copied(net), "optimizer": optimizer.state_dict()}


def main():
    def evaluated():
        import schedulefree
        state = schedule_free("schedule_free", schedulefree.AdamWScheduleFree, foreach=False)
        write("schedule_free_evaluated", state, state["model"])

    def free(name, kind, made=schedule_free, package="schedulefree", **options):
        made(name, getattr(importlib.import_module(package), kind), **options)

    os.makedirs(OUT, exist_ok=True)
    makes = {
        "nemo": lambda: nemo(sys.argv[1]), "automodel": lambda: automodel(sys.argv[2]), "lit_ema": lambda: lit_ema(sys.argv[3]),
        "averaged_model": averaged_model, "lightning": lightning, "diffusers": diffusers, "torch_ema": torch_ema, "schedule_free": evaluated,
        "timm_v2": lambda: free("timm_v2", "ModelEmaV2", timm, "timm.utils"),
        "timm_v3": lambda: free("timm_v3", "ModelEmaV3", timm, "timm.utils", exclude_buffers=True),
        "schedule_free_sgd": lambda: free("schedule_free_sgd", "SGDScheduleFree", foreach=False),
        "schedule_free_reference": lambda: free("schedule_free_reference", "AdamWScheduleFreeReference"),
        "wrapped": lambda: free("wrapped", "ScheduleFreeWrapper", wrapped),
        "wrapped_reference": lambda: free("wrapped_reference", "ScheduleFreeWrapperReference", wrapped),
        "wrapped_otherwise": lambda: free("wrapped_otherwise", "ScheduleFreeWrapper", wrapped, "pytorch_optimizer"),
        "splus": lambda: free("splus", "SPlus", package="pytorch_optimizer")}
    for name in sys.argv[4:] or makes:
        makes[name]()


if __name__ == "__main__":
    main()
