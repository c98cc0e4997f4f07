"""A training loop by hand on one or several GPUs, its whole step with DDP's all-reduce one CUDA graph.
Started by run.py through torchrun.

Prints one line of JSON: samples/s of all GPUs together, and the milliseconds that the all-reduce of the
gradients takes by itself. Recipe:
https://docs.pytorch.org/docs/stable/notes/cuda.html#usage-with-distributeddataparallel
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
from collecting import Arguments
from hand import COMPILED, batches, build, optimizer_of
from setups import MODELS, setup

WARMUP = 12  # DDP times itself in its first ten steps


def main() -> None:
    parser = Arguments()
    parser.add_argument("--model", choices=MODELS)
    here = setup(parser.parse_args().model, "amp_bf16", tiny=False)
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.backends.cudnn.benchmark = True
    torch.cuda.set_stream(torch.cuda.Stream())
    rate = train(here, rank)
    if rank == 0:
        print(json.dumps(rate), flush=True)
    dist.barrier()
    os._exit(0)  # NCCL would wait for the graph's collectives


def train(here, rank: int) -> dict[str, float]:
    world = dist.get_world_size()
    model = build(here, look_up=False).cuda()
    if not here.text:
        model = model.to(memory_format=torch.channels_last)
    if world > 1:
        model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    torch._dynamo.config.optimize_ddp = False
    run = torch.compile(model) if here.model in COMPILED else model
    optimizer, data = optimizer_of(here, model, fused=True), batches(here, channels_last=True)
    for group in optimizer.param_groups:
        group["capturable"] = True
    x, y = (tensor.clone() for tensor in data[0])

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            loss = cross_entropy(run(x).float(), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    for _ in range(WARMUP):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    replay(graph, (x, y), data, WARMUP)
    seconds = replay(graph, (x, y), data, here.steps)
    return {"samples_per_s": world * here.batch * here.steps / seconds} | all_reduce(model)


def replay(graph: torch.cuda.CUDAGraph, inputs, data, steps: int) -> float:
    """Seconds of so many steps, each on a batch that is copied to `inputs`."""
    dist.barrier()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(steps):
        for old, new in zip(inputs, data[number % len(data)], strict=True):
            old.copy_(new)
        graph.replay()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def all_reduce(model: nn.Module, times: int = 20) -> dict[str, float]:
    gradients = torch.zeros(sum(p.numel() for p in model.parameters()), device="cuda")
    for _ in range(3):
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(gradients)
    torch.cuda.synchronize()
    ms = (time.perf_counter() - begun) / times * 1e3
    return {"all_reduce_ms": ms, "gradient_mib": gradients.nbytes / 2**20}


if __name__ == "__main__":
    main()
