//! The contenders: the framing versions, and their checksum procedures by themselves.

use crate::framing::procedures::{Overlay, in_cksum, in_quick_cksum, in_quick_cksum_udp_ip_hdr};
use crate::framing::{
    Connection, Datagram, Prebuilt, VERSIONS, Version, full_fast, pre_output, quick_output, v4,
};
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::ChecksumAlgorithm;

use super::stream::PacketStream;
use crate::frame::ticks::TickProbe;

/// A cache line more than the longest header.
pub(super) type Room = [u8; 128];

/// The traditional stack.
pub(super) const FULL: &str = "full";
/// The newest version, by the name that it has in every table.
pub(super) const V4: &str = "v4";
/// The same when the payload's sum is not at hand but in the metadata.
pub(super) const V4_FETCHED: &str = "v4, sum from metadata";
/// The version that fills fields one by one.
pub(super) const V3: &str = "v3";
/// The first version that does not look at payloads.
pub(super) const V1: &str = "v1";
/// The checksum procedure of the stacks of old.
pub(super) const IN_CKSUM: &str = "in_cksum, scalar";
/// That of versions 2 to 4.
pub(super) const IN_QUICK_CKSUM_UDP_IP_HDR: &str = "in_QuickCksumUdpIpHdr";

/// One thing that is done to a datagram.
#[derive(Clone, Copy)]
pub(super) enum Task {
    Version(Version),
    /// Version 4, which looks up the stored sum in metadata that may be in no cache.
    V4Fetched,
    /// The first design's half per viewer.
    QuickOutput,
    /// The checksum over everything.
    Cksum(ChecksumAlgorithm),
    /// Over the headers, the payload's sum being known.
    QuickCksum,
    /// From stored sums only.
    QuickCksumUdpIpHdr,
}

/// The framing versions, traditional ones first.
pub(super) fn versions() -> Vec<(&'static str, Task)> {
    let mut all: Vec<_> = VERSIONS.iter().map(|&(name, version)| (name, Task::Version(version))).collect();
    all.insert(1, ("full, fastest sum", Task::Version(full_fast)));
    all.insert(2, ("quick_output (2000)", Task::QuickOutput));
    all.push((V4_FETCHED, Task::V4Fetched));
    all
}

/// The checksum procedures: the traditional one in every form that this processor can do, then those with stored sums.
pub(super) fn procedures() -> Vec<(&'static str, Task)> {
    let forms = [
        (IN_CKSUM, ChecksumAlgorithm::Scalar),
        ("in_cksum, 64-bit carry", ChecksumAlgorithm::Carry64),
        ("in_cksum, portable", ChecksumAlgorithm::Portable),
        ("in_cksum, AVX2", ChecksumAlgorithm::Avx2),
        ("in_cksum, AVX-512", ChecksumAlgorithm::Avx512),
    ];
    let forms = forms.into_iter().filter(|(_, kind)| kind.is_available());
    let mut all: Vec<_> = forms.map(|(name, kind)| (name, Task::Cksum(kind))).collect();
    all.extend([("in_QuickCksum", Task::QuickCksum), (IN_QUICK_CKSUM_UDP_IP_HDR, Task::QuickCksumUdpIpHdr)]);
    all
}

/// Some datagrams in the form that a [`Task`] needs, made outside the timed part. Only the list
/// that the task needs has entries.
pub(super) struct Prepared<'a> {
    datagrams: Vec<Datagram<'a>>,
    placed: Vec<(usize, Datagram<'a>)>,
    metas: &'a [[u8; PacketMeta::BYTES]],
    overlays: Vec<(Overlay, Datagram<'a>)>,
    prebuilts: Vec<(Prebuilt, u16)>,
}

/// How each piece of work is timed: all in one go, or each between two probes.
pub(super) trait Timing {
    fn each<T>(&mut self, items: &[T], work: impl Fn(&T, &mut Room) -> usize);
}

/// All in one go.
pub(super) struct OneGo<'a> {
    pub(super) out: &'a mut [Room],
    /// Sum of the values that the work returned.
    pub(super) returned: usize,
}

