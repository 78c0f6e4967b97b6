//! Lease and session make a burst: headers are patched where a viewer has a timeline of its own, payload is neither
//! copied nor read.
//!
//! The extent holds complete datagrams with the RTP headers of the title's shared timeline. A run whose numbers agree with
//! it is sent those bytes as they lie ([`millrace_core::seam::Payload::Wire`]). Any other gets twelve bytes a packet written into
//! scratch memory ([`millrace_core::seam::Payload::Patched`]): sequence number, timestamp and SSRC of the viewer, made from the
//! packet's stored metadata, so that not even the shared header is read.

use millrace_core::limits::{FRAME_PREFIX_BYTES, MAX_BURST_PACKETS, MAX_TCP_WRITE_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentContent, Lease};
use millrace_core::seam::ByteRange;
use millrace_core::time::MediaTicks;

use crate::batch::{Burst, EntryContent};
use crate::stream::HotStream;
use crate::types::RunMedia;

/// Memory for the headers of one burst.
pub(crate) const HEADERS_BYTES: usize = MAX_BURST_PACKETS * RTP_HEADER_BYTES;

/// Media times of `count` packets of `lease` from packet `place` on.
#[inline]
pub(crate) fn times(lease: &Lease, place: u32, count: u32) -> impl Iterator<Item = MediaTicks> {
    lease.metas(place, count).iter().map(|&bytes| PacketMeta::from_bytes(bytes).time())
}

/// Of `left` packets from `place` on: how many are missing before the first that is there; and, if none is, how many there
/// are before the next that is missing.
#[inline]
pub(crate) fn holes(lease: &Lease, place: u32, left: u32) -> (u32, u32) {
    if lease.content().spare == 0 {
        return (0, left);
    }
    let missing = |bytes: &&[u8; 8]| PacketMeta::from_bytes(**bytes).is_missing();
    let metas = lease.metas(place, left);
    match metas.iter().take_while(missing).count() as u32 {
        0 => (0, metas.iter().take_while(|meta| !missing(meta)).count() as u32),
        count => (count, left),
    }
}

/// Most packets that one write to a TCP connection takes.
pub(crate) fn packets_per_write(layout: WireLayout) -> u32 {
    (MAX_TCP_WRITE_BYTES / (FRAME_PREFIX_BYTES + layout.slot_bytes())).max(1) as u32
}

/// Writes the headers that `stream`'s packets carry for `count` packets from `place` on into `headers`.
///
/// # Panics
/// If `headers` is shorter than 12 bytes for each.
pub(crate) fn write_headers(stream: &HotStream, lease: &Lease, place: u32, count: u32, headers: &mut [u8]) {
    let first = lease.content().first_packet + place;
    let (headers, _) = headers[..count as usize * RTP_HEADER_BYTES].as_chunks_mut::<RTP_HEADER_BYTES>();
    for ((out, time), packet) in headers.iter_mut().zip(times(lease, place, count)).zip(first..) {
        let mut header = stream.timeline.header(packet, time);
        header.sequence = stream.sequence(packet);
        *out = header.emit();
    }
}

/// Bytes of the packets of `burst`: all that an entry sends, or its first ones.
pub(crate) fn bytes_of(what: EntryContent, lease: &Lease, burst: Burst) -> u64 {
    let Burst { place, count, .. } = burst;
    match what {
        EntryContent::Bytes { burst: whole, head, tail } => {
            ByteRange { lease, place, count: whole.count, head, tail }.bytes_in(0, count) as u64
        }
        EntryContent::Media { .. } | EntryContent::Report { .. } => {
            datagram_bytes(&lease.content(), place, count)
        }
    }
}

/// Bytes of `count` datagrams from `place` on: all of one length, but for a short last one.
fn datagram_bytes(content: &ExtentContent, place: u32, count: u32) -> u64 {
    let full = u64::from(count) * content.layout.slot_bytes() as u64;
    let short = content.layout.packet_bytes() as u64 - u64::from(content.last_packet_bytes);
    if place + count == content.packets { full - short } else { full }
}

/// Whether a lease may not cover all that an extent will have: of one that grows, or the last one of a title whose end is not known.
pub(crate) fn is_part(media: &RunMedia, lease: &Lease) -> bool {
    let is_short = lease.content().packets < media.layout.packets_per_extent();
    lease.is_partial() || is_endless(media) && is_short
}

/// Whether the title is written while it is sent: it has no last packet yet.
pub(crate) fn is_endless(media: &RunMedia) -> bool {
    media.packets == u32::MAX
}

/// Whether an extent holds what extent `number` of a title must hold, at least up to the packet at `place` if it still grows: everything
/// that is later computed from it stays within its bounds then.
pub(crate) fn fits(media: &RunMedia, (number, place): (u32, u32), lease: &Lease) -> bool {
    let content = lease.content();
    let per_extent = media.layout.packets_per_extent();
    let first = u64::from(number) * u64::from(per_extent);
    let left = u64::from(media.packets).saturating_sub(first);
    let last_bytes = usize::from(content.last_packet_bytes);
    content.title == media.title
        && content.number == number
        && content.layout == media.layout
        && u64::from(content.first_packet) == first
        && (u64::from(content.packets) == left.min(u64::from(per_extent)) || is_part(media, lease))
        && u64::from(content.packets) <= left
        && content.packets > place
        && (1..=media.layout.packet_bytes()).contains(&last_bytes)
}
