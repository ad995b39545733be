import sys, os, types, contextlib, torch
import megatron_cpu

class _Stream:
    def __init__(self, *a, **k): pass
    def wait_stream(self, *a): pass
    def wait_event(self, *a): pass
    def record_event(self, *a): return self
    def record(self, *a): pass
    def wait(self, *a): pass
    def synchronize(self): pass

def make(rank, world, folder):
    torch.cuda.Stream = _Stream
    torch.cuda.Event = _Stream
    torch.cuda.current_stream = lambda *_: _Stream()
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.cuda.empty_cache = lambda: None
    megatron_cpu.parallel(1, 1, 1)
    config, gpt = megatron_cpu.model(1, 1, 1, False)
    torch.cuda.current_device = lambda: 0
    moved = torch.Tensor.to
    torch.Tensor.to = lambda self, *to, **k: moved(self, *("cpu" if isinstance(x, (str, torch.device)) and str(x).startswith("cuda") else x for x in to), **{n: ("cpu" if str(x).startswith("cuda") else x) for n, x in k.items()})
    from megatron.core.distributed.fsdp.src.megatron_fsdp.fully_shard import fully_shard_model, fully_shard_optimizer
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("dp", "tp"))
    model = fully_shard_model(gpt, device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp", zero_dp_strategy=3, fsdp_unit_modules=[TransformerLayer], device=torch.device("cuda:0"))
    sd = model.state_dict()
    if rank == 0:
        for k, v in sd.items():
            print(k, type(v).__name__, v.dtype if v is not None else None, tuple(v.shape) if v is not None else None, tuple(v.to_local().shape) if hasattr(v, "to_local") else None, getattr(v,"placements",None))
    for n, p in list(model.named_parameters())[:2]: print(n, type(p))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    print(len(opt.param_groups[0]["params"]))
    
if __name__ == "__main__":
    megatron_cpu.run(int(sys.argv[1]), make, sys.argv[2])
