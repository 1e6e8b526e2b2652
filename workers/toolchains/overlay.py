"""The packages that an environment imports besides its own: haloctl's site packages, or its stage programs alone."""

import site
import sys
from collections.abc import Iterator
from pathlib import Path

import jobs
import workers

PTH = "zz_haloctl.pth"  #: the last of its folder
LINKS = "haloctl"  #: a folder of an environment
PROGRAM_PACKAGES = (workers, jobs)  #: those that contain stage programs, and what these import


def link_packages(environment: Path, *, is_over: bool) -> None:
    """Let an environment import haloctl's site packages, after its own, or only the stage programs."""
    if is_over:
        # .pth files of those folders count too: what is installed in place, a torch from elsewhere
        text = "; ".join(["import site", *(f"site.addsitedir({folder!r})" for folder in site_folders())]) + "\n"
    else:
        links = environment / LINKS
        links.mkdir()
        for package in PROGRAM_PACKAGES:
            folder = Path(str(package.__file__)).absolute().parent
            (links / folder.name).symlink_to(folder)
        text = f"{links}\n"
    (site_packages(environment) / PTH).write_text(text)


def site_folders() -> Iterator[str]:
    """Yield the folders of this interpreter's packages, in the order of sys.path."""
    if site.ENABLE_USER_SITE:
        yield site.getusersitepackages()
    yield from site.getsitepackages()


def site_packages(environment: Path) -> Path:
    """Return the folder of an environment's own packages."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def installation_id() -> str:
    """Return what tells apart installations that share a data folder: their interpreter and their programs' folders."""
    folders = (str(Path(str(package.__file__)).absolute().parent) for package in PROGRAM_PACKAGES)
    return "\0".join([sys.prefix, *folders])
