//! The source of a live title that stands by for the other one. Without I/O; the time is an argument.

use millrace_core::time::Instant;
use millrace_make::live::packer::LiveSink;
use millrace_make::live::{LivePacker, NotTs, RtpReorder};

use super::address::LiveTransport;
use super::state::{SourceState, SourceWatch};

/// The source that is not on the air.
pub(super) struct Standby {
    pub(super) reorder: Option<RtpReorder>,
    pub(super) packer: LivePacker,
    pub(super) watch: SourceWatch,
    /// Times that it was found to be too fast.
    pub(super) hurries: u64,
    /// Why it cannot be fetched.
    pub(super) failure: String,
}

impl Standby {
    pub(super) fn new(transport: LiveTransport, origin: Instant) -> Self {
        let mut packer = LivePacker::new(origin);
        packer.withhold();
        Self {
            reorder: (transport == LiveTransport::Rtp).then(RtpReorder::default),
            packer,
            watch: SourceWatch::default(),
            hurries: 0,
            failure: String::new(),
        }
    }

    pub(super) fn datagram(&mut self, arrival: Instant, bytes: &[u8], out: LiveSink<'_>) {
        let Self { reorder, packer, watch, hurries, .. } = self;
        let mut take = |payload: &[u8]| match packer.push(arrival, payload, out) {
            Ok(()) => watch.media(arrival),
            Err(what) => watch.other(arrival, what),
        };
        let is_taken = match reorder {
            Some(reorder) => reorder.push(arrival, bytes, &mut take),
            None => {
                take(bytes);
                true
            }
        };
        if !is_taken {
            watch.other(arrival, NotTs::Garbage);
        }
        if std::mem::replace(hurries, packer.hurries()) != packer.hurries() {
            watch.hurried(arrival);
        }
    }

    pub(super) fn look(&mut self, now: Instant, out: LiveSink<'_>) -> Option<SourceState> {
        let Self { reorder, packer, watch, .. } = self;
        if let Some(reorder) = reorder {
            let mut take = |payload: &[u8]| {
                if packer.push(now, payload, out).is_ok() {
                    watch.media(now);
                }
            };
            reorder.expire(now, &mut take);
        }
        packer.flush(now, out);
        watch.look(now)
    }
}
