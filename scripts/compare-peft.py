"""The part of scripts/test-peft in Python.

compare-peft.py make MODEL           writes MODEL-base, and adapters of peft for it, MODEL-theirs
compare-peft.py compare MODEL WHOSE  compares MODEL-base with the adapters MODEL-WHOSE, and MODEL-WHOSE-merged
"""

import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

WORDS = 300


def make(model):
    torch.manual_seed(0)
    if model == "llama":
        config = LlamaConfig(vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    else:
        config = GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    base = AutoModelForCausalLM.from_config(config)
    base.save_pretrained(f"{model}-base")
    targets = ["q_proj", "o_proj", "up_proj"] if model == "llama" else ["c_attn", "mlp.c_proj"]
    lora = LoraConfig(r=3, lora_alpha=5, use_rslora=True, target_modules=targets, task_type="CAUSAL_LM",
                      fan_in_fan_out=model == "gpt")
    adapted = get_peft_model(base, lora)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(f"{model}-theirs")


def compare(model, whose):
    tokens = torch.arange(32).view(2, 16) * 7 % WORDS

    def logits(of):
        with torch.no_grad():
            return of.eval()(tokens).logits

    base = AutoModelForCausalLM.from_pretrained(f"{model}-base")
    plain = logits(base).clone()
    apart = logits(PeftModel.from_pretrained(base, f"{model}-{whose}"))
    merged = logits(AutoModelForCausalLM.from_pretrained(f"{model}-{whose}-merged"))
    difference = (apart - merged).abs().max().item()
    effect = (apart - plain).abs().max().item()
    print(f"{model}, adapters of {whose}: logits differ by {difference:.1e}, and from the base by {effect:.2f}")
    if not (difference < 1e-5 * max(1.0, apart.abs().max().item()) and effect > 1e-2):
        sys.exit(f"error: [test-peft] {model}, {whose}: merged and apart differ, or adapters have no effect")


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else compare(sys.argv[2], sys.argv[3])
