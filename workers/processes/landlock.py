"""Landlock, the kernel's sandbox that a process puts itself into: what it and its children may write to from then on.

A process below it can also not trace, and so not read the environment of, any process outside (landlock(7)), nor signal
one where the kernel knows that. Reading files stays as their modes say. It costs some microseconds for each path.

Only little of the standard library is imported, since supervisors fork for each command.
"""

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False  # typing's, without its import
if TYPE_CHECKING:
    from collections.abc import Iterable

# Numbers that are the same on all architectures, and bits of include/uapi/linux/landlock.h.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
WRITE_FILE = 1 << 1
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


def restrict_writes(writable: Iterable[str]) -> None:
    """Let this process and its children write only to some files and below some folders; missing ones are left out.

    `no_new_privs` has to be set. Does nothing where `IS_USABLE` is False; raises OSError.
    """
    if not IS_USABLE:
        return
    attributes = RulesetAttributes(RIGHTS, 0, SCOPED)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _checked(SYSCALL(CREATE_RULESET, ctypes.byref(attributes), size, ctypes.c_uint32(0)))
    for path in writable:
        _allow(ruleset, path)
    _checked(SYSCALL(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)))
    os.close(ruleset)


def _allow(ruleset: int, path: str) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    rights = RIGHTS if stat.S_ISDIR(os.fstat(fd).st_mode) else FILE_RIGHTS
    rule = PathBeneath(rights, fd)
    kind, flags = ctypes.c_int(RULE_PATH_BENEATH), ctypes.c_uint32(0)
    _checked(SYSCALL(ADD_RULE, ctypes.c_int(ruleset), kind, ctypes.byref(rule), flags))
    os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return int(result)
