"""Where the configuration came from, to be read again as it was read at the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balancing.token_counter import TokenCounter
from conf.issues import ConfigError, Issue
from conf.load import Loaded, load
from proxy.tls import PLAIN, Certificates


@dataclass(frozen=True, slots=True)
class Source:
    """The file, if there is one, and what is put over it."""

    path: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, object]

    def load(self) -> Loaded:
        """Read all of it, secrets' files too. Raises ConfigError with all that is wrong."""
        return load(self.path, self.environ, self.flags)

    def files(
        self, loaded: Loaded, *, counter: bool = True
    ) -> tuple[TokenCounter | None, Certificates]:
        """What the files hold that it names: the exact counter, None for the estimate, and the
        certificates. Raises ConfigError with all that is wrong. Without `counter` none is read.
        """
        from proxy.certificates import certificates_of
        from proxy.tokenizer_file import counter_of

        issues: list[Issue] = []
        counts: TokenCounter | None = None
        certificates = PLAIN
        try:
            certificates = certificates_of(loaded, self.path)
        except ConfigError as error:
            issues += error.issues
        try:
            counts = counter_of(loaded, self.path) if counter else None
        except ConfigError as error:
            issues += error.issues
        if issues:
            raise ConfigError(issues)
        return counts, certificates
