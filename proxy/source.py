"""Where the configuration came from, to be read again as it was read at the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balancing.token_counter import TokenCounter
from conf.load import Loaded, load
from proxy.tls import Certificates


@dataclass(frozen=True, slots=True)
class Source:
    """The file, if there is one, and what is put over it."""

    path: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, object]

    def load(self) -> Loaded:
        """Read all of it, secrets' files too. Raises ConfigError with all that is wrong."""
        return load(self.path, self.environ, self.flags)

    def counter(self, loaded: Loaded) -> TokenCounter | None:
        """The exact counter that it names, None for the estimate. Raises ConfigError."""
        from proxy.tokenizer_file import counter_of

        return counter_of(loaded, self.path)

    def certificates(self, loaded: Loaded) -> Certificates:
        """The certificates that it names. Raises ConfigError."""
        from proxy.certificates import certificates_of

        return certificates_of(loaded, self.path)
