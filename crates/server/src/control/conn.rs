//! One viewer's RTSP connection.

use std::future::pending;
use std::io::ErrorKind;
use std::rc::Rc;

use millrace_core::limits::control::CONN_LINGER;
use tokio::time::timeout;

use super::connection::ControlConnection;
use super::hub::SharedHub;
use super::tunnel::{self, Arrived, Tunnel};
use crate::limits::control::{CONN_READ_BYTES, MESSAGES_PER_TURN};
use crate::rtsp::tunnel::TunnelHalf;
use crate::rtsp::{FrameError, Framer, Incoming};

/// Result of handling the messages that have arrived.
enum MessageOutcome {
    /// All have been handled.
    Done,
    /// Some are held back: until the viewer takes its replies, the engine answers, an engine writes to it again, or a title is open.
    Held,
    /// Some are left because it is the others' turn.
    More,
    /// The connection is half of a tunnel from now on.
    Tunnel(TunnelHalf),
}

/// Serves the connection until it ends. `first` has already been read from it.
pub(super) async fn serve(hub: SharedHub, line: Rc<ControlConnection>, first: Vec<u8>) {
    let mut framer = Framer::default();
    framer.push(&first);
    drop(first);
    let mut ended = false; // the viewer will send nothing more
    let mut tunnel: Option<Rc<Tunnel>> = None; // what it sends comes by another connection
    let room = Rc::clone(&hub.borrow().room);
    loop {
        let turn = handle(&hub, &line, &mut framer);
        if line.broken.get() || line.closing.get() {
            break;
        }
        let held = match turn {
            MessageOutcome::More => {
                tokio::task::yield_now().await;
                continue;
            }
            MessageOutcome::Tunnel(half) if half.is_get => {
                tunnel = tunnel::open(&hub, &line, half);
                framer = Framer::default();
                continue;
            }
            MessageOutcome::Tunnel(half) => {
                let rest = framer.take_rest();
                tunnel::feed(&hub, &line, half, rest).await;
                break;
            }
            MessageOutcome::Done if ended && !line.has_output() => break,
            MessageOutcome::Done => line.has_output(),
            MessageOutcome::Held => true,
        };
        let has_room = room.notified();
        let congested = hub.borrow().is_congested();
        let takes = !held && !congested;
        tokio::select! {
            ready = line.stream.readable(), if !ended && takes => {
                match ready.map(|()| read(&line, &mut framer, tunnel.is_some())) {
                    Ok(Read::Some(_)) => {}
                    Ok(Read::End) => ended = true,
                    Ok(Read::Broken) | Err(_) => break,
                }
            }
            ready = line.stream.writable(), if line.has_output() => {
                if ready.is_err() {
                    break;
                }
                let now = hub.borrow().now();
                line.flush(now);
            }
            arrived = arrived(tunnel.as_deref()), if takes => match arrived {
                Arrived::Bytes(bytes) => framer.push(&bytes),
                Arrived::NotBase64 => refuse(&hub, &line, "the body of the POST is not base64"),
            },
            () = has_room, if congested => {}
            () = line.wake.notified() => {}
        }
    }
    if line.closing.get() && !line.broken.get() {
        // Whether it ends in time or not, the connection is closed.
        let _ = timeout(CONN_LINGER, say_bye(&hub, &line, ended)).await;
    }
    hub.borrow_mut().hang_up(line.key);
}

/// Waits for bytes from the tunnel of a connection; without a tunnel it never completes.
async fn arrived(tunnel: Option<&Tunnel>) -> Arrived {
    let Some(tunnel) = tunnel else { return pending().await };
    tunnel.arrived.notified().await;
    tunnel.take()
}

/// Answers bytes that are not RTSP.
fn refuse(hub: &SharedHub, line: &ControlConnection, what: &'static str) {
    let mut hub = hub.borrow_mut();
    let (now, error) = (hub.now(), FrameError { status: 400.into(), what, cseq: None });
    hub.rtsp().handle_bad_message(now, line.key, &error);
    hub.flush();
}

pub(super) enum Read {
    /// Number of bytes read; 0 if none were available yet.
    Some(usize),
    End,
    Broken,
}

/// Reads the available bytes with one call.
pub(super) fn read_into(line: &ControlConnection, bytes: &mut [u8]) -> Read {
    match line.stream.try_read(bytes) {
        Ok(0) => Read::End,
        Ok(len) => Read::Some(len),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Read::Some(0),
        Err(_) => Read::Broken,
    }
}

/// Reads into the framer. The buffer is on the stack, so that ten thousand idle connections hold
/// none. Bytes from the GET of a tunnel are ignored.
fn read(line: &ControlConnection, framer: &mut Framer, is_get: bool) -> Read {
    let mut bytes = [0; CONN_READ_BYTES];
    let read = read_into(line, &mut bytes);
    if let (Read::Some(len), false) = (&read, is_get) {
        framer.push(&bytes[..*len]);
    }
    read
}

/// Hands whole messages to the session server, each one only when nothing of the one before is waiting.
fn handle(hub: &SharedHub, line: &ControlConnection, framer: &mut Framer) -> MessageOutcome {
    let mut hub = hub.borrow_mut();
    let key = line.key;
    let turn = 'turn: {
        for _ in 0..MESSAGES_PER_TURN {
            if line.broken.get() || line.closing.get() {
                break 'turn MessageOutcome::Done;
            }
            if line.has_output() || line.is_held() || hub.server.is_waiting(key) || hub.is_congested() {
                break 'turn MessageOutcome::Held;
            }
            let now = hub.now();
            match framer.next_incoming() {
                Ok(Some(Incoming::Request(request))) => hub.rtsp().handle_request(now, key, &request),
                Ok(Some(Incoming::Interleaved { channel, bytes })) => {
                    hub.rtsp().handle_interleaved(now, key, channel, &bytes);
                }
                Ok(Some(Incoming::Response)) => {}
                Ok(Some(Incoming::Tunnel(half))) => {
                    if line.tunnel.borrow().is_none() && !hub.server.has_spoken(key) {
                        return MessageOutcome::Tunnel(half);
                    }
                    hub.rtsp().refuse_tunnel(key, 400, "a tunnel begins a connection, and holds none");
                }
                Ok(None) => break 'turn MessageOutcome::Done,
                Err(error) => hub.rtsp().handle_bad_message(now, key, &error),
            }
            hub.flush();
        }
        MessageOutcome::More
    };
    let now = hub.now();
    // Data held back here are not the viewer's delay.
    let mid_message = matches!(turn, MessageOutcome::Done) && framer.is_mid_message();
    hub.server.conn_progress(now, key, mid_message);
    turn
}

/// Lets the last reply out and waits for the viewer to close its side.
async fn say_bye(hub: &SharedHub, line: &ControlConnection, ended: bool) {
    while line.has_output() && !line.broken.get() {
        if line.stream.writable().await.is_err() {
            return;
        }
        let now = hub.borrow().now();
        line.flush(now);
    }
    if line.broken.get() || ended {
        return;
    }
    if !line.is_attached() {
        // The viewer sees the end of the stream behind the reply. An attached line is the engine's to end.
        line.stream.shut_write();
    }
    loop {
        if line.stream.readable().await.is_err() {
            return;
        }
        let mut bytes = [0; CONN_READ_BYTES];
        match line.stream.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}
