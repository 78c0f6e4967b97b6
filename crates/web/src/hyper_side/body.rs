//! Bodies of responses: bytes in memory, segments that were made, what an engine writes into a socket pair, or what happens.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use millrace_core::limits::web::INSIDE_READ_BYTES;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::UnixStream;

use crate::answer::Sending;
use crate::events::Listener;

pub(crate) struct WebBody {
    content: Content,
    /// Bytes that are still to come; `Content-Length` before the first. Of events nobody knows.
    left: u64,
}

enum Content {
    /// Nothing follows, whatever the length: a response to HEAD.
    Absent,
    Whole(Bytes),
    /// A piece at a time, so that it is seen how far it is taken.
    Segment(Bytes, Sending),
    /// What was read already, and the near end of a socket pair. Whoever reads slowly makes the engine wait, whoever goes closes the pair.
    Media(Vec<u8>, UnixStream),
    /// What happens.
    Events(Listener),
}

impl WebBody {
    pub(super) fn absent(length: u64) -> Self {
        Self { content: Content::Absent, left: length }
    }

    pub(super) fn whole(bytes: Bytes) -> Self {
        Self { left: bytes.len() as u64, content: Content::Whole(bytes) }
    }

    pub(super) fn segment(bytes: Bytes, sending: Sending) -> Self {
        Self { left: bytes.len() as u64, content: Content::Segment(bytes, sending) }
    }

    pub(super) fn events(listener: Listener) -> Self {
        Self { left: u64::MAX, content: Content::Events(listener) }
    }

    pub(super) fn media(near: UnixStream, first: Vec<u8>, length: u64) -> Self {
        Self { content: Content::Media(first, near), left: length }
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
            return Poll::Ready(None);
        }
        let bytes = match &mut this.content {
            Content::Absent => return Poll::Ready(None),
            Content::Events(listener) => {
                return listener.poll(cx).map(|frame| frame.map(|frame| Ok(Frame::data(frame))));
            }
            Content::Whole(bytes) => std::mem::take(bytes),
            Content::Segment(bytes, sending) => {
                let piece = bytes.split_to(bytes.len().min(INSIDE_READ_BYTES));
                sending.takes(piece.len() as u64, bytes.is_empty());
                piece
            }
            Content::Media(first, _) if !first.is_empty() => Bytes::from(std::mem::take(first)),
            Content::Media(_, near) => {
                let most = usize::try_from(this.left).unwrap_or(usize::MAX).min(INSIDE_READ_BYTES);
                let mut bytes = vec![0; most];
                let mut buf = ReadBuf::new(&mut bytes);
                if let Err(error) = ready!(Pin::new(near).poll_read(cx, &mut buf)) {
                    return Poll::Ready(Some(Err(error)));
                }
                let count = buf.filled().len();
                if count == 0 {
                    // Cut off: the connection (or stream) is broken off, so that nobody takes it for the whole.
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                bytes.truncate(count);
                Bytes::from(bytes)
            }
        };
        this.left = this.left.saturating_sub(bytes.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        match self.content {
            Content::Events(_) => SizeHint::default(),
            _ => SizeHint::with_exact(self.left),
        }
    }
}
