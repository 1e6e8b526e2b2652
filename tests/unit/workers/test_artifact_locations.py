"""Where an artifact store may be said to be."""

from pathlib import Path

import pytest

from jobs.errors import BadSetting
from orchestrator.artifacts.artifact_names import is_file_name
from workers.artifacts.locations import parse
from workers.artifacts.parts import ByteRange, Manifest, byte_ranges, parse_manifest, ranges
from workers.environment import is_passed


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/shared/haloctl", Path("/shared/haloctl")),
        ("file:///shared/haloctl", Path("/shared/haloctl")),
        ("here", Path.cwd() / "here"),
        ("s3://bucket/haloctl/", "s3://bucket/haloctl"),
        ("az://container", "az://container"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
    ],
)
def test_a_store_is_a_folder_or_a_url(text: str, location: Path | str) -> None:
    assert parse(text) == location


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:hush@bucket/x",
        "az://container/x?sv=2024&sig=hush",
        "s3://bucket/x?aws_secret_access_key=hush",
        "s3://bucket/x#hush",
        "simplecache::s3://bucket/hush",
        "s3://",
        "://hush",
    ],
)
def test_a_url_with_a_secret_or_settings_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadSetting, match="HALOCTL_ARTIFACTS: ") as raised:
        parse(text)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_PROFILE", "FSSPEC_S3_SECRET"),
        *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_what_a_store_is_reached_with_is_not_passed_to_stages(name: str) -> None:
    assert not is_passed(name, "hush")


def test_a_manifest_comes_back_as_it_was_and_nothing_else_is_one() -> None:
    manifest = Manifest(10, 4, ("a", "b", "c"))
    assert parse_manifest(manifest.to_json()) == manifest
    assert [manifest.length(number) for number in range(3)] == [4, 4, 2]
    for text in (b"", b"[]", b"{}", b"no", manifest.to_json().replace(b'"c"', b""), b'{"format": 2}'):
        with pytest.raises(ValueError):
            parse_manifest(text)


def test_a_download_asks_only_for_what_is_not_here_yet() -> None:
    assert list(ranges(10, 4)) == [(0, 4), (4, 8), (8, 10)]
    assert list(ranges(8, 4)) == [(0, 4), (4, 8)]
    objects = [("a", 4), ("b", 4), ("c", 2)]
    assert list(byte_ranges(iter(objects), 0, 3)) == [
        *(ByteRange("a", 0, 3), ByteRange("a", 3, 4), ByteRange("b", 0, 3), ByteRange("b", 3, 4), ByteRange("c", 0, 2)),
    ]
    assert list(byte_ranges(iter(objects), 5, 3)) == [ByteRange("b", 1, 3), ByteRange("b", 3, 4), ByteRange("c", 0, 2)]
    assert list(byte_ranges(iter(objects), 10, 3)) == []


@pytest.mark.parametrize(
    ("name", "is_file"),
    [("0123ab", True), ("f" * 64, True), ("1a2b-01/model.vmfb", True), ("tiny-llama-FP16-TP1", False), ("face", False)],
)
def test_what_a_name_means_is_seen_by_its_form(name: str, is_file: bool) -> None:
    assert is_file_name(name) is is_file
