"""Where the configuration comes from, so that a reload reads it as the start did.

If the configuration says so, a changed file is reloaded. Its path is resolved at each look, so a
ConfigMap that Kubernetes swaps is seen. A file that is half written is refused as by any reload,
and read again when it has changed once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.balancing.token_counter import HuggingFace, Tiktoken, TokenCounter, TokenizerUnusable
from penstock.conf.files import file_state, read_regular
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.load import Loaded, load
from penstock.proxy.discovery.beside import beside
from penstock.proxy.reload.certificates import certificates_of
from penstock.proxy.wire.certificates import PLAIN, Certificates

# The largest files in use have 20 MB.
FILE_BYTES_MAX: Final = 268_435_456


def counter_of(loaded: Loaded, config: Path | None) -> TokenCounter | None:
    """The configured exact counter. None for the estimate by bytes. Raises ConfigError."""
    settings = loaded.settings.tokens
    if settings.file is None:
        return None
    try:
        content = _read(Path(settings.file))
        if settings.estimator == "tiktoken":
            return Tiktoken(content, settings.encoding)
        return HuggingFace(content)
    except TokenizerUnusable as error:
        where = loaded.origins["tokens.file"]
        if config is not None:
            where = where.replace("file:", f"{config}:", 1)
        raise ConfigError([Issue(where, ("tokens", "file"), str(error))]) from None


def _read(path: Path) -> bytes:
    try:
        content = read_regular(path, FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TokenizerUnusable(f"{path.name} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise TokenizerUnusable(f"{path.name} is larger than {FILE_BYTES_MAX:,} bytes")
    return content


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


LOOK_S: Final = 1.0


class ConfigWatch:
    """Looks at the file each second. `reload` reads it, and logs what is wrong."""

    def __init__(self, path: Path | None, reload: Callable[[], Awaitable[object]]) -> None:
        self._path = path
        self._reload = reload
        self._state = file_state(path) if path is not None else None  # as the start has read it
        self._task: asyncio.Task[None] | None = None

    def use(self, *, watch: bool) -> None:
        """Look from now on, or no more."""
        if not watch:
            self.stop()
        elif self._task is None and self._path is not None:
            self._task = asyncio.create_task(self._look(self._path))

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _look(self, path: Path) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            state = await beside(lambda: file_state(path))
            if state is not None and state != self._state:
                self._state = state
                await self._reload()
