//! `sendmmsg` and `recvmmsg` over arrays that are allocated once.
//!
//! The kernel wants arrays of structures full of raw pointers. Here a message is noted as indices and slices; the
//! pointers are written right before the call that reads them and mean nothing after it.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::cmsg::{Received, SendControl};
use super::socket::{RawAddr, errno};

const _: () = {
    assert!(size_of::<libc::msghdr>() == 56 && size_of::<libc::mmsghdr>() == 64);
    assert!(size_of::<libc::iovec>() == 16);
};

/// Most parts of one message (UIO_MAXIOV, linux/uio.h): more is EMSGSIZE.
pub(crate) const MAX_PARTS: usize = 1024;

const EMPTY_IOVEC: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// A message header with nothing in it.
fn empty_header() -> libc::mmsghdr {
    // SAFETY: mmsghdr is a C structure of integers and raw pointers. All-zero bytes are a valid
    // value (null) for them.
    unsafe { std::mem::zeroed() }
}

/// Where one message's parts and address lie.
#[derive(Clone, Copy, Default)]
struct Note {
    name: u32,
    name_len: u32,
    first_part: u32,
    parts: u32,
    control_bytes: u32,
}

/// The arrays of `sendmmsg`, allocated once.
pub(crate) struct SendArena {
    notes: Box<[Note]>,
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[RawAddr]>,
    controls: Box<[SendControl]>,
}

// SAFETY: the raw pointers in `headers` and `parts` are written and read only between `plan` and the end of
// the `MessageList` that it returns, which borrows both this arena and the bytes; in between they are never
// followed.
unsafe impl Send for SendArena {}

impl SendArena {
    /// Room for `messages` messages with `parts` parts in all.
    pub(crate) fn new(messages: usize, parts: usize) -> Self {
        Self {
            notes: vec![Note::default(); messages].into(),
            headers: (0..messages).map(|_| empty_header()).collect(),
            parts: vec![EMPTY_IOVEC; parts].into(),
            names: vec![RawAddr::NONE; messages].into(),
            controls: vec![SendControl::EMPTY; messages].into(),
        }
    }

    /// Starts an empty list of messages whose bytes live for `'data`.
    pub(crate) fn plan<'data>(&mut self) -> MessageList<'_, 'data> {
        MessageList { arena: self, messages: 0, names: 0, parts: 0, source: None, bytes: PhantomData }
    }
}

/// A list of messages to send; holds on to the bytes until it is dropped.
pub(crate) struct MessageList<'arena, 'data> {
    arena: &'arena mut SendArena,
    messages: usize,
    names: usize,
    parts: usize,
    /// Source address of the next messages; `None` if the route determines it.
    source: Option<IpAddr>,
    bytes: PhantomData<&'data [u8]>,
}

