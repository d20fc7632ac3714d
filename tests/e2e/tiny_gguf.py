"""Write the smallest model that llama.cpp serves: `python tiny_gguf.py FILE`.

Run with `gguf` on the path. A Llama of two layers with random weights, the same each time. Its
tokens are bytes and a few made-up words, so any text is a prompt and nothing is downloaded.
"""

import sys
from typing import Final

import numpy as np
from gguf import GGUFWriter, TokenType

CONTEXT_TOKENS: Final = 2_048
WIDTH: Final = 64
HEADS: Final = 4
FORWARD: Final = 128
LAYERS: Final = 2
SPECIAL: Final = ("<unk>", "<s>", "</s>")
WORDS: Final = 64
TEMPLATE: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def describe(writer: GGUFWriter) -> int:
    """Write what kind of model it is. Returns how many tokens it knows."""
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    tokens += [f"\u2581w{number}" for number in range(WORDS)]
    kinds += [TokenType.NORMAL] * WORDS
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def fill(writer: GGUFWriter, vocabulary: int) -> None:
    """Write the weights."""
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = 0.1 * rng.standard_normal(shape) if len(shape) == 2 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", vocabulary, WIDTH)
    add("output_norm", WIDTH)
    add("output", vocabulary, WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}", FORWARD, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, FORWARD)


def main(file: str) -> None:
    writer = GGUFWriter(file, "llama")
    fill(writer, describe(writer))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
