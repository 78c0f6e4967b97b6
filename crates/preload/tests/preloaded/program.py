"""A program that knows nothing of engines: each case uses sockets as programs do, and says what it expects of them.

  program.py CASE KERNEL_ADDRESS OWN_ADDRESS PORT

At PORT somebody echoes and half-closes behind the peer; at PORT + 1 somebody resets after one byte; at PORT + 2 somebody takes a port number as text,
connects to OWN_ADDRESS there and echoes; at PORT + 3 nobody listens.
"""

import array
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

CASE, KERNEL, OWN, PORT = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
LONG = 60


def call(port=PORT):
    s = socket.create_connection((KERNEL, port), timeout=LONG)
    s.settimeout(None)
    return s


def exactly(s, count):
    data = s.recv(count, socket.MSG_WAITALL)
    assert len(data) == count, (len(data), count)
    return data


def fails(code, function, *arguments):
    try:
        result = function(*arguments)
    except OSError as error:
        assert error.errno == code, (error, errno.errorcode[code])
        return
    raise AssertionError(f"no {errno.errorcode[code]}: {result!r}")


def epoll():
    s = socket.socket()
    s.setblocking(False)
    assert s.connect_ex((KERNEL, PORT)) == errno.EINPROGRESS
    ep = select.epoll()
    ep.register(s, select.EPOLLOUT)
    assert ep.poll(LONG) == [(s.fileno(), select.EPOLLOUT)]
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert s.connect_ex((KERNEL, PORT)) == errno.EISCONN
    fails(errno.EEXIST, ep.register, s, select.EPOLLIN)
    # A level is said again and again, an edge once.
    for edge in (0, select.EPOLLET):
        ep.modify(s, select.EPOLLIN | edge)
        assert ep.poll(0) == []
        s.send(b"0123456789")
        assert ep.poll(LONG) == [(s.fileno(), select.EPOLLIN)]
        assert s.recv(4) == b"0123"
        again = ep.poll(0.2)
        assert again == ([] if edge else [(s.fileno(), select.EPOLLIN)]), (edge, again)
        assert s.recv(100) == b"456789"
        fails(errno.EAGAIN, s.recv, 1)
        s.send(b"more")
        assert ep.poll(LONG) == [(s.fileno(), select.EPOLLIN)]
        assert s.recv(100) == b"more"
    # Once only.
    ep.modify(s, select.EPOLLIN | select.EPOLLONESHOT)
    s.send(b"one")
    assert ep.poll(LONG) == [(s.fileno(), select.EPOLLIN)]
    assert ep.poll(0.1) == []
    ep.modify(s, select.EPOLLIN)
    assert ep.poll(LONG) == [(s.fileno(), select.EPOLLIN)]
    s.recv(10)
    # Beside sockets of the kernel's.
    a, b = socket.socketpair()
    ep.register(a, select.EPOLLIN)
    b.send(b"kernel")
    assert ep.poll(LONG) == [(a.fileno(), select.EPOLLIN)]
    s.send(b"engine")
    seen = set()
    while len(seen) < 2:
        seen |= {fd for fd, _ in ep.poll(LONG)}
    assert seen == {a.fileno(), s.fileno()}
    # One place for both: neither starves.
    seen = {fd for _ in range(8) for fd, _ in ep.poll(LONG, 1)}
    assert seen == {a.fileno(), s.fileno()}
    a.recv(10)
    threading.Timer(0.1, b.send, (b"later",)).start()
    s.recv(10)
    assert ep.poll(LONG) == [(a.fileno(), select.EPOLLIN)]
    a.recv(10)
    # An edge to write again, behind a writer that was told to wait.
    ep.modify(s, select.EPOLLOUT | select.EPOLLET)
    assert ep.poll(LONG) == [(s.fileno(), select.EPOLLOUT)]
    sent = 0
    try:
        while True:
            sent += s.send(b"x" * 65536)
    except BlockingIOError:
        pass
    got = 0
    while got < sent:
        select.select([s], [], [], LONG)
        got += len(s.recv(1 << 20))
    assert ep.poll(LONG) == [(s.fileno(), select.EPOLLOUT)]
    ep.unregister(s)
    fails(errno.ENOENT, ep.unregister, s)
    s.shutdown(socket.SHUT_WR)
    ep.register(s, select.EPOLLIN | select.EPOLLRDHUP)
    wanted = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP
    while ep.poll(LONG) != [(s.fileno(), wanted)]:
        pass
    s.close()
    assert ep.poll(0.1) == []


