"""`millrace top` on terminals that are not read, that go away, and that send what would kill it: `top_terminal.py MILLRACE PAGE` fails if one is not given back.

A terminal is the other end of a pty: nobody but this program reads it, so it is known how full it is.
"""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

# Longer than anything here takes on a busy machine.
LIMIT = 60
LEAVE = b"\x1b[?25h\x1b[?1049l"


def until(what, is_so):
    end = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Terminal:
    def __init__(self):
        self.near, self.far = pty.openpty()
        self.resize(24, 80)
        self.text = b""
        self.before = termios.tcgetattr(self.far)
        self.top = subprocess.Popen(
            [sys.argv[1], "top", "--server", sys.argv[2]],
            stdin=self.far, stdout=self.far, stderr=self.far, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        until("top draws", lambda: b"engine 0" in self.read())
        assert self.modes() & (termios.ICANON | termios.ECHO) == 0, "keys come one by one"

    def resize(self, rows, columns):
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.near], [], [], 0)[0]:
            self.text += os.read(self.near, 65536)
        return self.text

    def modes(self):
        return termios.tcgetattr(self.far)[3]

    def is_full(self):
        """Whether somebody waits in a write to it, or there is no room for one."""
        poll = select.poll()
        poll.register(self.far, select.POLLOUT)
        return not poll.poll(0)

    def fill(self):
        """Has top draw, and does not read it, until it waits."""
        sizes = [(400, 400), (401, 401)]
        full = 0
        end = time.monotonic() + LIMIT
        while full < 10:
            assert time.monotonic() < end, "the terminal does not fill"
            self.resize(*sizes[int(time.monotonic() * 5) % 2])
            time.sleep(0.05)
            full = full + 1 if self.is_full() else 0

    def ended(self):
        until("top ends", lambda: self.top.poll() is not None)
        return self.top.returncode

    def is_back(self):
        assert self.modes() == self.before[3], "the terminal's modes"
        assert termios.tcgetattr(self.far)[6] == self.before[6], "the terminal's keys"


def a_second_signal_ends_it_where_it_waits_for_the_terminal():
    terminal = Terminal()
    terminal.fill()

    def interrupted():
        # By kill: Ctrl-C on the terminal would also throw away what was not read of it.
        terminal.top.send_signal(signal.SIGINT)
        return terminal.top.poll() is not None

    until("a second signal ends it", interrupted)
    assert terminal.ended() == 130, terminal.ended()
    terminal.is_back()


def each_end_gives_the_terminal_back():
    def send(number):
        return lambda terminal: terminal.top.send_signal(number)

    def press(keys):
        return lambda terminal: os.write(terminal.near, keys)

    for what, end, codes in [
        ("SIGHUP", send(signal.SIGHUP), [0]),
        ("SIGTERM", send(signal.SIGTERM), [0]),
        ("Ctrl-C twice", press(b"\x03\x03"), [0, 130]),
        ("Ctrl-\\, which is no key here, then q", press(b"\x1cq"), [0]),
    ]:
        terminal = Terminal()
        end(terminal)
        assert terminal.ended() in codes, (what, terminal.ended())
        terminal.is_back()
        assert LEAVE in terminal.read(), what


def it_ends_with_its_terminal():
    for is_full in [False, True]:
        terminal = Terminal()
        if is_full:
            terminal.fill()
        os.close(terminal.far)
        os.close(terminal.near)
        assert terminal.ended() in [0, 1], (is_full, terminal.ended())


a_second_signal_ends_it_where_it_waits_for_the_terminal()
each_end_gives_the_terminal_back()
it_ends_with_its_terminal()