impl<'data> MessageList<'_, 'data> {
    /// Messages in the list.
    pub(crate) fn len(&self) -> usize {
        self.messages
    }

    /// Whether one more message with `parts` parts fits.
    pub(crate) fn has_room(&self, parts: usize) -> bool {
        self.messages < self.arena.notes.len() && parts <= self.arena.parts.len() - self.parts
    }

    /// Sets the destination and the source address of the following messages. Without `source`, the
    /// route determines the address. Must be called at most once between two messages.
    pub(crate) fn to(&mut self, dest: SocketAddr, source: Option<IpAddr>) {
        self.source = source;
        // A destination without messages is overwritten, so that there are never more names than messages + 1.
        if self.names > self.messages {
            self.names -= 1;
        }
        if let Some(slot) = self.arena.names.get_mut(self.names) {
            *slot = RawAddr::new(dest);
        }
        self.names += 1;
    }

    /// Adds a message to the current destination; `segment`: the kernel cuts it into datagrams of this length.
    ///
    /// # Panics
    /// Without room ([`MessageList::has_room`]) or without a destination.
    pub(crate) fn push(&mut self, segment: Option<u16>, parts: impl IntoIterator<Item = &'data [u8]>) {
        let first = self.parts;
        for part in parts {
            self.arena.parts[self.parts] =
                libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
            self.parts += 1;
        }
        let control_bytes = self.arena.controls[self.messages].write(segment, self.source);
        let name = self.names - 1;
        self.arena.notes[self.messages] = Note {
            name: name as u32,
            name_len: self.arena.names[name].length(),
            first_part: first as u32,
            parts: (self.parts - first) as u32,
            control_bytes: control_bytes as u32,
        };
        self.messages += 1;
    }

    /// Hands `messages` to the kernel in one call that does not wait; returns how many of them it
    /// took, or the errno of the first. Additional `flags`: `MSG_ZEROCOPY`, where the kernel
    /// continues to read the bytes after this call and after `'data`; see [`MessageList::send_zero_copy`].
    fn hand_over(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: std::ops::Range<usize>,
        flags: i32,
    ) -> Result<usize, i32> {
        let (from, until) = (messages.start, messages.end.min(self.messages));
        let arena = &mut *self.arena;
        let names = arena.names.as_mut_ptr();
        let parts = arena.parts.as_mut_ptr();
        let controls = arena.controls.as_mut_ptr();
        for (index, (header, note)) in
            arena.headers.iter_mut().zip(&*arena.notes).enumerate().take(until).skip(from)
        {
            let h = &mut header.msg_hdr;
            // SAFETY: `push` stored name < names.len(), first_part <= parts.len() and index < controls.len() (all
            // three were indexed there), so each pointer stays within or at the end of its array.
            let (name, iov, control) = unsafe {
                (names.add(note.name as usize), parts.add(note.first_part as usize), controls.add(index))
            };
            h.msg_name = name.cast();
            h.msg_namelen = note.name_len;
            h.msg_iov = iov;
            h.msg_iovlen = note.parts as _;
            let has_control = note.control_bytes > 0;
            h.msg_control = if has_control { control.cast() } else { ptr::null_mut() };
            h.msg_controllen = note.control_bytes as _;
        }
        let list = &mut arena.headers[from..until];
        // SAFETY: `list` holds valid headers: the loop above set every pointer of messages from..until to live
        // arrays of this arena (borrowed mutably by `self`), and the parts point to bytes that `'data` keeps alive and
        // unchanged; sendmmsg only reads them and writes msg_len within `list`.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                list.as_mut_ptr(),
                list.len() as u32,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | flags) as _,
            )
        };
        usize::try_from(sent).map_err(|_| errno())
    }

    /// Hands `messages` to the kernel, which copies their bytes; returns how many it took, or the errno of the first.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: std::ops::Range<usize>,
    ) -> Result<usize, i32> {
        self.hand_over(socket, messages, 0)
    }

    /// Does the same, but the kernel need not copy (`MSG_ZEROCOPY`): it holds on to the pages and
    /// reads them when a device needs them. This is sound whatever happens to the memory (the
    /// kernel only reads, and keeps freed pages), but a byte that is changed before the completion
    /// arrives goes out changed: the caller must prevent this.
    pub(crate) fn send_zero_copy(
        &mut self,
        socket: BorrowedFd<'_>,
        messages: std::ops::Range<usize>,
    ) -> Result<usize, i32> {
        self.hand_over(socket, messages, libc::MSG_ZEROCOPY)
    }
}

/// Room for the control messages of one received message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlRoom {
    bytes: [u8; ControlRoom::BYTES],
}

impl ControlRoom {
    const BYTES: usize = Received::ERROR_SPACE;
}

/// The arrays of `recvmmsg`, allocated once: `messages` buffers of `bytes` bytes, each with an address and room for
/// control messages.
pub(crate) struct RecvArena {
    headers: Box<[libc::mmsghdr]>,
    parts: Box<[libc::iovec]>,
    names: Box<[RawAddr]>,
    controls: Box<[ControlRoom]>,
    bytes: Box<[u8]>,
    bytes_each: usize,
    filled: usize,
}

