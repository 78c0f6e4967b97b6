"""Stops one thread of another process as a debugger does, until standard input ends.

Usage: stop_thread.py TID. Prints "stopped" when the thread stands still; the other threads of its process go on.
"""

import ctypes
import os
import sys

PTRACE_ATTACH, PTRACE_DETACH, WALL = 16, 17, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
thread = int(sys.argv[1])
if libc.ptrace(PTRACE_ATTACH, thread, None, None) != 0:
    sys.exit(f"cannot attach: {os.strerror(ctypes.get_errno())}")
os.waitpid(thread, WALL)
print("stopped", flush=True)
sys.stdin.read()
libc.ptrace(PTRACE_DETACH, thread, None, None)
