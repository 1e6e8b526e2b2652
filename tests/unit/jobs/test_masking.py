"""Credentials in front of hosts are masked, whatever surrounds them, and nothing else is."""

import pytest

from jobs.masking import has_userinfo, mask_userinfo, masked

MASKED = {
    "user:word@host:3128": "***@host:3128",
    "http://user:word@host:3128/x": "http://***@host:3128/x",
    "https://token@github.com/org": "https://***@github.com/org",
    "https://user:wo@rd@host/x": "https://***@host/x",
    "--proxy=user:word@host": "--proxy=***@host",
    "https_proxy=user:word@host:1 -x": "https_proxy=***@host:1 -x",
    "a, user:word@host": "a, ***@host",
    "'user:word@host'": "'***@host'",
    "postgresql+psycopg://halo:word@db/halo": "postgresql+psycopg://***@db/halo",
    "http://a:b@c http://d:e@f": "http://***@c http://***@f",
}

KEPT = (
    "http://proxy:3128",
    "git@github.com:org/repo",
    "/opt/python@3.11/bin:/usr/bin",
    "git+https://github.com/org/repo@main",
    "--input=1x4xi64=@tokens.npy",
    "--parameters=model=weights.irpa",
    "hip://0",
    "12:30",
    "",
)


@pytest.mark.parametrize(("text", "expected"), MASKED.items())
def test_what_stands_in_front_of_a_host_is_masked(text: str, expected: str) -> None:
    assert has_userinfo(text)
    assert mask_userinfo(text) == expected
    assert mask_userinfo(expected) == expected


@pytest.mark.parametrize("text", KEPT)
def test_what_holds_no_credentials_stays(text: str) -> None:
    assert not has_userinfo(text)
    assert mask_userinfo(text) == text


def test_json_values_are_masked_at_any_depth() -> None:
    value = [{"argv": ("curl", "http://u:p@h/"), "env": {"P": "u:p@h"}, "n": 1}]
    assert masked(value) == [{"argv": ["curl", "http://***@h/"], "env": {"P": "***@h"}, "n": 1}]
