"""One rank of bench/tensor: what tensor_rank.cpp does, by torch.distributed.tensor.parallel's parallelize_module over Gloo.
Arguments: MODEL, --tokens of a sample, and --settings, joined by +: `loss_parallel` (logits stay cut by words), `sequence`
(SequenceParallel) and `quiet` (collectives move nothing). The same models, with queries, keys and values in layers of their own; the same
commands and answers, "quiet" alone with that setting and "sync" without it."""
import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

SAMPLES, VOCABULARY, WIDTH, LAYERS, HEADS = 2, 8192, 1024, 4, 16
GATED = 2816  # as troika/nn/llama.cpp chooses it


def rotated(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Attention(nn.Module):
    def __init__(self, llama, tokens):
        super().__init__()
        self.llama = llama
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=not llama) for _ in range(4))
        if llama:
            size = WIDTH // HEADS
            angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
            self.register_buffer("cosines", angles.cos(), persistent=False)
            self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        if self.llama:
            q, k = rotated(q, self.cosines, self.sines), rotated(k, self.cosines, self.sines)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, llama):
        super().__init__()
        self.llama = llama
        inner = GATED if llama else 4 * WIDTH
        self.w1, self.w2 = nn.Linear(WIDTH, inner, bias=not llama), nn.Linear(inner, WIDTH, bias=not llama)
        if llama:
            self.w3 = nn.Linear(WIDTH, inner, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x) if self.llama else F.gelu(self.w1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, llama, tokens):
        super().__init__()
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.attention, self.feed_forward = Attention(llama, tokens), FeedForward(llama)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, llama, tokens):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = None if llama else nn.Parameter(torch.randn(tokens, WIDTH))
        self.blocks = nn.ModuleList(Block(llama, tokens) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH) if llama else nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, own):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[own]
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def cut(model, mesh, sequence, loss):
    """PyTorch's plans, as in its tutorial and torchtitan."""
    stream = Shard(1) if sequence else Replicate()
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "output": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1) if loss else Replicate(),
                                  use_local_output=not loss),
        **({"norm": SequenceParallel()} if sequence else {})})
    columns = ColwiseParallel()
    for block in model.blocks:
        plan = {"attention.wo": RowwiseParallel(output_layouts=stream), "feed_forward.w2": RowwiseParallel(output_layouts=stream)}
        plan |= {f"attention.{name}": columns for name in ("wq", "wk", "wv")}
        plan |= {f"feed_forward.{name}": columns for name in ("w1", "w3") if hasattr(block.feed_forward, name)}
        if sequence:
            whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": whole, "feed_forward": whole}
        parallelize_module(block, mesh, plan)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--settings", default="")
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    settings = options.settings.split("+")
    torch.set_num_threads(1)
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if "quiet" in settings:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Transformer(options.model == "llama", options.tokens)
    sequence = "sequence" in settings
    cut(model, init_device_mesh("cpu", (world,)), sequence, "loss_parallel" in settings)
    tokens, targets = (torch.randint(VOCABULARY, (SAMPLES, options.tokens)) for _ in range(2))
    own = slice(rank * options.tokens // world, (rank + 1) * options.tokens // world) if sequence else slice(None)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            dist.barrier()
            start = time.perf_counter()
            model.zero_grad(set_to_none=True)
            with loss_parallel() if "loss_parallel" in settings else contextlib.nullcontext():
                F.cross_entropy(model(tokens, own).flatten(0, 1), targets.flatten()).backward()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"step": seconds}), flush=True)


main()
