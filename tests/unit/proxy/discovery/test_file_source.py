"""Files that list backends: what is read, and what is said of those that cannot be."""

from pathlib import Path

import pytest

from penstock.proxy.discovery.file_source import FILE_BYTES_MAX, read_list
from penstock.proxy.discovery.found import Allowed, Entries, Unusable

ANY = Entries(Allowed([]))


def test_yaml_and_json_are_read(tmp_path: Path) -> None:
    path = tmp_path / "backends.yaml"
    path.write_text("- http://10.0.0.1:8000\n- {name: b, url: 'http://10.0.0.2:8000'}\n")
    assert [each.name for each in read_list(path, ANY).backends] == ["10.0.0.1-8000", "b"]
    path.write_text('[{"targets": ["10.0.0.3:8000"]}]')
    assert [each.name for each in read_list(path, ANY).backends] == ["10.0.0.3-8000"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"- url: 'http://10.0.0.1", "line 1: not valid YAML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"", "must be a list of backends"),
        (b"{pools: []}", "must be a list of backends"),
        (b"- ${KEY}\n", "line 1: environment variable KEY"),
        (b" " * (FILE_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "backends.yaml"
    path.write_bytes(content)
    with pytest.raises(Unusable, match=why):
        read_list(path, ANY)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"gone\.yaml cannot be read: No such file"):
        read_list(tmp_path / "gone.yaml", ANY)
    with pytest.raises(Unusable, match="cannot be read"):
        read_list(tmp_path, ANY)