def select_and_poll():
    s, (a, b) = call(), socket.socketpair()
    for fd_set in (select.select([s, a], [], [], 0.1), select.select([s, a], [], [s], 0)):
        assert fd_set == ([], [], [])
    s.send(b"x")
    assert select.select([s, a], [], [], LONG) == ([s], [], [])
    b.send(b"y")
    s2 = select.select([s, a], [s, a], [], LONG)
    assert s2 == ([s, a], [s, a], []), s2
    p = select.poll()
    p.register(s, select.POLLIN)
    p.register(a, select.POLLIN)
    assert sorted(p.poll(LONG * 1000)) == sorted([(s.fileno(), select.POLLIN), (a.fileno(), select.POLLIN)])
    s.recv(1), a.recv(1)
    begun = time.monotonic()
    assert p.poll(150) == []
    assert time.monotonic() - begun >= 0.15
    threading.Timer(0.1, s.send, (b"z",)).start()
    assert p.poll(LONG * 1000) == [(s.fileno(), select.POLLIN)]
    threading.Timer(0.1, b.send, (b"z",)).start()
    s.recv(1)
    assert p.poll(LONG * 1000) == [(a.fileno(), select.POLLIN)]


def refused():
    s = socket.socket()
    fails(errno.ECONNREFUSED, s.connect, (KERNEL, PORT + 3))
    # The same socket may try again.
    s.connect((KERNEL, PORT))
    s.send(b"x")
    assert s.recv(1) == b"x"
    s = socket.socket()
    s.setblocking(False)
    assert s.connect_ex((KERNEL, PORT + 3)) == errno.EINPROGRESS
    p = select.poll()
    p.register(s, select.POLLOUT)
    (_, events), = p.poll(LONG * 1000)
    assert events & select.POLLERR and events & select.POLLHUP, events
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    fails(errno.ENOTCONN, s.recv, 1)


def half_close_and_reset():
    s = call()
    data = os.urandom(300_000)
    writer = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
    writer.start()
    assert exactly(s, len(data)) == data
    assert s.recv(10) == b""
    writer.join()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    fails(errno.EPIPE, s.send, b"x")
    s = call(PORT + 1)
    s.send(b"x")
    p = select.poll()
    p.register(s, 0)
    (_, events), = p.poll(LONG * 1000)
    assert events == select.POLLERR | select.POLLHUP, events
    fails(errno.ECONNRESET, s.recv, 1)
    assert s.recv(1) == b""
    fails(errno.EPIPE, s.send, b"x")
    # The signal that stands for it comes, unless the call says not.
    signal.signal(signal.SIGPIPE, lambda *_: signals.append(1))
    signals = []
    fails(errno.EPIPE, lambda: s.send(b"x", socket.MSG_NOSIGNAL))
    assert signals == []
    fails(errno.EPIPE, s.send, b"x")
    # Python hears of a signal at its next step.
    time.sleep(0)
    assert signals == [1], signals


