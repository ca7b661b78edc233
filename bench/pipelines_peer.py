"""One rank of bench/pipelines: what pipelines_rank.cpp does, by torch.distributed.pipelining over Gloo. Arguments: MODEL,
the number of the first block of stage 1 (GPT's layers, ResNet-50's bottlenecks), schedules, and --settings: `sdpa` for
attention, `channels_last` for images. The same models but for GPT's output layer, which has weights of its own here, since
PyTorch's pipelines have no tied parameters; the same commands and answers, without "local"."""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.distributed import pipelining

from pytorch_models import CONTEXT, VOCABULARY, WIDTH, Block, resnet

MICRO_BATCHES, LAYERS = 8, 6
SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, tokens):
        return self.wte(tokens) + self.wpe.weight[:tokens.size(1)]


class Head(nn.Module):
    def __init__(self, fc):
        super().__init__()
        self.fc = fc

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


class Permuted(nn.Module):
    """Gloo sends contiguous tensors alone. In channels-last order, those are images of permuted dimensions."""

    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(*self.dims)


def make_stages(model, cut, settings):
    """The modules of both stages."""
    if model == "gpt":
        blocks = [Block("sdpa" in settings) for _ in range(LAYERS)]
        first, last = [Embedding()], [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)]
    else:
        whole = resnet(torchvision.models.resnet50)
        blocks = [block for layer in (whole.layer1, whole.layer2, whole.layer3, whole.layer4) for block in layer]
        first, last = [whole.conv1, whole.bn1, whole.relu], [Head(whole.fc)]
    first += blocks[:cut]
    last = blocks[cut:] + last
    if "channels_last" in settings:
        first.append(Permuted(0, 2, 3, 1))
        last.insert(0, Permuted(0, 3, 1, 2))
    stages = nn.Sequential(*first), nn.Sequential(*last)
    return [stage.to(memory_format=torch.channels_last) if "channels_last" in settings else stage for stage in stages]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("cut", type=int)
    parser.add_argument("schedules", type=lambda text: text.split(","))
    parser.add_argument("--settings", default="")
    options = parser.parse_args()
    settings = options.settings.split("+")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    if options.model == "gpt":
        inputs, targets = (torch.randint(VOCABULARY, (2 * MICRO_BATCHES, CONTEXT)) for _ in range(2))
    else:
        inputs, targets = torch.randn(4 * MICRO_BATCHES, 3, 32, 32), torch.randint(10, (4 * MICRO_BATCHES,))
        if "channels_last" in settings:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
    module = make_stages(options.model, options.cut, settings)[rank]

    def loss(logits, classes):
        return F.cross_entropy(logits.flatten(0, -2), classes.flatten())

    pipelines = {name: SCHEDULES[name](pipelining.PipelineStage(module, rank, 2, torch.device("cpu")),
                                       n_microbatches=MICRO_BATCHES, loss_fn=loss) for name in options.schedules}
    for line in sys.stdin:
        name, steps = line.split()
        seconds = []
        for _ in range(int(steps)):
            start = time.perf_counter()
            module.zero_grad(set_to_none=True)
            if rank == 0:
                pipelines[name].step(inputs, return_outputs=False)
            else:
                pipelines[name].step(target=targets, losses=[], return_outputs=False)
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"step": seconds}), flush=True)


main()
