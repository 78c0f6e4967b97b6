//! The connection to one viewer, its pending output and the side that writes it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use millrace_core::ids::ConnId;
use millrace_core::limits::MAX_CONN_PENDING_BYTES;
use millrace_core::time::Instant;
use tokio::sync::Notify;

use super::stream::ViewerStream;
use super::tunnel::TunnelKey;
use crate::service::ConnKey;

/// The side that writes to a connection.
pub(super) enum ConnWriter {
    /// This side.
    Control,
    /// An engine, which calls the connection this.
    Engine(usize, ConnId),
    /// No writer, until an engine has received it from another one: these bytes wait.
    Nobody(Vec<u8>),
}

/// The connection to one viewer, as the control thread keeps it.
pub(super) struct ControlConnection {
    pub(super) key: ConnKey,
    pub(super) stream: ViewerStream,
    pub(super) writer: RefCell<ConnWriter>,
    /// Bytes that the socket has not taken.
    out: RefCell<VecDeque<u8>>,
    /// Since when.
    pub(super) stuck_since: Cell<Option<Instant>>,
    /// Close it once `out` is empty.
    pub(super) closing: Cell<bool>,
    /// Close it now.
    pub(super) broken: Cell<bool>,
    /// Rung when the connection's task should look again.
    pub(super) wake: Notify,
    /// The tunnel, if this connection is its GET.
    pub(super) tunnel: RefCell<Option<TunnelKey>>,
    /// News of the order that came with it, if one has.
    pub(super) order: OrderNews,
}

/// News of an order (`orders.rs`).
#[derive(Debug, Default)]
pub(super) struct OrderNews {
    /// The title it waited for was opened, or could not be opened.
    pub(super) opened: Cell<bool>,
    /// The last byte has been taken.
    pub(super) sent: Cell<bool>,
    /// Its stream is over.
    pub(super) over: Cell<bool>,
    /// No engine writes to the connection any more.
    pub(super) returned: Cell<bool>,
    /// The connection broke under an engine's writes: it will not be given back.
    pub(super) lost: Cell<bool>,
}

impl ControlConnection {
    pub(super) fn new(key: ConnKey, stream: ViewerStream) -> Self {
        Self {
            key,
            stream,
            writer: RefCell::new(ConnWriter::Control),
            out: RefCell::default(),
            stuck_since: Cell::new(None),
            closing: Cell::new(false),
            broken: Cell::new(false),
            wake: Notify::new(),
            tunnel: RefCell::default(),
            order: OrderNews::default(),
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        !matches!(*self.writer.borrow(), ConnWriter::Control)
    }

    /// It goes from one engine to another.
    pub(super) fn is_held(&self) -> bool {
        matches!(*self.writer.borrow(), ConnWriter::Nobody(_))
    }

    pub(super) fn has_output(&self) -> bool {
        !self.out.borrow().is_empty()
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&self, now: Instant) {
        let mut out = self.out.borrow_mut();
        while !out.is_empty() && !self.broken.get() {
            match self.stream.try_write(out.as_slices().0) {
                Ok(0) => self.broken.set(true),
                Ok(taken) => {
                    out.drain(..taken);
                    self.stuck_since.set(None);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => self.broken.set(true), // the viewer is gone: its task closes the line
            }
        }
        if out.is_empty() {
            *out = VecDeque::new();
        } else if self.stuck_since.get().is_none() {
            self.stuck_since.set(Some(now));
        }
    }

    pub(super) fn write(&self, now: Instant, bytes: &[u8]) {
        if self.out.borrow().len() + bytes.len() > MAX_CONN_PENDING_BYTES {
            self.broken.set(true);
        } else {
            self.out.borrow_mut().extend(bytes);
            self.flush(now);
        }
        self.wake.notify_one();
    }
}