def calls():
    s = call()
    assert s.getpeername() == (KERNEL, PORT)
    assert s.getsockname()[0] == OWN
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0] == 1
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    fails(errno.ENOPROTOOPT, s.setsockopt, socket.IPPROTO_TCP, 31, b"tls")
    s.send(b"0123456789")
    assert s.recv(4, socket.MSG_PEEK) == b"0123"
    assert exactly(s, 10) == b"0123456789"
    fails(errno.EAGAIN, s.recv, 1, socket.MSG_DONTWAIT)
    fails(errno.EOPNOTSUPP, s.send, b"x", socket.MSG_OOB)
    # Parts, there and back.
    assert s.sendmsg([b"ab", b"", b"cde"]) == 5
    select.select([s], [], [], LONG)
    parts = [bytearray(2), bytearray(10)]
    count, _, flags, address = s.recvmsg_into(parts)
    while count < 5:
        count += s.recv_into(memoryview(parts[1])[count - 2:])
    assert (bytes(parts[0]), bytes(parts[1][:3]), flags, address) == (b"ab", b"cde", 0, None)
    assert os.writev(s.fileno(), [b"12", b"345"]) == 5
    s.send(b"")
    number = array.array("i", [0])
    while number[0] < 5:
        select.select([s], [], [], LONG)
        fcntl.ioctl(s, termios.FIONREAD, number)
    assert number[0] == 5
    left, right = bytearray(3), bytearray(10)
    assert os.readv(s.fileno(), [left, right]) == 5
    assert (bytes(left), bytes(right[:2])) == (b"123", b"45")
    # A file, from where it stands and from elsewhere.
    with tempfile.TemporaryFile() as file:
        data = os.urandom(500_000)
        file.write(data)
        file.flush()
        got = []
        reader = threading.Thread(target=lambda: got.append(exactly(s, 2 * len(data) - 100)))
        reader.start()
        assert os.sendfile(s.fileno(), file.fileno(), 100, len(data)) == len(data) - 100
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        assert os.sendfile(s.fileno(), file.fileno(), None, len(data) + 5) == len(data)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == len(data)
        reader.join()
        assert got[0] == data[100:] + data
    # Time-outs.
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    begun = time.monotonic()
    fails(errno.EAGAIN, s.recv, 1)
    assert time.monotonic() - begun >= 0.1
    # Descriptors that are doubled.
    other = socket.socket(fileno=os.dup(s.fileno()))
    copy = 700
    os.dup2(s.fileno(), copy)
    s.close()
    other.send(b"still")
    assert exactly(other, 5) == b"still"
    other.close()
    os.write(copy, b"here")
    assert os.read(copy, 1) == b"h"
    # Its place is another descriptor's then.
    os.dup2(1, copy)
    assert os.fstat(copy) == os.fstat(1)
    os.close(copy)
    fails(errno.EBADF, os.read, copy, 1)
    # All is closed that the program does not know, and a new socket works all the same.
    os.closerange(3, 1000)
    s = call()
    s.send(b"x")
    assert s.recv(1) == b"x"


def corks():
    """An answer in two pieces is one segment: by TCP_CORK as nginx does it, and by MSG_MORE."""
    s = call()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(100):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        s.send(b"head")
        s.send(b"body")
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        assert exactly(s, 8) == b"headbody"
    with tempfile.TemporaryFile() as file:
        file.write(b"file")
        file.flush()
        for _ in range(50):
            s.send(b"head", socket.MSG_MORE)
            s.send(b"body")
            assert exactly(s, 8) == b"headbody"
            s.send(b"head", socket.MSG_MORE)
            assert os.sendfile(s.fileno(), file.fileno(), 0, 4) == 4
            assert exactly(s, 8) == b"headfile"
    # Nobody draws it: what waits goes all the same.
    s.send(b"alone", socket.MSG_MORE)
    assert exactly(s, 5) == b"alone"


def refusals():
    """What cannot work says so once, and has an errno."""
    s = call()
    with tempfile.TemporaryFile() as file:
        fails(errno.EINVAL, os.splice, file.fileno(), s.fileno(), 10) if hasattr(os, "splice") else None
    fails(errno.EINVAL, fcntl.fcntl, s, fcntl.F_SETFL, 0o20000)
    fails(errno.EINVAL, fcntl.fcntl, s, fcntl.F_SETFL, 0o20000)
    s.send(b"x")
    assert s.recv(1) == b"x"


