//! One viewer: from the first announcement to the last packet.

use std::io;
use std::path::Path;

use millrace_core::time::{Instant, MediaTicks};
use millrace_nvod::limits::{ANNOUNCE_NS, GUARD_NS};
use millrace_nvod::{Announcement, ChannelJoin, PlacedPacket};

use super::hold::PacketHold;
use crate::limits::NVOD_MEMORY_BYTES;

/// A packet whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayedPacket {
    /// Number in the title; those left out are lost.
    pub number: u32,
    /// Media time.
    pub time: MediaTicks,
}

/// Packets that were of no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UselessPackets {
    /// Not of this cast, or not of this title.
    pub foreign: u64,
    /// Held or played already: channels repeat what others have brought.
    pub again: u64,
    /// More than the plan needs.
    pub overflow: u64,
}

/// See the module's text.
pub struct Viewing {
    announced: Announcement,
    /// Position of the cast at a moment, by the quickest announcement: slot 0 may have begun before the clock did.
    position_ns: u64,
    seen: Instant,
    playback_slot: u64,
    joins: Vec<ChannelJoin>,
    hold: PacketHold,
    /// The next packet to be played.
    next: u32,
    useless: UselessPackets,
    /// Packets are played as soon as all before them were.
    is_eager: bool,
}

impl Viewing {
    /// Begins with the first slot that can still be heard from its beginning. `is_eager`: to a file nothing needs to be in time.
    ///
    /// # Errors
    /// If the file for held packets cannot be made in `folder`.
    pub fn new(now: Instant, announced: Announcement, is_eager: bool, folder: &Path) -> io::Result<Self> {
        let plan = &announced.plan;
        let first_slot = plan.slot_from(announced.position_ns + GUARD_NS);
        let needed = plan.buffer_packets(announced.largest_segment).min(announced.packets.into());
        let hold = PacketHold::new(needed as u32, NVOD_MEMORY_BYTES, folder)?;
        Ok(Self {
            position_ns: announced.position_ns,
            seen: now,
            playback_slot: plan.playback_slot(first_slot),
            joins: plan.joins(first_slot),
            announced,
            hold,
            next: 0,
            useless: UselessPackets::default(),
            is_eager,
        })
    }

    /// The announcement that it began with.
    pub fn announced(&self) -> &Announcement {
        &self.announced
    }

    /// Takes another announcement: one that came more quickly corrects the clock. More than the time
    /// between two of them is no correction.
    pub fn announce(&mut self, now: Instant, announcement: &Announcement) {
        // Signed: by how much slot 0 began earlier than it seemed.
        let zero = |at: Instant, position_ns: u64| i128::from(at.0) - i128::from(position_ns);
        let earlier = zero(self.seen, self.position_ns) - zero(now, announcement.position_ns);
        let is_correction = (1..=i128::from(ANNOUNCE_NS + GUARD_NS)).contains(&earlier);
        if announcement.session == self.announced.session && now < self.start() && is_correction {
            (self.seen, self.position_ns) = (now, announcement.position_ns);
        }
    }

    fn slot_start(&self, slot: u64) -> Instant {
        let at = self.seen.plus_ns(self.announced.plan.slot_start_ns(slot));
        Instant(at.0.saturating_sub(self.position_ns))
    }

    /// When the first packet is played.
    pub fn start(&self) -> Instant {
        self.slot_start(self.playback_slot).plus_ns(GUARD_NS)
    }

    /// The channels to hear now.
    pub fn channels(&self, now: Instant) -> impl Iterator<Item = u8> {
        self.joins
            .iter()
            .filter(move |join| {
                now.plus_ns(GUARD_NS) >= self.slot_start(join.from_slot)
                    && now < self.slot_start(join.until_slot).plus_ns(GUARD_NS)
            })
            .map(|join| join.channel)
    }

    /// The time of the next join, leave or packet.
    pub fn poll_at(&self, now: Instant) -> Option<Instant> {
        let joins = self.joins.iter().flat_map(|join| {
            let from = Instant(self.slot_start(join.from_slot).0.saturating_sub(GUARD_NS));
            [from, self.slot_start(join.until_slot).plus_ns(GUARD_NS)]
        });
        let due = self.hold.first().map(|(_, time)| self.due(time));
        joins.filter(|at| *at > now).chain(due).min()
    }

    fn due(&self, time: u32) -> Instant {
        self.start().plus_ns(MediaTicks(time.into()).to_ns())
    }

    /// Takes a datagram of a channel.
    ///
    /// # Errors
    /// If the file for held packets cannot be written.
    pub fn receive(&mut self, datagram: &[u8]) -> io::Result<()> {
        let packet = PlacedPacket::parse(datagram).filter(|packet| {
            packet.header.ssrc == self.announced.session
                && !packet.payload.is_empty()
                && packet.payload.len() == self.announced.payload_bytes(packet.number)
                && packet.time.to_ns() <= self.announced.plan.request().film_ns
        });
        let Some(packet) = packet else {
            self.useless.foreign += 1;
            return Ok(());
        };
        if packet.number < self.next || self.hold.has(packet.number) {
            self.useless.again += 1;
        } else if !self.hold.put(packet.number, packet.time.0 as u32, packet.payload)? {
            self.useless.overflow += 1;
        }
        Ok(())
    }

    /// The next packet whose time has come; its payload is appended to `out`. Packets before it that did not come are lost.
    ///
    /// # Errors
    /// If the file for held packets cannot be read.
    pub fn play(&mut self, now: Instant, out: &mut Vec<u8>) -> io::Result<Option<PlayedPacket>> {
        let Some((number, time)) = self.hold.first() else { return Ok(None) };
        if now < self.due(time) && !(self.is_eager && number == self.next) {
            return Ok(None);
        }
        self.hold.take(number, out)?;
        self.next = number + 1;
        Ok(Some(PlayedPacket { number, time: MediaTicks(time.into()) }))
    }

    /// Whether all packets were played, or none will come any more.
    pub fn is_over(&self, now: Instant) -> bool {
        let end = self.start().plus_ns(self.announced.plan.request().film_ns).plus_ns(GUARD_NS);
        self.is_whole() || (now >= end && self.hold.is_empty())
    }

    /// Whether the last packet was played.
    pub fn is_whole(&self) -> bool {
        self.next == self.announced.packets
    }

    /// Packets that were of no use.
    pub fn useless(&self) -> UselessPackets {
        self.useless
    }

    /// Most packets held at once.
    pub fn most_held(&self) -> usize {
        self.hold.most()
    }
}

#[cfg(test)]
#[path = "viewing_tests.rs"]
mod tests;
