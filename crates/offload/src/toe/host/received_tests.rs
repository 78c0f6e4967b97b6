//! Receive buffers that the application has: their content, and when the engine gets them back.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use millrace_core::shared::Region;

use super::*;
use crate::bell::EventBell;
use crate::toe::PairSettings;
use crate::toe::host::home::Home;
use crate::toe::pair::{EngineEnd, HostEnd, Layout};
use crate::toe::record::{Fault, HostEvent, HostRequest};

/// A connection and the engine's end of its pair; `is_shared`: in memory that another process might have.
fn stream(is_shared: bool) -> (EngineEnd, Host, TcpStream) {
    struct Mapping(Vec<AtomicU64>);
    impl Region for Mapping {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }
    let settings = PairSettings { sockets: 4, receive_buffers: 32, ..PairSettings::default() };
    let count = Layout::new(&settings).unwrap().words;
    let words = match is_shared {
        true => Words::over(Arc::new(Mapping((0..count).map(|_| AtomicU64::new(0)).collect()))),
        false => Words::new(count),
    };
    let bell = Arc::new(EventBell::new().unwrap());
    let mut engine = EngineEnd::new(&settings, words.clone(), Arc::clone(&bell), None).unwrap();
    let end = HostEnd::new(&settings, words, Arc::clone(&bell)).unwrap();
    let (link, _) = UnixStream::pair().unwrap();
    let home = Arc::new(Home::elsewhere(Arc::clone(&bell), Vec::new(), link.into()));
    let host = Host::new(HostState::new(0, end, bell, &settings), home);
    let (local, remote) = ("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap());
    let stream = TcpStream::begin(&host, None, remote).unwrap();
    let connected = HostEvent::Connected { socket: stream.socket, error: None, generation: 1, local, remote };
    assert!(engine.requests.pop().is_some() && engine.events.push(&connected.encode()));
    stream.set_nonblocking(true).unwrap();
    (engine, host, stream)
}

/// Bytes of the engine for socket 0, in a buffer; where they are.
fn come(engine: &mut EngineEnd, stream: &TcpStream, buffer: u32, bytes: &[u8]) -> usize {
    let at = engine.layout.receive(buffer, 8192);
    assert!(engine.words.write(at, bytes));
    let data = HostEvent::Data { socket: stream.socket, buffer, bytes: bytes.len() as u32 };
    assert!(engine.events.push(&data.encode()));
    at
}

/// Buffers that were given back since this was last asked.
fn given(engine: &mut EngineEnd, host: &Host) -> Vec<u32> {
    host.give_back();
    let mut all = Vec::new();
    while let Some(record) = engine.requests.pop() {
        let Some(HostRequest::Give { count, buffers }) = HostRequest::decode(&record) else { continue };
        all.extend_from_slice(&buffers[..usize::from(count)]);
    }
    all
}

#[test]
fn bytes_are_lent_where_they_lie_and_the_buffer_goes_back_when_they_are_dropped() {
    let (mut engine, host, stream) = stream(false);
    assert_eq!(stream.read_lent().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let at = come(&mut engine, &stream, 7, b"hello");
    come(&mut engine, &stream, 3, b"there");
    let first = stream.read_lent().unwrap();
    let begin = engine.words.own().unwrap().as_ptr().cast::<u8>();
    assert_eq!((&*first, first.as_ptr()), (&b"hello"[..], begin.wrapping_add(at)));
    // A half-read buffer is lent from the read position on.
    assert_eq!((&stream).read(&mut [0; 2]).unwrap(), 2);
    let second = stream.read_lent().unwrap();
    assert_eq!(&*second, b"ere");
    assert!(given(&mut engine, &host).is_empty());
    drop(first);
    assert_eq!(given(&mut engine, &host), [7]);
    // It outlives its connection, and everything else of its host.
    drop(stream);
    assert!(given(&mut engine, &host).is_empty());
    drop(host);
    assert_eq!(&*second, b"ere");
    let host = match &second.0 {
        Bytes::Lent { host, .. } => host.clone(),
        _ => panic!("it was copied"),
    };
    drop(second);
    assert_eq!(given(&mut engine, &host), [3]);
}

#[test]
fn read_lent_reports_end_or_error_after_last_bytes() {
    for error in [None, Some(Fault::Reset)] {
        let (mut engine, _host, stream) = stream(false);
        come(&mut engine, &stream, 0, b"last");
        assert!(engine.events.push(&HostEvent::End { socket: stream.socket, error }.encode()));
        assert_eq!(&*stream.read_lent().unwrap(), b"last");
        match error {
            None => assert!(stream.read_lent().unwrap().is_empty()),
            Some(_) => assert_eq!(stream.read_lent().unwrap_err().kind(), io::ErrorKind::ConnectionReset),
        }
        assert!(stream.read_lent().unwrap().is_empty());
    }
}

#[test]
fn peek_leaves_bytes_to_be_read() {
    let (mut engine, host, stream) = stream(false);
    assert_eq!(stream.peek(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    come(&mut engine, &stream, 4, b"hello");
    come(&mut engine, &stream, 9, b"there");
    // More than one buffer has, then less.
    for (room, expected) in [(9, &b"hellother"[..]), (3, b"hel"), (5, b"hello"), (20, b"hellothere")] {
        let mut seen = vec![0; room];
        let count = stream.peek(&mut seen).unwrap();
        assert_eq!(&seen[..count], expected);
    }
    assert!(given(&mut engine, &host).is_empty(), "no buffer goes back before its bytes are read");
    let mut first = [0; 2];
    assert_eq!(((&stream).read(&mut first).unwrap(), &first), (2, b"he"));
    let mut rest = [0; 3];
    assert_eq!((stream.peek(&mut rest).unwrap(), &rest), (3, b"llo"));
    let mut all = Vec::new();
    while let Ok(count) = (&stream).read(&mut rest) {
        all.extend_from_slice(&rest[..count]);
    }
    assert_eq!(all, b"llothere");
    assert_eq!(given(&mut engine, &host), [4, 9]);
}

#[test]
fn reading_ends_with_its_shutdown_and_goes_on_with_that_of_writing() {
    for how in [Shutdown::Read, Shutdown::Both, Shutdown::Write] {
        let (mut engine, _host, stream) = stream(false);
        come(&mut engine, &stream, 0, b"came");
        stream.shutdown(how).unwrap();
        let mut bytes = [0; 9];
        assert_eq!((&stream).read(&mut bytes).unwrap(), 4, "{how:?}: what has come can be read");
        let then = (&stream).read(&mut bytes).map_err(|error| error.kind());
        let asked =
            std::iter::from_fn(|| engine.requests.pop()).filter_map(|record| HostRequest::decode(&record));
        let is_told = asked.filter(|request| matches!(request, HostRequest::Shutdown { .. })).count();
        let written = (&stream).write(b"more").map_err(|error| error.kind());
        let expected = match how {
            Shutdown::Read => (Ok(0), 0, Ok(4)),
            Shutdown::Write => (Err(io::ErrorKind::WouldBlock), 1, Err(io::ErrorKind::BrokenPipe)),
            Shutdown::Both => (Ok(0), 1, Err(io::ErrorKind::BrokenPipe)),
        };
        assert_eq!((then, is_told, written), expected, "{how:?}");
    }
}

#[test]
fn drop_with_unread_bytes_requests_reset() {
    for is_unread in [false, true] {
        let (mut engine, host, stream) = stream(false);
        come(&mut engine, &stream, 2, b"hello");
        assert!(host.arm(), "it has been heard");
        if !is_unread {
            assert_eq!((&stream).read(&mut [0; 9]).unwrap(), 5);
        }
        drop(stream);
        let asked =
            std::iter::from_fn(|| engine.requests.pop()).filter_map(|record| HostRequest::decode(&record));
        let resets = asked.filter_map(|request| match request {
            HostRequest::Close { is_reset, .. } => Some(is_reset),
            _ => None,
        });
        assert_eq!(resets.collect::<Vec<_>>(), [is_unread]);
    }
}

#[test]
fn memory_of_another_process_is_copied() {
    let (mut engine, host, stream) = stream(true);
    let at = come(&mut engine, &stream, 5, b"hello");
    let got = stream.read_lent().unwrap();
    assert_eq!(given(&mut engine, &host), [5], "it is not needed any more");
    assert!(engine.words.write(at, b"other"));
    assert_eq!(&*got, b"hello");
}

/// Code that can send the engine any request could make it write to a buffer that is lent.
#[test]
fn inject_is_refused_while_buffer_is_lent() {
    let (mut engine, host, stream) = stream(false);
    come(&mut engine, &stream, 5, b"hello");
    come(&mut engine, &stream, 6, b"there");
    let lent = stream.read_lent().unwrap();
    assert!(!host.inject(&[0; 7]));
    drop(lent);
    assert!(host.inject(&[0; 7]));
    let copied = stream.read_lent().unwrap();
    assert!(matches!(copied.0, Bytes::Copied(_)));
    assert_eq!(given(&mut engine, &host), [5, 6]);
}