// SAFETY: the raw pointers in `headers` and `parts` are written and followed only inside `receive`.
unsafe impl Send for RecvArena {}

/// One received message.
pub(crate) struct ReceivedMessage<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) name: Option<SocketAddr>,
    pub(crate) info: Received,
    /// The datagram was longer than the buffer.
    pub(crate) truncated: bool,
}

impl RecvArena {
    /// `messages` buffers of `bytes_each` bytes (0: only addresses and control messages are wanted).
    pub(crate) fn new(messages: usize, bytes_each: usize) -> Self {
        Self {
            headers: (0..messages).map(|_| empty_header()).collect(),
            parts: vec![EMPTY_IOVEC; messages].into(),
            names: vec![RawAddr::NONE; messages].into(),
            controls: vec![ControlRoom { bytes: [0; ControlRoom::BYTES] }; messages].into(),
            bytes: vec![0; messages * bytes_each].into(),
            bytes_each,
            filled: 0,
        }
    }

    /// Takes the messages that have arrived, without waiting; `flags` e.g. `MSG_ERRQUEUE`. Returns
    /// their number.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>, flags: i32) -> Result<usize, i32> {
        self.filled = 0;
        let bytes = self.bytes.as_mut_ptr();
        let names = self.names.as_mut_ptr();
        let controls = self.controls.as_mut_ptr();
        let parts = self.parts.as_mut_ptr();
        for (index, header) in self.headers.iter_mut().enumerate() {
            // SAFETY: index < headers.len() = parts.len() = names.len() = controls.len(), and bytes holds that many
            // pieces of bytes_each bytes, so every pointer lies within (or, for pieces of no length, at the end of)
            // its array; `part` is written through a pointer into `parts`, which nothing else borrows.
            let (name, part, control) = unsafe {
                let part = parts.add(index);
                *part = libc::iovec {
                    iov_base: bytes.add(index * self.bytes_each).cast(),
                    iov_len: self.bytes_each,
                };
                (names.add(index), part, controls.add(index))
            };
            header.msg_len = 0;
            let h = &mut header.msg_hdr;
            h.msg_name = name.cast();
            h.msg_namelen = RawAddr::CAPACITY as u32;
            h.msg_iov = part;
            h.msg_iovlen = 1;
            h.msg_control = control.cast();
            h.msg_controllen = ControlRoom::BYTES as _;
            h.msg_flags = 0;
        }
        // SAFETY: every header was set above to arrays of `self`, which this `&mut self` keeps alive and unshared; the
        // kernel writes within the lengths given. The time-out is null: MSG_DONTWAIT makes it moot.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                (libc::MSG_DONTWAIT | flags) as _,
                ptr::null_mut(),
            )
        };
        self.filled = usize::try_from(got).map_err(|_| errno())?;
        Ok(self.filled)
    }

    /// Messages of the last `receive`.
    pub(crate) fn len(&self) -> usize {
        self.filled
    }

    /// Buffers: `receive` returns at most this many.
    pub(crate) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Message `index` of the last `receive`.
    pub(crate) fn get(&self, index: usize) -> ReceivedMessage<'_> {
        assert!(index < self.filled, "message {index} of {}", self.filled);
        let header = &self.headers[index];
        let length = (header.msg_len as usize).min(self.bytes_each);
        let at = index * self.bytes_each;
        let control = header.msg_hdr.msg_controllen.min(ControlRoom::BYTES);
        let has_name = header.msg_hdr.msg_namelen > 0;
        ReceivedMessage {
            bytes: &self.bytes[at..at + length],
            name: has_name.then(|| self.names[index].parse()).flatten(),
            info: Received::parse(&self.controls[index].bytes[..control]),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }
}

#[cfg(test)]
#[path = "mmsg_tests.rs"]
mod tests;
