"""Servers that know nothing of engines, with workers in the ways that programs have them. Each connection gets the number of the process that has
accepted it, and an echo.

  workers.py CASE ADDRESS PORT [COUNT]
"""

import ctypes
import errno
import os
import select
import signal
import socket
import sys
import threading

CASE, ADDRESS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 2


def listener(shares=False, backlog=64):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
    s.bind((ADDRESS, PORT))
    s.listen(backlog)
    return s


def serve(s):
    try:
        s.setblocking(True)
        s.sendall(f"{os.getpid()}\n".encode())
        while data := s.recv(65536):
            s.sendall(data)
    except OSError:
        # Its peer has gone.
        pass
    s.close()


def accepts(s):
    while True:
        serve(s.accept()[0])


def waits(s, wait):
    s.setblocking(False)
    while True:
        wait()
        try:
            connection, _ = s.accept()
        except BlockingIOError:
            continue
        serve(connection)


def selects(s):
    waits(s, lambda: select.select([s], [], []))


def polls(s):
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    waits(s, ep.poll)


def one_set(s):
    """The set was made before the fork."""
    waits(s, SET.poll)


def in_threads(s):
    threads = [threading.Thread(target=accepts, args=(s,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WORK = {f.__name__: f for f in (accepts, selects, polls, one_set, in_threads)}


def forks(work):
    """The parent listens, and starts a worker for each that ends."""
    global SET
    s = listener()
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    SET = select.epoll()
    SET.register(s, select.EPOLLIN)
    if CASE == "one_set":
        # From now on it waits for connections, as far as anyone can see; those that it gets go to others in time.
        assert SET.poll(0) == []
    print(os.getpid(), flush=True)

    def start():
        if os.fork() == 0:
            try:
                assert s.getsockname() == (ADDRESS, PORT)
                assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
                work(s)
            except OSError as error:
                print(errno.errorcode[error.errno], file=sys.stderr, flush=True)
                signal.pause()
            finally:
                os._exit(1)

    for _ in range(COUNT):
        start()
    while True:
        os.wait()
        start()


if CASE in WORK:
    forks(WORK[CASE])
elif CASE == "shares":
    s = listener(shares=True)
    print(os.getpid(), flush=True)
    accepts(s)
elif CASE == "shares_and_never_accepts":
    s = listener(shares=True, backlog=4)
    print(os.getpid(), flush=True)
    signal.pause()
elif CASE == "many":
    # As many as there may be; one more is an error that leaves the others.
    all_of_them = []
    try:
        while len(all_of_them) < 1000:
            all_of_them.append(listener(shares=True))
    except OSError as error:
        print(len(all_of_them), errno.errorcode[error.errno], flush=True)
    signal.pause()
elif CASE in ("refused", "refused_shared"):
    if COUNT != 2:
        os.setgid(COUNT)
        os.setuid(COUNT)
    try:
        listener(shares=CASE == "refused_shared")
    except OSError as error:
        print(errno.errorcode[error.errno])