def serve():
    listener = socket.socket()
    listener.bind((OWN, 0))
    listener.listen(8)
    port = listener.getsockname()[1]
    assert port > 0
    assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    again = socket.socket()
    again.bind((OWN, port))
    fails(errno.EADDRINUSE, again.listen, 1)
    listener.setblocking(False)
    fails(errno.EAGAIN, listener.accept)
    ep = select.epoll()
    ep.register(listener, select.EPOLLIN)
    assert ep.poll(0) == []
    for _ in range(3):
        dial = call(PORT + 2)
        dial.send(f"{port}\n".encode())
        assert ep.poll(LONG) == [(listener.fileno(), select.EPOLLIN)]
        s, peer = listener.accept()
        assert (s.getpeername(), s.getsockname()) == (peer, (OWN, port))
        assert peer[0] == KERNEL
        fails(errno.EAGAIN, listener.accept)
        s.send(b"x" * 100_000)
        assert exactly(s, 100_000) == b"x" * 100_000
        # A reset on purpose.
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    listener.setblocking(True)
    dial.send(f"{port}\n".encode())
    s, peer = listener.accept()
    listener.close()
    s.send(b"last")
    assert exactly(s, 4) == b"last"


def forks():
    s = call()
    child = os.fork()
    if child == 0:
        try:
            fails(errno.ENOTCONN, s.send, b"x")
            fails(errno.ENOTCONN, s.recv, 1)
            s.close()
            # It may have some of its own.
            own = call()
            own.send(b"child")
            assert exactly(own, 5) == b"child"
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    s.send(b"parent")
    assert exactly(s, 6) == b"parent"
    # A child that closes all and becomes another program.
    subprocess.run(["true"], check=True, close_fds=True)
    s.send(b"still")
    assert exactly(s, 5) == b"still"


def threads():
    def talk(number):
        s = call()
        for turn in range(200):
            data = bytes([number, turn % 256]) * (turn + 1)
            s.sendall(data)
            assert exactly(s, len(data)) == data
        done.append(number)

    done = []
    all_threads = [threading.Thread(target=talk, args=(number,)) for number in range(6)]
    for thread in all_threads:
        thread.start()
    # One waits in recv while another one sends.
    s, got = call(), []
    reader = threading.Thread(target=lambda: got.append(exactly(s, 5)))
    reader.start()
    time.sleep(0.1)
    s.send(b"other")
    reader.join()
    assert got == [b"other"]
    # A set that a thread waits for gets a socket.
    ep, found = select.epoll(), []
    waiter = threading.Thread(target=lambda: found.append(ep.poll(LONG)))
    waiter.start()
    time.sleep(0.1)
    s.send(b"x")
    ep.register(s, select.EPOLLIN)
    waiter.join()
    assert found == [[(s.fileno(), select.EPOLLIN)]], found
    for thread in all_threads:
        thread.join()
    assert sorted(done) == list(range(6)), done


def signals():
    class Alarm(Exception):
        pass

    def handler(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, handler)
    s, ep = call(), select.epoll()
    ep.register(s, select.EPOLLIN)
    for wait in (lambda: s.recv(1), lambda: select.select([s], [], []), lambda: ep.poll()):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            wait()
        except Alarm:
            continue
        raise AssertionError("a wait that no signal ends")
    # A handler that asks for it does not end the call.
    signal.signal(signal.SIGALRM, lambda *_: s.send(b"x"))
    signal.siginterrupt(signal.SIGALRM, False)
    s.send(b"x")
    assert s.recv(1) == b"x"


def leaves():
    """Ends without closing; what it has written arrives."""
    s = call(PORT + 4)
    s.sendall(b"y" * 300_000)


{f.__name__: f for f in (epoll, select_and_poll, refused, half_close_and_reset, calls, corks, refusals, serve, forks, threads,
                         signals, leaves)}[CASE]()
print("done")
