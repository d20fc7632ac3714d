"""Write the smallest model that a vLLM on a CPU serves: `tiny_model.py FOLDER [FAMILY]`.

Run by the interpreter of the vLLM environment, which has the libraries. A Llama, or a Qwen2, of
two layers without weights: vLLM makes random ones by itself (`--load-format
dummy`, the same each time). The tokenizer learns from the interpreter's own library,
at the level of bytes, so every text can be told and nothing is downloaded.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

VOCABULARY: Final = 4_096
CONTEXT_TOKENS: Final = 32_768
HEAD_SIZE: Final = 32  # the smallest that vLLM's attention for CPUs takes
# Their configurations, architectures and heads. Of equal shapes vLLM makes equal weights.
FAMILIES: Final = {
    "llama": (LlamaConfig, "LlamaForCausalLM", 2),
    "qwen2": (Qwen2Config, "Qwen2ForCausalLM", 4),
}
SPECIAL: Final = ("<|begin|>", "<|turn|>", "<|end|>", "<|pad|>")
TEMPLATE: Final = (
    "{%- for message in messages -%}<|turn|>{{ message.role }}: "
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}{{ part.text }}{%- endfor -%}{%- endif -%}"
    "<|end|>{%- endfor -%}{%- if add_generation_prompt -%}<|turn|>assistant: {%- endif -%}"
)


def corpus() -> Iterator[str]:
    """A few megabytes of text that every interpreter has."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="replace")


def tokenizer() -> PreTrainedTokenizerFast:
    bytewise = Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bytewise.train_from_iterator(corpus(), trainer)
    begin, _, end, pad = SPECIAL
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        bos_token=begin,
        eos_token=end,
        pad_token=pad,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    return fast


def main(folder: str, family: str = "llama") -> None:
    tokenizer().save_pretrained(folder)
    kind, architecture, heads = FAMILIES[family]
    config = kind(
        vocab_size=VOCABULARY,
        hidden_size=heads * HEAD_SIZE,
        intermediate_size=2 * heads * HEAD_SIZE,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=True,
    )
    config.architectures = [architecture]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
