"""`haloctl web` as its users run it: a process beside no head, or one that is refused."""

import json
import signal
import ssl
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.haloctl import Haloctl, Running, until
from tests.acceptance.job_specs import ONE_EXPORT


def address_of(web: Running) -> str:
    """The address that a running server prints."""
    until(lambda: "serving at " in web.out or web.process.poll() is not None, "the server answers")
    return str(web.out.rpartition("serving at ")[2].strip())


def ask(haloctl: Haloctl, url: str, body: str | None = None) -> dict[str, object]:
    token = (haloctl.data / "web-token").read_text().strip()
    request = Request(url, body.encode() if body else None, {"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=120) as answer:
        value = json.load(answer)
    assert isinstance(value, dict)
    return value


def test_a_job_that_was_sent_to_the_server_is_one_as_any_other(fresh: Haloctl) -> None:
    web = fresh.start("web", "--port", "0")
    url = f"{address_of(web)}/api/v1"
    planned = ask(fresh, f"{url}/jobs?dry_run=true", json.dumps(ONE_EXPORT))
    assert fresh.json("list") == []
    sent = ask(fresh, f"{url}/jobs", json.dumps(ONE_EXPORT))
    assert len(planned["tasks"]) == sent["tasks"] == 1  # type: ignore[arg-type]
    job = str(sent["job"])
    fresh.answer("wait", job)
    assert ask(fresh, f"{url}/jobs/{job}") == fresh.json("show", job)
    assert fresh.json("show", job)["state"] == "succeeded"
    assert str((fresh.data / "web-token").read_text().strip()) not in web.out + web.err
    web.signal(signal.SIGTERM)
    assert web.end().code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--host", "0.0.0.0"), "others reach 0.0.0.0"),
        (("--host", "example"), "is no address"),
        (("--tls-key", "key.pem"), "give both or none"),
        (("--tls-certificate", "cert.pem", "--tls-key", "cert.pem"), "they can't be used"),
    ],
)
def test_a_server_that_would_not_be_safe_is_refused(fresh: Haloctl, arguments: tuple[str, ...], says: str) -> None:
    (fresh.folder / "cert.pem").write_text("none")
    done = fresh.run("web", "--port", "0", *arguments)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_traffic_is_encrypted_with_a_certificate(fresh: Haloctl) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*make, *names, *files], cwd=fresh.folder, check=True, capture_output=True)
    web = fresh.start("web", "--port", "0", "--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    url = address_of(web)
    assert url.startswith("https://")
    assert health(url, fresh.folder / "cert.pem") == {"status": "ok"}


def health(url: str, certificate: Path) -> object:
    context = ssl.create_default_context(cafile=str(certificate))
    with urlopen(f"{url}/api/v1/health", timeout=30, context=context) as answer:
        return json.load(answer)
