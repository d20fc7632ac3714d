"""Links between the documents lead somewhere: to a file of the repository, and to a heading there.

`make docs` finds broken links between the pages too; this also looks at the documents outside
`docs/`, and reads the links as GitHub does. Links to other sites are not followed.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in (
        ROOT,
        ROOT / "bench",
        ROOT / "bench/history",
        ROOT / "docs",
        ROOT / "docs/decisions",
        ROOT / ".github",
    )
    for path in sorted(folder.glob("*.md"))
}
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def links(text: str) -> list[str]:
    return [target or source for target, source in _LINK.findall(_CODE.sub("", text))]


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub("```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    for link in links(DOCUMENTS[name]):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text()), link


def test_links_are_found() -> None:
    assert "docs/start.md" in links(DOCUMENTS["README.md"])
    assert "docs/pictures/fleet-dark.svg" in links(DOCUMENTS["README.md"])
    assert "operations.md#the-admin-port" in links(DOCUMENTS["docs/http.md"])
