"""Effect. Lets the host monitor of a worker read its stacks where the kernel would not."""

import ctypes

_PR_SET_PTRACER = 0x59616D61  # prctl(2)
_ANY = ctypes.c_ulong(-1)


def let_be_traced() -> bool:
    """Have any process of the same user trace this one; False where the kernel knows of no such leave (it has no Yama).

    With kernel.yama.ptrace_scope=1, as most distributions have it, only a parent may trace. The host monitor is none,
    and in a pod it has no capability for it. From 2 on, no process can allow it.
    """
    none = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None)
    return bool(libc.prctl(_PR_SET_PTRACER, _ANY, none, none, none) == 0)
