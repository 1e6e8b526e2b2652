"""Settings come from the environment; what is secret only from where nobody else can read it."""

from pathlib import Path

import pytest

from jobs.errors import BadSetting
from orchestrator.settings import from_environment

URL = "postgresql://halo:s3cret@db/halo"


@pytest.fixture
def url_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that only its owner may read, and that is named in the environment."""
    file = tmp_path / "database-url"
    file.write_text(f"{URL}\n")
    file.chmod(0o600)
    monkeypatch.delenv("HALOCTL_DATABASE_URL", raising=False)
    monkeypatch.setenv("HALOCTL_DATABASE_URL_FILE", str(file))
    return file


def refusal() -> str:
    with pytest.raises(BadSetting, match="HALOCTL_DATABASE_URL_FILE") as caught:
        from_environment()
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_databases_url_is_read_from_a_file_of_its_owners_own(url_file: Path, mode: int) -> None:
    url_file.chmod(mode)
    assert from_environment().database_url == URL


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_file_that_others_may_use_is_refused_with_what_to_do(url_file: Path, mode: int) -> None:
    url_file.chmod(mode)
    assert f"chmod 600 {url_file}" in refusal()


def test_a_file_that_is_empty_or_missing_says_so(url_file: Path) -> None:
    url_file.write_text("\n")
    assert f"{url_file} is empty" in refusal()
    url_file.unlink()
    assert f"{url_file} can't be read: No such file" in refusal()


def test_two_places_for_one_url_are_one_too_many(url_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_DATABASE_URL", "sqlite:////tmp/x.db")
    assert "unset one of the two" in refusal()
