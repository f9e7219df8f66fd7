"""A kernel that refuses io_setup(), as sandboxes do: a seccomp filter of this process and its later threads.

There is no way back: for processes of their own.  NUMBERS says for which processors this is written.
"""

import ctypes
import errno
import os
import platform
import struct

NUMBERS = {"x86_64": (0xC000003E, 206), "aarch64": (0xC00000B7, 0)}  # AUDIT_ARCH_*, number of io_setup
REFUSED_WITH = errno.EPERM
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF: a word of seccomp_data, a jump, the verdict
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCH_AT = 0, 4


def refuse_io_setup() -> None:
    """From now on, in this thread and all that it begins.  Raises OSError: the kernel has no such filters."""
    arch, number = NUMBERS[platform.machine()]
    steps = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 0, 3, arch),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO | REFUSED_WITH),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVS, 1), (_SET_SECCOMP, _FILTER, ctypes.addressof(program))):
        filled = [*arguments, 0, 0, 0, 0][:5]
        if libc.prctl(*(ctypes.c_ulong(it) for it in filled)) != 0:
            found = ctypes.get_errno()
            raise OSError(found, os.strerror(found), "seccomp")
