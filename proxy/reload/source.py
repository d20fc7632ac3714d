"""Where the configuration comes from, so that a reload reads it as the start did."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.balancing.token_counter import TokenCounter
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.load import Loaded, load
from penstock.proxy.wire.certificates import PLAIN, Certificates


@dataclass(frozen=True, slots=True)
class Source:
    """The file, if there is one, and the environment and flags that override it."""

    path: Path | None
    environ: Mapping[str, str]
    flags: Mapping[str, object]

    def load(self) -> Loaded:
        """Read everything, including secret files. Raises ConfigError with all errors."""
        return load(self.path, self.environ, self.flags)

    def files(
        self, loaded: Loaded, *, counter: bool = True
    ) -> tuple[TokenCounter | None, Certificates]:
        """Read the files that it names: the exact token counter (None: estimate) and the
        certificates. Raises ConfigError with all errors. Without `counter` no counter is read.
        """
        from penstock.proxy.reload.certificates import certificates_of
        from penstock.proxy.reload.tokenizer_file import counter_of

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
