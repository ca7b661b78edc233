"""Reads what Troika wrote, in the folder given, with the packages that people use: `safetensors`,
TensorBoard's own reader, and Hugging Face's transformers where these are installed. Fails where a value is
not the one expected.json or logits.safetensors has; then writes written_by_python.safetensors for
Troika to read."""

import importlib.util
import json
import pathlib
import sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader


def mlp(weights, x):
    x = x.reshape(len(x), -1)
    for i in range(sum(name.startswith("layers.") for name in weights) // 2):
        x = np.maximum(x @ weights[f"layers.{i}.weight"].T + weights[f"layers.{i}.bias"], 0)
    return x @ weights["head.weight"].T + weights["head.bias"]


def layer_norm(weights, name, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * weights[name + ".weight"] + weights[name + ".bias"]


def conv1d(weights, name, x):
    return x @ weights[name + ".weight"] + weights[name + ".bias"]


def attention(weights, name, x, heads):
    length, width = x.shape[1:]
    split = lambda t: t.reshape(len(t), length, heads, width // heads).swapaxes(1, 2)
    q, k, v = (split(t) for t in np.split(conv1d(weights, name + ".c_attn", x), 3, axis=-1))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(width // heads)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = scores / scores.sum(-1, keepdims=True) @ v
    return conv1d(weights, name + ".c_proj", mixed.swapaxes(1, 2).reshape(x.shape))


def gpt(weights, tokens, heads):
    """Hugging Face's GPT2LMHeadModel."""
    weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
    x = weights["wte.weight"][tokens] + weights["wpe.weight"][: tokens.shape[1]]
    layer = 0
    while f"h.{layer}.ln_1.weight" in weights:
        h = f"h.{layer}."
        x = x + attention(weights, h + "attn", layer_norm(weights, h + "ln_1", x), heads)
        inner = conv1d(weights, h + "mlp.c_fc", layer_norm(weights, h + "ln_2", x))
        inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
        x = x + conv1d(weights, h + "mlp.c_proj", inner)
        layer += 1
    return layer_norm(weights, "ln_f", x) @ weights["wte.weight"].T


def scalars(folder):
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found.append([event.step, value.tag, number])
    return found


folder = pathlib.Path(sys.argv[1])
expected = json.loads((folder / "expected.json").read_text())
io = load_file(folder / "logits.safetensors")

with safe_open(folder / "mlp.safetensors", framework="numpy") as file:
    assert file.metadata()["format"] == "pt", file.metadata()
weights = load_file(folder / "mlp.safetensors")
assert list(weights) and {k: list(v.shape) for k, v in weights.items()} == expected["mlp"], weights.keys()
np.testing.assert_allclose(mlp(weights, io["mlp.input"]), io["mlp.logits"], rtol=1e-4, atol=1e-5)

logits = gpt(load_file(folder / "gpt.safetensors"), io["gpt.input"], expected["heads"])
np.testing.assert_allclose(logits, io["gpt.logits"], rtol=1e-4, atol=1e-5)

config = json.loads((folder / "gpt/config.json").read_text())
logits = gpt(load_file(folder / "gpt/model.safetensors"), io["gpt.input"], config["n_head"])
np.testing.assert_allclose(logits, io["gpt.logits"], rtol=1e-4, atol=1e-5)
if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
    import torch
    from transformers import GPT2LMHeadModel

    model, said = GPT2LMHeadModel.from_pretrained(folder / "gpt", output_loading_info=True)
    assert not any(said.values()), said
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(io["gpt.input"])).logits.numpy()
    np.testing.assert_allclose(logits, io["gpt.logits"], rtol=1e-4, atol=1e-5)

found = scalars(folder)
assert [row[:2] for row in found] == [row[:2] for row in expected["scalars"]], found
np.testing.assert_array_equal(
    np.float32([row[2] for row in found]), np.float32([row[2] for row in expected["scalars"]])
)

resumed = EventAccumulator(str(folder / "resumed")).Reload().Scalars("a")
assert [(row.step, row.value) for row in resumed] == [(1, 1), (2, 1), (3, 2)], resumed

tensors = {name: np.asarray(value) for name, value in weights.items()}
tensors["int64"] = np.arange(-3, 4)
tensors["bool"] = np.array([[True], [False]])
tensors["half"] = np.float16([0.5, -2])
tensors["empty"] = np.zeros((0, 3), np.float64)
save_file(tensors, folder / "written_by_python.safetensors", metadata={"from": "python"})
