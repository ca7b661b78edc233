"""PyTorch's side of the models that the benchmarks compare: those of troika/nn/zoo.h, with CIFAR's images and a small GPT."""
import math

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

WIDTH, LAYERS, HEADS, CONTEXT, VOCABULARY = 384, 6, 6, 256, 256


class Block(nn.Module):
    def __init__(self, sdpa):
        super().__init__()
        self.sdpa = sdpa
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        future = torch.full((CONTEXT, CONTEXT), -math.inf).triu_(1)
        self.register_buffer("future", future, persistent=False)

    def attention(self, x):
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)
            return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        q, k, v = (part.reshape(batch * HEADS, length, -1) for part in qkv.unbind(0))
        scores = torch.baddbmm(self.future, q, k.transpose(1, 2), beta=1,
                               alpha=1 / math.sqrt(q.size(2)))
        mixed = torch.bmm(torch.softmax(scores, -1), v).view(batch, HEADS, length, -1)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, sdpa):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(sdpa) for _ in range(LAYERS)))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.size(1)]
        return F.linear(self.ln_f(self.blocks(x)), self.wte.weight)


class VGG16(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torchvision.models.vgg16().features
        self.classifier = nn.Linear(512, 10)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def resnet(make):
    model = make(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model
