//! Bodies of responses: bytes in memory, segments that were made, bytes that an engine writes into
//! a socket pair, or events.
//!
//! A body ends when its last piece has been written, not when hyper has taken it. Until then the
//! stream can be reset, and the memory of the body is counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use millrace_core::limits::web::MAX_BYTES_STALL_NS;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

use super::progress::{MinimumPace, ResponseProgress};
use super::watch::UnderWay;
use crate::answer::Sending;
use crate::events::Listener;
use crate::limits::INSIDE_READ_BYTES;
use crate::memory::Hold;

pub(crate) struct WebBody {
    content: Content,
    /// Bytes still to come; `Content-Length` before the first. Unknown for events.
    left: u64,
    progress: Arc<ResponseProgress>,
    /// Resources that the response holds until it ends.
    _held: ResponseResources,
}

/// Resources of a response besides its bytes: memory for the request, and a permit to answer it.
#[derive(Debug, Default)]
pub(super) struct ResponseResources {
    pub(super) memory: Option<Hold>,
    pub(super) place: Option<OwnedSemaphorePermit>,
    pub(super) _under_way: Option<UnderWay>,
}

enum Content {
    /// Nothing follows, whatever the length: a response to HEAD.
    Absent,
    /// Bytes sent in pieces, so that progress is visible; for a segment, `Sending` counts them for
    /// its viewer.
    Whole(Bytes, Option<Sending>),
    /// Bytes already read, and the near end of a socket pair. A slow reader makes the engine wait;
    /// a client that leaves closes the pair.
    Media(Vec<u8>, UnixStream),
    /// The same of a live title, whose body ends with its source.
    Live(Vec<u8>, UnixStream),
    /// What happens.
    Events(Listener),
}

impl WebBody {
    pub(super) fn absent(length: u64) -> Self {
        Self::new(Content::Absent, length)
    }

    pub(super) fn whole(bytes: Bytes, sending: Option<Sending>) -> Self {
        let length = bytes.len() as u64;
        Self::new(Content::Whole(bytes, sending), length)
    }

    pub(super) fn events(listener: Listener) -> Self {
        Self::new(Content::Events(listener), u64::MAX)
    }

    /// `None`: it has no length.
    pub(super) fn media(near: UnixStream, first: Vec<u8>, length: Option<u64>) -> Self {
        match length {
            Some(length) => Self::new(Content::Media(first, near), length),
            None => Self::new(Content::Live(first, near), u64::MAX),
        }
    }

    fn new(content: Content, left: u64) -> Self {
        Self { content, left, progress: ResponseProgress::new(None), _held: ResponseResources::default() }
    }

    /// Adds progress tracking. In-memory bodies must make progress within `stall` and keep a
    /// minimum rate; media and events use the engine's time limit.
    pub(super) fn watched(
        self,
        progress: &Arc<ResponseProgress>,
        stall: Duration,
        held: ResponseResources,
    ) -> Self {
        let of_media = MinimumPace { stall: Duration::from_nanos(MAX_BYTES_STALL_NS), length: None };
        progress.begins(match &self.content {
            Content::Absent | Content::Whole(..) => MinimumPace { stall, length: Some(self.left) },
            Content::Media(..) | Content::Live(..) | Content::Events(_) => of_media,
        });
        Self { progress: Arc::clone(progress), _held: held, ..self }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let is_live = matches!(self.content, Content::Live(..));
        let bytes = match &mut self.content {
            Content::Absent => return Poll::Ready(None),
            Content::Events(listener) => return listener.poll(cx).map(|frame| frame.map(Ok)),
            Content::Whole(bytes, sending) => {
                let piece = bytes.split_to(bytes.len().min(INSIDE_READ_BYTES));
                if let Some(sending) = sending {
                    sending.takes(piece.len() as u64, bytes.is_empty());
                }
                piece
            }
            Content::Media(first, _) | Content::Live(first, _) if !first.is_empty() => {
                Bytes::from(std::mem::take(first))
            }
            Content::Media(_, near) | Content::Live(_, near) => {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(INSIDE_READ_BYTES);
                let mut bytes = vec![0; most];
                let mut buf = ReadBuf::new(&mut bytes);
                if let Err(error) = ready!(Pin::new(near).poll_read(cx, &mut buf)) {
                    return Poll::Ready(Some(Err(error)));
                }
                let count = buf.filled().len();
                if count == 0 && is_live {
                    return Poll::Ready(None);
                }
                if count == 0 {
                    // Cut off: the connection (or stream) is broken off, so that no client takes it
                    // for the whole.
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                bytes.truncate(count);
                Bytes::from(bytes)
            }
        };
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Body for WebBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if this.left == 0 {
            return this.progress.poll_written(cx).map(|()| None);
        }
        let polled = this.poll_bytes(cx);
        if polled.is_pending() {
            this.progress.runs_dry();
        }
        polled.map(|bytes| bytes.map(|bytes| bytes.map(|bytes| Frame::data(this.progress.piece(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.progress.is_all_written()
    }

    fn size_hint(&self) -> SizeHint {
        match self.content {
            Content::Live(..) | Content::Events(_) => SizeHint::default(),
            _ => SizeHint::with_exact(self.left),
        }
    }
}
