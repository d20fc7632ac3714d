"""Whatever stands in the file, the environment or a flag: settings or issues, never a traceback."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.conf.document import UNREAD, read
from penstock.conf.issues import ConfigError
from penstock.conf.load import load
from penstock.conf.show import render

FLEET = {"pools": [{"name": "p", "backends": [{"name": "a", "url": "http://a"}]}]}
KEYS = st.sampled_from(
    ["listen", "admin", "pools", "health", "deep", "limits", "paths", "log", "name", "backends",
     "url", "weight", "port", "host", "policy", "models", "body_bytes", "level", "headers", "<<"]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["http://a:1", "${X}", "${Y:-1}", "$", "least_tokens", "GET /x", "\udcff"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
YAML_TEXT = st.text(
    alphabet=st.sampled_from([*"abx01.-+:,#&*!|>%@'\"\\[]{}? \n\t$~<", "\r", "\x85", "\0", "é"]),
    max_size=60,
)
BOUNDED = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


def survives(
    content: bytes | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> None:
    """Load; what comes out must be printable, one way or the other."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        if content is not None:
            path.write_bytes(content)
        try:
            told = render(load(path if content is not None else None, environ, flags)).splitlines()
        except ConfigError as refused:
            told = [str(issue) for issue in refused.issues]
    assert told
    assert all(line.isprintable() for line in told)


@BOUNDED
@given(st.binary(max_size=80))
def test_any_bytes(content: bytes) -> None:
    survives(content, {}, {})


@BOUNDED
@given(YAML_TEXT)
def test_any_yaml_text(text: str) -> None:
    document = read(text, {"a": "1"})
    assert document.tree is not UNREAD or document.faults
    survives(text.encode(), {}, {"backends": ["http://a"]})


@BOUNDED
@given(st.dictionaries(KEYS | st.text(max_size=4), TREES, max_size=4))
def test_any_tree_in_a_file(tree: dict[str, object]) -> None:
    text = yaml.safe_dump(FLEET | tree, allow_unicode=False)
    survives(text.encode(errors="replace"), {"X": "1"}, {})


@BOUNDED
@given(st.dictionaries(KEYS | st.text(max_size=4), TREES, max_size=3))
def test_any_tree_as_flags(flags: dict[str, object]) -> None:
    survives(None, {}, {"backends": ["http://a"]} | flags)


@BOUNDED
@given(
    st.dictionaries(
        st.lists(KEYS | st.sampled_from(["0", "1", ""]), max_size=4).map(
            lambda steps: "PENSTOCK_" + "__".join(steps).upper()
        ),
        YAML_TEXT | SCALARS.map(str),
        max_size=4,
    )
)
def test_any_environment(environ: dict[str, str]) -> None:
    survives(None, environ, {"backends": ["http://a"]})
