"""What an environment sees besides its own packages: what haloctl is installed in, or its stage programs alone."""

import site
import sys
from collections.abc import Iterator
from pathlib import Path

import jobs
import workers

PTH = "zz_haloctl.pth"  #: the last of its folder
LINKS = "haloctl"  #: a folder of an environment
PROGRAMS = (workers, jobs)  #: the packages that stage programs are in, and import


def connect(environment: Path, *, is_over: bool) -> None:
    """Let an environment's interpreter find the packages below it, after its own, or only the stage programs."""
    if is_over:
        # .pth files of those folders count too: what is installed in place, a torch from elsewhere
        text = "; ".join(["import site", *(f"site.addsitedir({found!r})" for found in site_folders())]) + "\n"
    else:
        links = environment / LINKS
        links.mkdir()
        for package in PROGRAMS:
            folder = Path(str(package.__file__)).absolute().parent
            (links / folder.name).symlink_to(folder)
        text = f"{links}\n"
    (own_packages(environment) / PTH).write_text(text)


def site_folders() -> Iterator[str]:
    """The folders that this interpreter has its packages in, the first one first."""
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    yield from site.getsitepackages()


def own_packages(environment: Path) -> Path:
    """The folder of an environment's own packages."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def place() -> str:
    """What tells haloctls apart that share a data folder: their interpreter, and where their programs lie."""
    return "\0".join([sys.prefix, *(str(Path(str(package.__file__)).absolute().parent) for package in PROGRAMS)])
