"""What is written is read again as what was meant, whatever it holds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.conf.document import read
from penstock.proxy.commands.imports.yaml_text import Part, Variable, text_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = (
    TEXTS | st.booleans() | st.integers() | st.sampled_from(["on", "null", "1e3", "${X}", "*a"])
)

pytestmark = pytest.mark.once


@given(value=SCALARS | st.lists(SCALARS, max_size=3), remark=TEXTS)
def test_values_come_back(value: Any, remark: str) -> None:
    inner = Part(b=value)
    inner.remark(remark)
    inner.put(c=[Part(d=value), Part(e=[Part(f=value)])])
    told = read(text_of(Part(a=inner, g=value)), {})
    assert not told.faults
    assert told.tree == {"a": {"b": value, "c": [{"d": value}, {"e": [{"f": value}]}]}, "g": value}


def test_a_variable_is_a_reference() -> None:
    written = text_of(Part(a=[Part(key=Variable("KEY"))]))
    assert written == 'a:\n  - {key: "${KEY}"}\n'
    assert read(written, {"KEY": "x"}).tree == {"a": [{"key": "x"}]}


def test_remarks_stand_where_they_belong() -> None:
    first, second, lost = Part(name="a"), Part(name="b"), Part()
    first.remark("Of a.")
    first.put(url="u")
    lost.lose(7, "the server c", "It is gone")
    whole = Part()
    whole.remark("Of all.")
    whole.put(pools=[first, lost, second], routes=[lost])
    whole.remark("Of nothing.")
    written = """\
# Of all.
pools:
  - name: a
    # Of a.
    url: u
  # Not carried over (line 7): the server c. It is gone.
  - {name: b}

# Not carried over (line 7): the server c. It is gone.

# Of nothing.
"""
    assert text_of(whole) == written


@pytest.mark.parametrize("text", ["a\npools: []", "a\x85b: 1", "a\u2028b: 1", "x" * 5000])
def test_no_remark_ends_its_comment(text: str) -> None:
    whole = Part()
    whole.remark(text)
    whole.put(a=1)
    assert read(text_of(whole)).tree == {"a": 1}
    assert len(text_of(whole)) < 600
