"""README stays short, its configuration loads, and its figures stand in bench/RESULTS.md."""

import re
from pathlib import Path

from penstock.conf.load import load

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()


def test_the_readmes_configuration_is_short_and_has_two_backends(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert block.count("\n") <= 10
    path = tmp_path / "penstock.yaml"
    path.write_text(block)
    settings = load(path, {}, {}).settings
    assert [backend.name for backend in settings.pools[0].backends] == ["gpu-0", "gpu-1"]


def test_the_readme_stays_short() -> None:
    assert README.count("\n") <= 150


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)?", text)


def test_the_readmes_figures_are_results() -> None:
    """All of a row stand in one row of a result's table, or each in a row of its peer."""
    table = README[README.index("| | penstock | nginx |") :].partition("\n\n")[0]
    head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    results = [(line, set(numbers(line))) for line in RESULTS.splitlines() if line[:1] == "|"]
    assert len(rows) >= 5
    for _, *cells in rows:
        figures = [figure for cell in cells for figure in numbers(cell)]
        assert len(figures) == len(head)
        if not any(set(figures) <= held for _, held in results):
            for peer, figure in zip(head, figures, strict=True):
                assert any(
                    line.startswith(f"| {peer} ") and figure in held for line, held in results
                ), (peer, figure)
