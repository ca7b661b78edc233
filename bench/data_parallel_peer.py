"""One rank of bench/data_parallel, gpu, outside_operators, precision and zero: what data_parallel_rank.cpp does, by
PyTorch's own means: DistributedDataParallel over Gloo with gradients as views into its buckets; or, with a third argument zero1 or
zero2, by FairScale's: its OSS beside that, or beside its ShardedDataParallel. The same models, the same
optimizers, the same commands and answers. --settings, joined by +, change how the models compute: attention
by `sdpa` (scaled_dot_product_attention, from PyTorch 2.0 on) instead of products, images `contiguous` or
`channels_last` instead of as Troika's "auto" has them, and `compile` (torch.compile). --operator-time names
the library of operator_time.h. With --gpu, one process without DistributedDataParallel on the first GPU."""
import argparse
import contextlib
import ctypes
import json
import sys
import time

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from pytorch_models import CONTEXT, GPT, VGG16, VOCABULARY, resnet


def distribute(model, optimizer, exchange, **settings):
    """The model and the optimizer as all ranks have them."""
    ddp = nn.parallel.DistributedDataParallel
    if not exchange:
        return ddp(model, gradient_as_bucket_view=True), optimizer(model.parameters(), **settings)
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim.oss import OSS
    oss = OSS(model.parameters(), optim=optimizer, **settings)
    if exchange == "zero1":
        return ddp(model, gradient_as_bucket_view=True), oss
    return ShardedDataParallel(model, oss), oss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("precision")
    parser.add_argument("exchange", nargs="?")
    parser.add_argument("--settings", default="")
    parser.add_argument("--operator-time")
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    name, precision, settings = options.model, options.precision, options.settings.split("+")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    model = {"resnet18": lambda: resnet(torchvision.models.resnet18),
             "resnet50": lambda: resnet(torchvision.models.resnet50),
             "vgg16": VGG16, "gpt": lambda: GPT("sdpa" in settings)}[name]()
    if name == "gpt":
        inputs, targets = (torch.randint(VOCABULARY, (8, CONTEXT)) for _ in range(2))
        optimizer = {"optimizer": torch.optim.AdamW, "lr": 1e-4, "weight_decay": 0}
    else:
        batch = 16 if name == "resnet50" else 32
        inputs, targets = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        optimizer = {"optimizer": torch.optim.SGD, "lr": 0.01, "momentum": 0.9}
    is_last = precision == "bf16-mixed" and "contiguous" not in settings
    if (is_last or "channels_last" in settings) and name != "gpt":
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    if "compile" in settings:
        model = torch.compile(model)
    device = "cuda" if options.gpu else "cpu"
    if options.gpu:
        model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
        ddp = model
        optimizer = optimizer.pop("optimizer")(model.parameters(), **optimizer)
    else:
        ddp, optimizer = distribute(model, exchange=options.exchange, **optimizer)
    keys = ["step", "forward", "optimizer"]
    seconds_outside = float
    if options.operator_time:
        keys.append("outside")
        library = ctypes.CDLL(options.operator_time)
        seconds_outside = library.operator_time_outside
        seconds_outside.restype = ctypes.c_double
        library.operator_time_start()
    for line in sys.stdin:
        mode, steps = line.split()
        seconds = {key: [] for key in keys}
        for _ in range(int(steps)):
            start = time.perf_counter()
            before = seconds_outside()
            ddp.zero_grad(set_to_none=True)
            with contextlib.nullcontext() if mode == "sync" else ddp.no_sync():
                with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
                    logits = ddp(inputs)
                    loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
                backward = time.perf_counter()
                loss.backward()
            update = time.perf_counter()
            outside = seconds_outside() - before
            optimizer.step()
            if options.gpu:
                loss.item()
            end = time.perf_counter()
            seconds["step"].append(end - start)
            seconds["forward"].append(backward - start)
            seconds["optimizer"].append(end - update)
            if options.operator_time:
                seconds["outside"].append(outside)
        print(json.dumps(seconds), flush=True)


main()
