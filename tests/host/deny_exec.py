"""Run Python where the system refuses to make memory executable: `deny_exec.py SCRIPT ARGUMENT...`.

Shared libraries still load: what is refused is to map anonymous or shared memory for execution, and
to make mapped memory executable. As SELinux's execmem, or systemd's MemoryDenyWriteExecute.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import runpy
import struct
import sys
from typing import Any

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
PROT_EXEC, MAP_SHARED, MAP_ANONYMOUS = 4, 1, 0x20
# mmap, mprotect, pkey_mprotect
NUMBERS = {"x86_64": (9, 10, 329), "aarch64": (222, 226, 288)}

# Where a filter's data has the call's number, and the low halves of two of its arguments.
NUMBER, PROTECTION, FLAGS = 0, 32, 40
LOAD, IF_EQUAL, IF_BITS, RETURN = 0x20, 0x15, 0x45, 0x06  # classic BPF


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _prctl(*arguments: Any) -> None:
    """Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    words = [a if isinstance(a, ctypes._Pointer) else ctypes.c_ulong(a) for a in arguments]
    words += [ctypes.c_ulong(0)] * (5 - len(words))
    if libc.prctl(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {errno.errorcode.get(number, number)}")


def _filter(*rows: tuple[int, int, int, int]) -> None:
    """Each row: operation, jump if true, jump if false (in rows from the next), operand."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    program = _Program(len(rows), ctypes.addressof(code))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.pointer(program))


def deny() -> None:
    """From now on, for this process and its children. Raises: OSError."""
    mmap, mprotect, pkey_mprotect = NUMBERS[platform.machine()]
    _filter(
        (LOAD, 0, 0, NUMBER),
        (IF_EQUAL, 3, 0, mmap),
        (IF_EQUAL, 4, 0, mprotect),
        (IF_EQUAL, 3, 0, pkey_mprotect),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
        (LOAD, 0, 0, FLAGS),
        (IF_BITS, 0, 3, MAP_SHARED | MAP_ANONYMOUS),
        (LOAD, 0, 0, PROTECTION),
        (IF_BITS, 0, 1, PROT_EXEC),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.EACCES),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    )


def deny_memory_files() -> None:
    """Refuse `memfd_create`, as kernels do that lack it. Raises: OSError."""
    number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
    _filter(
        (LOAD, 0, 0, NUMBER),
        (IF_EQUAL, 0, 1, number),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.ENOSYS),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    )


def deny_gain() -> None:
    """Refuse memory that is writable and executable, or becomes executable. Raises: OSError."""
    _prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN)


def main() -> None:
    """Run the script, or the module behind -m, with what follows as its arguments."""
    deny()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
