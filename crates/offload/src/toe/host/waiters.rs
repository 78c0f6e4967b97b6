//! Tasks that wait for a socket: each is woken by an event of this socket, and by no other.

use std::io;
use std::task::{Context, Poll, Waker};

use super::handle::Host;
use super::state::{HostState, stopped};

/// The event that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::toe) enum Interest {
    /// Bytes to read, the next connection, or the end.
    Read,
    /// Room to write.
    Write,
}

/// The tasks that wait for one socket. A list without tasks has no memory.
#[derive(Default)]
pub(super) struct Waiters {
    read: Vec<Waker>,
    write: Vec<Waker>,
}

impl Waiters {
    fn of(&mut self, interest: Interest) -> &mut Vec<Waker> {
        match interest {
            Interest::Read => &mut self.read,
            Interest::Write => &mut self.write,
        }
    }

    fn add(&mut self, interest: Interest, waker: &Waker) {
        let list = self.of(interest);
        if !list.iter().any(|known| known.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    /// Moves the tasks to those that are woken; whether there were any.
    pub(super) fn wake(&mut self, interest: Interest, woken: &mut Vec<Waker>) -> bool {
        let list = self.of(interest);
        let has_any = !list.is_empty();
        woken.append(list);
        has_any
    }
}

impl HostState {
    /// The task is woken when something happens to the socket.
    pub(in crate::toe) fn wake_later(&mut self, socket: u32, interest: Interest, waker: &Waker) {
        self.socket(socket).waiters.add(interest, waker);
    }

    pub(super) fn wake(&mut self, socket: u32, interest: Interest) -> bool {
        let Self { sockets, woken, .. } = self;
        sockets[socket as usize].waiters.wake(interest, woken)
    }

    /// All tasks of all sockets: there is no engine any more that could wake them.
    pub(in crate::toe) fn wake_all(&mut self) {
        for socket in 0..self.sockets.len() as u32 {
            self.wake(socket, Interest::Read);
            self.wake(socket, Interest::Write);
        }
    }

    /// Chunks are free: as many tasks that wait for one are woken, in the order in which they came. One that needs none any more is passed over at
    /// the next call.
    pub(in crate::toe) fn wake_for_chunks(&mut self) {
        let mut chunks = self.free_chunks.len();
        while chunks > 0
            && let Some(socket) = self.lacks_chunk.pop_front()
        {
            self.socket(socket).lacks_chunk = false;
            self.news.has_chunk(socket);
            chunks -= usize::from(self.wake(socket, Interest::Write));
        }
    }

    /// Exchanges the tasks to be woken with a list that is empty. They are woken when nothing of this is borrowed any more: what runs then may call
    /// a socket.
    pub(in crate::toe) fn take_woken(&mut self, empty: Vec<Waker>) -> Vec<Waker> {
        std::mem::replace(&mut self.woken, empty)
    }
}

impl Host {
    /// The result of `attempt`, or the task is woken when something happens to the socket.
    pub(super) fn poll_for<T>(
        &self,
        context: &Context<'_>,
        (socket, interest): (u32, Interest),
        attempt: impl FnOnce(&mut HostState) -> io::Result<Option<T>>,
    ) -> Poll<io::Result<T>> {
        self.with(|state| match attempt(state) {
            Ok(None) if state.is_stopped() && !state.has_events() => Poll::Ready(Err(stopped())),
            Ok(None) => {
                state.wake_later(socket, interest, context.waker());
                Poll::Pending
            }
            Ok(Some(result)) => Poll::Ready(Ok(result)),
            Err(error) => Poll::Ready(Err(error)),
        })
    }
}
