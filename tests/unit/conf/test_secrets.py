"""Secrets come from files, references or the environment, and no message shows one."""

import os

import pytest

from penstock.conf.issues import ConfigError
from penstock.proxy.reload.certificates import certificates_of
from tests.unit.conf.folder import FLEET, Folder, text_of


def test_secrets_come_from_files_beside_the_configuration(folder: Folder) -> None:
    (folder.path / "key").write_text("sk-1\n")
    (folder.path / "token").write_bytes(b"t-1\r\n")
    text = FLEET.replace("chat", "chat\n    api_key_file: key") + "admin: {token_file: token}\n"
    loaded = folder.load(text)
    pool, admin = loaded.settings.pools[0], loaded.settings.admin
    assert text_of(pool.api_key) == "sk-1"
    assert text_of(admin.token) == "t-1"
    assert (pool.api_key_file, loaded.origins["pools[0].api_key"]) == ("key", "file:3")


def test_secret_files_outside_the_file_start_at_the_working_directory(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder.path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "token").write_text("t-1")
    monkeypatch.chdir(elsewhere)
    admin = folder.load(FLEET, {"PENSTOCK_ADMIN__TOKEN_FILE": "token"}).settings.admin
    assert admin.token is not None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, '"key" cannot be read: No such file or directory'),
        (b"", '"key" is empty'),
        (b"\n", '"key" is empty'),
        (b"sk-1\nsk-2\n", '"key" must be one line of visible ASCII without spaces'),
        (b"sk-1\xff", '"key" must be one line of visible ASCII without spaces'),
        (b"sk-1" * 2000, '"key" is longer than 4096 characters'),
    ],
)
def test_errors_of_a_secret_file_name_key_and_file(
    folder: Folder, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (folder.path / "key").write_bytes(content)
    issues = folder.issues(FLEET.replace("chat", "chat\n    api_key_file: key"))
    assert issues == [f"conf.yaml:3: pools[0].api_key_file: {expected}"]
    assert "sk-" not in issues[0]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("''", 'must not be empty, got ""'),
        ("5", "must be text, got 5; put it in quotes"),
        (".", '"." cannot be read: Is a directory'),
    ],
)
def test_a_secret_file_has_the_name_of_a_file(folder: Folder, name: str, problem: str) -> None:
    (issue,) = folder.issues(FLEET + f"admin: {{token_file: {name}}}\n")
    assert issue == f"conf.yaml:5: admin.token_file: {problem}"


def test_a_secret_and_its_file_exclude_each_other(folder: Folder) -> None:
    text = FLEET + "admin: {token_file: f, token: hunter2}\n"
    assert folder.issues(text) == [
        "conf.yaml:5: admin.token_file: give either token or token_file, not both"
    ]


def test_secrets_may_stand_in_the_file_as_references(folder: Folder) -> None:
    text = FLEET.replace("chat", "chat\n    api_key: ${KEY}")
    pool = folder.load(text, {"KEY": "sk-1"}).settings.pools[0]
    assert text_of(pool.api_key) == "sk-1"


@pytest.mark.parametrize(
    "admin",
    ["{token: 271828}", "{token: [hunter2]}", "{token: 'hunter2 '}", "hunter2", "[hunter2]",
     "{tokne: hunter2}", "{token: {a: hunter2}}", "{token: true}", '{token: "hunter2\\n"}'],
)  # fmt: skip
def test_no_error_shows_a_secret(folder: Folder, admin: str) -> None:
    text = "\n".join(folder.issues(FLEET + f"admin: {admin}\n"))
    assert "admin" in text
    assert "hunter2" not in text
    assert "271828" not in text


@pytest.mark.parametrize("file", ["key_file", "cert_file"])
def test_a_pipe_that_nobody_writes_to_is_refused_at_once(folder: Folder, file: str) -> None:
    os.mkfifo(folder.path / "pipe")
    (folder.path / "key").write_text("k" * 20)
    if file == "cert_file":
        text = FLEET + "listen: {tls: {cert_file: pipe, key_file: key}}\n"
        with pytest.raises(ConfigError) as refused:
            certificates_of(folder.load(text), folder.file)
        told = [str(issue) for issue in refused.value.issues]
    else:
        told = folder.issues(FLEET.replace("chat", "chat\n    api_key_file: pipe"))
    assert "cannot be read: it is not a regular file" in told[0]
