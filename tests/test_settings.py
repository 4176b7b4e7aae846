import re

import pytest
from kit.rows import check_rows

from kohaku_ray.cli import main
from kohaku_ray.errors import ConfigError
from kohaku_ray.settings import check_working_directory, find_secrets, shown_path


@check_rows(
    ("values", "secrets"),
    [
        ({"X-Api-Key": "sk-12345678"}, {"sk-12345678"}),
        ({"Cookie": "session=12345678"}, {"session=12345678"}),
        ({"X-Forward": "Bearer sk-12345678"}, {"Bearer sk-12345678"}),
        ({"options": [{"password": ["hunter22"]}]}, {"hunter22"}),
        ({"api_key": "EMPTY", "max_tokens": "long enough", "X-Note": "bearer"}, set()),
    ],
)
def test_keys_and_passwords_are_found_by_name_and_scheme(values, secrets):
    assert find_secrets(values) == secrets


def test_paths_are_shown_as_they_were_given_and_none_of_a_working_copy(tmp_path, monkeypatch):
    """users5.md: a sweep's page named documents in a directory that Ray had deleted."""
    copy = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0f/docs/a.pdf"
    assert shown_path(copy) == "docs/a.pdf"
    monkeypatch.chdir(tmp_path)
    assert shown_path(str(tmp_path / "docs")) == "docs"
    for path in ("/data/docs", "sample:documents", "s3://bucket/docs", "docs"):
        assert shown_path(path) == path
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert shown_path("/data/docs") == "/data/docs"


def test_in_a_ray_job_a_removed_working_directory_is_answered_by_submitting_again(tmp_path, monkeypatch, capsys):
    """Of two nodes with one --temp-dir the second removed a job's files while it started: a traceback."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")  # as Ray sets it
    removed = r"copy of the working directory was removed, by a second node .*: submit the job again"
    with pytest.raises(ConfigError, match=removed):
        check_working_directory()
    assert main(["score", "runs/mine", "--truth", "gold.csv"]) == 2
    assert re.search(removed, capsys.readouterr().err), "it is said, not which file it had then"
