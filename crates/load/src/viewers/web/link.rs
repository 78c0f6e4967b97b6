//! One connection that carries one request after another.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use millrace_client::net::start_connect;
use rustix::net::RecvFlags;
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::limits::RECEIVE_BUFFER_BYTES;
use crate::viewer::{Interest, ViewerContext};
use crate::web::address::HttpUrl;
use crate::web::exchange::Exchange;

/// The kind of the only descriptor that a viewer has.
const KIND: u8 = 0;

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// Nothing now.
    Nothing,
    /// This many bytes.
    Bytes(usize),
    /// The connection is over.
    Closed,
}

/// The connection, if there is one, and the request on it.
#[derive(Default)]
pub(super) struct HttpLink {
    stream: Option<TcpStream>,
    /// Whom it leads to.
    server: Option<HttpUrl>,
    is_connected: bool,
    /// What of the request has not been written.
    output: Vec<u8>,
    interest: Option<Interest>,
    /// Whether an earlier request went over it.
    pub(super) is_reused: bool,
    pub(super) exchange: Exchange,
}

impl HttpLink {
    /// Sends `request` to the server of `url`: over the connection there is, if it leads there and `may_reuse`.
    pub(super) fn ask(
        &mut self,
        lent: &ViewerContext<'_>,
        url: &HttpUrl,
        request: Vec<u8>,
        open: impl FnOnce() -> Result<(SocketAddr, Option<IpAddr>), String>,
    ) -> Result<(), String> {
        (self.output, self.exchange) = (request, Exchange::default());
        let leads_there = self.server.as_ref().is_some_and(|server| server.has_same_server(url));
        self.is_reused = self.stream.is_some() && leads_there && self.is_connected;
        if self.is_reused {
            return Ok(());
        }
        self.close();
        let (server, local) = open()?;
        let kind = |error: io::Error| format!("connect: {}", error.kind());
        let stream = start_connect(server, local).map_err(kind)?;
        set_socket_recv_buffer_size(&stream, RECEIVE_BUFFER_BYTES).map_err(|error| kind(error.into()))?;
        lent.watch(KIND, &stream, Interest::ReadWrite).map_err(kind)?;
        (self.stream, self.server, self.interest) =
            (Some(stream), Some(url.clone()), Some(Interest::ReadWrite));
        Ok(())
    }

    /// Ends the connection.
    pub(super) fn close(&mut self) {
        (self.stream, self.server, self.is_connected, self.interest) = (None, None, false, None);
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Goes on with connecting and writing.
    ///
    /// # Errors
    /// If connecting failed. A write that fails shows when reading.
    pub(super) fn proceed(&mut self) -> Result<(), io::Error> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if !self.is_connected {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            // The event may have been that of an earlier connection.
            self.is_connected = stream.peer_addr().is_ok();
        }
        while self.is_connected && !self.output.is_empty() {
            match stream.write(&self.output) {
                Ok(len) if len > 0 => drop(self.output.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // A reply may have come all the same; without one, reading reports the end of the
                // connection.
                _ => self.output.clear(),
            }
        }
        Ok(())
    }

    /// One read.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Got {
        self.receive(buffer, RecvFlags::empty())
    }

    /// Reads once where only the length counts: the kernel discards the bytes (`MSG_TRUNC`), and
    /// nothing is written to `buffer`.
    pub(super) fn discard(&mut self, buffer: &mut [u8]) -> Got {
        self.receive(buffer, RecvFlags::TRUNC)
    }

    fn receive(&mut self, buffer: &mut [u8], flags: RecvFlags) -> Got {
        let Some(stream) = self.stream.as_mut().filter(|_| self.is_connected) else { return Got::Nothing };
        loop {
            let received = rustix::net::recv(&*stream, &mut *buffer, flags).map_err(io::Error::from);
            // The second is how many there were, also of those that were thrown away.
            return match received.map(|(_, len)| len) {
                Ok(0) => Got::Closed,
                Ok(len) => Got::Bytes(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Got::Nothing,
                Err(_) => Got::Closed,
            };
        }
    }

    /// Watches for the events needed next: writing while there is data to write, reading if it is
    /// wanted.
    pub(super) fn watch(&mut self, lent: &ViewerContext<'_>, wants_bytes: bool) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let is_writing = !self.is_connected || !self.output.is_empty();
        let interest = match (is_writing, wants_bytes) {
            (true, true) => Interest::ReadWrite,
            (true, false) => Interest::Write,
            (false, true) => Interest::Read,
            (false, false) => Interest::Nothing,
        };
        if self.interest != Some(interest) {
            lent.rewatch(KIND, stream, interest)?;
            self.interest = Some(interest);
        }
        Ok(())
    }
}
