"""What looks at every byte of a large body, in C, where a C compiler built it (`c/`).

Each part has a twin in Python, which reads the same: `members.py` for `Scan`, `prompt_blocks.py`
for `BlockHashes`, `tokens.py` for `kinds_of`. Tests hold them against each other.
"""

try:
    from penstock.balancing._native import MORE, WHOLE, BlockHashes, Scan, kinds_of

    AVAILABLE = True
except ImportError:  # an interpreted installation
    AVAILABLE = False

__all__ = ["AVAILABLE", "MORE", "WHOLE", "BlockHashes", "Scan", "kinds_of"]
