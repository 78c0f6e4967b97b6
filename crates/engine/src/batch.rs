//! The data to send now: plain descriptors over the engine's own leases and scratch memory.
//!
//! The leases live here and not beside the streams' state, so that the packet I/O can read a batch while nothing else of
//! the engine is in its hands.

use millrace_core::ids::StreamId;
use millrace_core::limits::{MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::pool::Lease;
use millrace_core::seam::{ByteRange, Dest, Payload, PayloadSource, Transmit, TransmitBatch};
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, SenderReport, write_sender_report};

use crate::frame::{HEADERS_BYTES, write_headers};
use crate::stream::{HotStream, flag};

/// Packets that leave together: `count` of them from `place` of an extent on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) extent: u32,
    pub(crate) place: u32,
    pub(crate) count: u32,
}

/// The content of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EntryContent {
    /// Packets of the extent in slot `extent % 2`.
    Media { burst: Burst, patched: bool },
    /// Their bytes, without `head` of the first packet and `tail` of the last.
    Bytes { burst: Burst, head: u16, tail: u16 },
    /// `len` bytes of the entry's report memory.
    Report { len: usize, bye: bool },
}

/// One entry of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry {
    pub(crate) stream: StreamId,
    /// When it should have left.
    pub(crate) departure: Instant,
    pub(crate) what: EntryContent,
}

/// The part of a stream that a batch needs: two cache lines, side by side.
#[repr(C, align(128))]
pub(crate) struct BatchStream {
    /// The extents that it holds: extent `e` in slot `e % 2`.
    pub(crate) leases: [Option<Lease>; 2],
    /// Where its packets go.
    pub(crate) dest: Dest,
}

const _: () = assert!(size_of::<BatchStream>() == 128);

/// The batch, and the side tables that it is read from: one row for each stream, scratch memory for each entry.
pub(crate) struct Batch {
    entries: Box<[BatchEntry]>,
    len: usize,
    /// When it was filled.
    pub(crate) taken: Instant,
    pub(crate) rows: Box<[BatchStream]>,
    headers: Box<[[u8; HEADERS_BYTES]]>,
    reports: Box<[[u8; MAX_REPORT_BYTES]]>,
}

impl Batch {
    pub(crate) fn new(streams: usize) -> Self {
        let nobody = StreamId { index: 0, generation: 0 };
        let entry = BatchEntry {
            stream: nobody,
            departure: Instant(0),
            what: EntryContent::Report { len: 0, bye: false },
        };
        let nowhere =
            Dest::Interleaved { conn: millrace_core::ids::ConnId(u32::MAX), rtp_channel: 0, rtcp_channel: 0 };
        Self {
            entries: vec![entry; MAX_BATCH_BURSTS].into(),
            len: 0,
            taken: Instant(0),
            rows: (0..streams).map(|_| BatchStream { leases: [None, None], dest: nowhere }).collect(),
            headers: vec![[0; HEADERS_BYTES]; MAX_BATCH_BURSTS].into(),
            reports: vec![[0; MAX_REPORT_BYTES]; MAX_BATCH_BURSTS].into(),
        }
    }

    /// Entries that still fit.
    pub(crate) fn room(&self) -> usize {
        self.entries.len() - self.len
    }

    /// Empties it and returns how many entries it had; they stay readable until the next is pushed.
    pub(crate) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.len)
    }

    pub(crate) fn entry(&self, at: usize) -> BatchEntry {
        self.entries[at]
    }

    /// The extent in slot `extent % 2` of row `row`, if it is held.
    #[inline]
    pub(crate) fn lease(&self, row: u32, extent: u32) -> Option<&Lease> {
        self.rows[row as usize].leases[(extent % 2) as usize].as_ref()
    }

    /// Adds packets of a lease that the stream holds. The batch must not be full.
    #[inline]
    pub(crate) fn push_media(&mut self, id: StreamId, stream: &HotStream, departure: Instant, burst: Burst) {
        let patched = stream.has(flag::PATCHED);
        if patched
            && let Some(lease) = self.rows[id.index as usize].leases[(burst.extent % 2) as usize].as_ref()
        {
            write_headers(stream, lease, burst.place, burst.count, &mut self.headers[self.len]);
        }
        self.entries[self.len] =
            BatchEntry { stream: id, departure, what: EntryContent::Media { burst, patched } };
        self.len += 1;
    }

    /// Adds the same as bytes. The batch must not be full.
    pub(crate) fn push_bytes(
        &mut self,
        stream: StreamId,
        departure: Instant,
        burst: Burst,
        head: u16,
        tail: u16,
    ) {
        self.entries[self.len] =
            BatchEntry { stream, departure, what: EntryContent::Bytes { burst, head, tail } };
        self.len += 1;
    }

    /// Adds a report, or a BYE. The batch must not be full.
    pub(crate) fn push_report(
        &mut self,
        id: StreamId,
        due: Instant,
        report: &SenderReport,
        cname: &str,
        bye: bool,
    ) {
        let len = write_sender_report(&mut self.reports[self.len], report, cname, bye);
        self.entries[self.len] =
            BatchEntry { stream: id, departure: due, what: EntryContent::Report { len, bye } };
        self.len += 1;
    }
}

impl TransmitBatch for Batch {
    fn len(&self) -> usize {
        self.len
    }

    /// # Panics
    /// If there is no such entry.
    fn get(&self, index: usize) -> Transmit<'_> {
        let entry = &self.entries[..self.len][index];
        let row = entry.stream.index as usize;
        let payload = match entry.what {
            EntryContent::Report { len, .. } => Payload::Rtcp(&self.reports[index][..len]),
            EntryContent::Media { burst: Burst { extent, place, count }, patched } => {
                let lease = self.lease(entry.stream.index, extent).expect("held while it is in the batch");
                let (bytes, segment) = (lease.wire(place, count), lease.content().layout.slot_bytes());
                if patched {
                    let headers = &self.headers[index][..count as usize * RTP_HEADER_BYTES];
                    Payload::Patched { headers, bytes, segment }
                } else {
                    Payload::Wire { bytes, segment }
                }
            }
            EntryContent::Bytes { burst: Burst { extent, place, count }, head, tail } => {
                let lease = self.lease(entry.stream.index, extent).expect("held while it is in the batch");
                Payload::Bytes(ByteRange { lease, place, count, head, tail })
            }
        };
        Transmit { stream: entry.stream, dest: self.rows[row].dest, payload }
    }

    /// # Panics
    /// If there is no such entry.
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        let entry = &self.entries[..self.len][index];
        match entry.what {
            EntryContent::Report { .. } => None,
            EntryContent::Media { burst: Burst { extent, place, .. }, .. }
            | EntryContent::Bytes { burst: Burst { extent, place, .. }, .. } => {
                self.lease(entry.stream.index, extent).map(|lease| PayloadSource { lease, place })
            }
        }
    }
}
