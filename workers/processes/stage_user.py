"""The user that stages run as, where a site has made one for them (HALOCTL_STAGE_USER)."""

import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import BadSetting

VARIABLE = "HALOCTL_STAGE_USER"


@dataclass(frozen=True)
class StageUser:
    """A user with groups and a home folder."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that say who a process runs as."""
        return {"HOME": str(self.home), "USER": self.name, "LOGNAME": self.name}


def stage_user(environment: Mapping[str, str] = os.environ) -> StageUser | None:
    """Return the user for stages; None where they run as this process's. Raises BadSetting where that can't be done."""
    name = environment.get(VARIABLE)
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise BadSetting(VARIABLE, f"no user is called {name!r}: create it with useradd --system") from None
    if os.geteuid() != 0:
        raise BadSetting(VARIABLE, f"only root can start stages as {name}: run `haloctl node` as root, or unset it")
    if entry.pw_uid == 0:
        raise BadSetting(VARIABLE, f"{name} is root, which no stage should run as: name another user")
    groups = tuple(os.getgrouplist(name, entry.pw_gid))
    return StageUser(name, entry.pw_uid, entry.pw_gid, groups, Path(entry.pw_dir))


def expect_runnable(user: StageUser | None) -> None:
    """Raise BadSetting where stages could not start as this user, as where haloctl is installed for another one."""
    if user is None:
        return
    python = [sys.executable, "-I", "-S", "-c", ""]
    try:
        subprocess.run(
            python,
            stdin=subprocess.DEVNULL,
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            cwd="/",
            env={},
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "install haloctl where every user can read it, such as /opt"
        raise BadSetting(VARIABLE, f"{user.name} can't run {sys.executable}; {remedy}") from error


def let_pass(folder: Path) -> None:
    """Let other users pass through a folder on their way to another one, without listing it."""
    mode = folder.stat().st_mode & 0o7777
    if mode & 0o011 != 0o011:
        folder.chmod(mode | 0o011)
