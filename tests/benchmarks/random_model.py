"""A model with random weights and the default model's tokenizer: a device of another speed or shape to benchmark on.

    python tests/benchmarks/random_model.py OUT [--hidden 256] [--intermediate 704] [--layers 8] [--heads 8]
        [--kv-heads 4] [--seed 0]

What it says is noise, what a step costs is real: requests of benchmarks have fixed lengths.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from superinfer.executor.models.catalog import resolve_model

TOKENIZER_SOURCE = "smollm2-135m-instruct"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=704)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tokenizer_folder = resolve_model(TOKENIZER_SOURCE).directory
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(options.out)
    for path in tokenizer_folder.glob("*token*"):
        shutil.copy(path, options.out)
    for path in tokenizer_folder.glob("chat_template*"):
        shutil.copy(path, options.out)
    print(f"{options.out}: {sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