impl Timing for OneGo<'_> {
    #[inline]
    fn each<T>(&mut self, items: &[T], work: impl Fn(&T, &mut Room) -> usize) {
        // The headers go round in a small piece of memory, as in a ring of frames.
        for items in items.chunks(self.out.len()) {
            for (item, out) in items.iter().zip(&mut *self.out) {
                self.returned = self.returned.wrapping_add(work(item, out));
            }
        }
    }
}

/// Each between two probes.
pub(super) struct Probed<'a> {
    pub(super) probe: TickProbe,
    pub(super) out: &'a mut [Room],
    pub(super) ticks: &'a mut Vec<f32>,
}

impl Timing for Probed<'_> {
    #[inline]
    fn each<T>(&mut self, items: &[T], work: impl Fn(&T, &mut Room) -> usize) {
        for (number, item) in items.iter().enumerate() {
            let out = &mut self.out[number % self.out.len()];
            let (ticks, returned) = self.probe.time(|| work(std::hint::black_box(item), out));
            std::hint::black_box((returned, out));
            self.ticks.push(ticks as f32);
        }
    }
}

impl Task {
    /// Packets `numbers` of the stream, made ready.
    pub(super) fn prepare<'a>(
        self,
        connection: &Connection,
        stream: &'a PacketStream<'_>,
        numbers: std::ops::Range<usize>,
    ) -> Prepared<'a> {
        let (datagrams, placed, overlays, prebuilts) = Default::default();
        let mut prepared = Prepared { datagrams, placed, metas: stream.metas(), overlays, prebuilts };
        let stored = numbers.clone().map(|number| stream.datagram(number));
        match self {
            Self::Version(_) | Self::QuickCksumUdpIpHdr => prepared.datagrams = stored.collect(),
            Self::V4Fetched => {
                let placed =
                    numbers.map(|number| (stream.place(number), stream.datagram_without_sum(number)));
                prepared.placed = placed.collect();
            }
            Self::QuickOutput => {
                let prebuilt =
                    |d: Datagram<'_>| Some((pre_output(connection.source(), &d.rtp, d.payload)?, d.ip_id));
                prepared.prebuilts = stored.filter_map(prebuilt).collect();
            }
            Self::Cksum(_) | Self::QuickCksum => {
                prepared.overlays = stored.filter_map(|d| Some((Overlay::new(connection, &d)?, d))).collect();
            }
        }
        prepared
    }

    /// Does it to all: header bytes written, or the checksum.
    #[inline]
    pub(super) fn run(self, connection: &Connection, prepared: &Prepared<'_>, timing: &mut impl Timing) {
        let c = connection;
        match self {
            Self::Version(version) => timing.each(&prepared.datagrams, |d, out| version(c, d, out)),
            Self::V4Fetched => timing.each(&prepared.placed, |&(place, datagram), out| {
                let payload_sum = PacketMeta::from_bytes(prepared.metas[place]).sum();
                v4(c, &Datagram { payload_sum, ..datagram }, out)
            }),
            Self::QuickOutput => {
                timing.each(&prepared.prebuilts, |(prebuilt, ip_id), out| {
                    quick_output(c, prebuilt, *ip_id, out)
                });
            }
            Self::Cksum(kind) => {
                timing.each(&prepared.overlays, |(overlay, d), _| in_cksum(kind, overlay, d.payload).into());
            }
            Self::QuickCksum => {
                timing.each(&prepared.overlays, |(overlay, d), _| {
                    in_quick_cksum(overlay, d.payload_sum).into()
                });
            }
            Self::QuickCksumUdpIpHdr => {
                timing.each(&prepared.datagrams, |d, _| in_quick_cksum_udp_ip_hdr(c, d).into());
            }
        }
    }
}
