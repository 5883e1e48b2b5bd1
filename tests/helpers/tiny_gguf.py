"""A random Llama of a few thousand weights in a GGUF file, with a byte-level tokenizer and a chat template."""

from pathlib import Path

import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WIDTH = 16


def write(path: Path, layers: int = 1) -> Path:
    """Needs the package `gguf`. The names of the tensors are llama.cpp's."""
    import gguf

    words = ["<unk>", "<s>", "</s>", *sorted(ByteLevel.alphabet()), "in", "int", "hg", "hgemm"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(words) - 3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_token_merges(["i n", "in t", "h g"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(words), WIDTH), "output_norm": (WIDTH,)}
    for number in range(layers):
        shapes |= {
            f"blk.{number}.attn_norm": (WIDTH,),
            f"blk.{number}.attn_q": (WIDTH, WIDTH),
            f"blk.{number}.attn_k": (WIDTH // 2, WIDTH),
            f"blk.{number}.attn_v": (WIDTH // 2, WIDTH),
            f"blk.{number}.attn_output": (WIDTH, WIDTH),
            f"blk.{number}.ffn_norm": (WIDTH,),
            f"blk.{number}.ffn_gate": (2 * WIDTH, WIDTH),
            f"blk.{number}.ffn_up": (2 * WIDTH, WIDTH),
            f"blk.{number}.ffn_down": (WIDTH, 2 * WIDTH),
        }
    draw = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.normal(0, 0.5, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
