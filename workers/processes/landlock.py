"""Landlock, the kernel's sandbox that a process puts itself into: what it and its children may access from then on.

A process below it can also not trace, and so not read the environment of, any process outside (landlock(7)), nor signal
one where the kernel knows that. It costs some microseconds for each path.

Only little of the standard library is imported, since supervisors fork for each command.
"""

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False  # typing's, without its import
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# Numbers that are the same on all architectures, and bits of include/uapi/linux/landlock.h.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  #: REMOVE_DIR to MAKE_SYM
REFER = 1 << 13
TRUNCATE = 1 << 14
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1 << 0, 1 << 1

#: ABI 1 refuses to move any file to another folder, which compilers' caches do.
MIN_ABI = 2
TRUNCATE_ABI = 3
SCOPE_ABI = 6

SYSCALL = ctypes.CDLL(None, use_errno=True).syscall
SYSCALL.restype = ctypes.c_long


class RulesetAttributes(ctypes.Structure):
    """struct landlock_ruleset_attr; kernels that know only its beginning take it while the rest is 0."""

    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    """struct landlock_path_beneath_attr."""

    _pack_ = 1
    _layout_ = "ms"  # what _pack_ means; Python 3.14 asks for it
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Return the version of Landlock that this kernel has; 0 where it has none or may not be used."""
    version: int = SYSCALL(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(CREATE_RULESET_VERSION))
    return max(version, 0)


ABI = abi()
IS_USABLE = ABI >= MIN_ABI
FILE_RIGHTS = WRITE_FILE | (TRUNCATE if ABI >= TRUNCATE_ABI else 0)
RIGHTS = FILE_RIGHTS | REMOVE_AND_MAKE | REFER
SCOPED = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if ABI >= SCOPE_ABI else 0


def restrict(writable: Iterable[str], secret: Collection[str]) -> None:
    """Let this process and its children write only to some files and below some folders, and read none that is secret.

    Paths are absolute; missing ones are left out. Folders are still listed. `no_new_privs` has to be set. Does nothing
    where `IS_USABLE` is False; raises OSError.
    """
    if not IS_USABLE:
        return
    read = READ_FILE if secret else 0
    attributes = RulesetAttributes(RIGHTS | read, 0, SCOPED)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _checked(SYSCALL(CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0)))
    for path in writable:
        _allow(ruleset, path, RIGHTS | read)
    if secret:
        for path in around(secret):
            _allow(ruleset, path, READ_FILE, os.O_NOFOLLOW)
    _checked(SYSCALL(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    os.close(ruleset)


def around(secret: Collection[str]) -> Iterator[str]:
    """Yield all but some paths: what lies beside them, and beside the folders above them.

    Rules only add rights, so what is made beside them later has none. A folder that can't be listed is one whole.
    """
    paths = {os.path.realpath(path) for path in secret}
    above = {path[:end] for path in paths for end in range(1, len(path)) if path[end] == "/"}
    folders = ["/"]
    for folder in folders:
        try:
            entries = os.listdir(folder)
        except OSError:
            yield folder
            continue
        for name in entries:
            path = os.path.join(folder, name)
            if path in above:
                folders.append(path)
            elif path not in paths:
                yield path


def _allow(ruleset: int, path: str, rights: int, flags: int = 0) -> None:
    """Add a rule for a path, with those of the rights that it can have; a link that is not followed has none."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    except OSError:
        return
    mode = os.fstat(fd).st_mode
    if not stat.S_ISLNK(mode):
        rule = PathBeneath(rights if stat.S_ISDIR(mode) else rights & (FILE_RIGHTS | READ_FILE), fd)
        kind, none = ctypes.c_int(RULE_PATH_BENEATH), ctypes.c_uint32(0)
        _checked(SYSCALL(ADD_RULE, ctypes.c_int(ruleset), kind, ctypes.byref(rule), none))
    os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return int(result)
