//! A scheme for one title: its slots, its figures, and the channels that a viewer hears.

use crate::limits::{GUARD_NS, MAX_CHANNELS, MAX_FILM_NS, MAX_SEGMENTS, MIN_SLOT_NS, SKYSCRAPER_WIDTHS};
use crate::scheme::{Channel, Layout, Rotation, Scheme, lay_out};

/// The numbers that a plan is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanRequest {
    /// The scheme.
    pub scheme: Scheme,
    /// Channels, each at the playback rate.
    pub channels: u8,
    /// Length of the title.
    pub film_ns: u64,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many channels.
    #[error("channels: got {0}; allowed are 1 to {MAX_CHANNELS}")]
    Channels(u8),
    /// Nothing, or too much for the clock of its packets.
    #[error("length: got {0} ns; allowed are {MIN_SLOT_NS} ns to 12 hours")]
    Length(u64),
    /// A width that is none of the series.
    #[error("skyscraper: got width {0}; allowed are 2, 5, 12, 25 and 52")]
    Width(u16),
    /// The segments would be too short or too many.
    #[error(
        "{scheme} with {channels} channels: needs {segments} segments, this title allows {most}; use fewer channels"
    )]
    Segments {
        /// The scheme.
        scheme: Scheme,
        /// Its channels.
        channels: u8,
        /// Segments that it has at least.
        segments: u64,
        /// Segments that there may be.
        most: u32,
    },
}

/// A channel that a viewer hears, from the beginning of one slot to the beginning of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelJoin {
    /// Number of the channel, from 0.
    pub channel: u8,
    /// The first slot that is needed.
    pub from_slot: u64,
    /// The first slot that is no longer needed.
    pub until_slot: u64,
}

/// See the module's text. Slots are counted from the beginning of the cast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    request: PlanRequest,
    layout: Layout,
    segments: u32,
    slot_ns: u64,
    buffer_slots: u32,
}

impl Plan {
    /// Makes the plan.
    ///
    /// # Errors
    /// If a number is out of its range.
    pub fn new(request: PlanRequest) -> Result<Self, PlanError> {
        let PlanRequest { scheme, channels, film_ns } = request;
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(PlanError::Channels(channels));
        }
        if !(MIN_SLOT_NS..=MAX_FILM_NS).contains(&film_ns) {
            return Err(PlanError::Length(film_ns));
        }
        if let Scheme::Skyscraper { width } = scheme
            && !SKYSCRAPER_WIDTHS.contains(&width)
        {
            return Err(PlanError::Width(width));
        }
        let most = (film_ns / MIN_SLOT_NS).min(u64::from(MAX_SEGMENTS)) as u32;
        let layout = lay_out(scheme, channels, most).map_err(|segments| PlanError::Segments {
            scheme,
            channels,
            segments,
            most,
        })?;
        let segments = layout.segments();
        let buffer_slots = match scheme {
            Scheme::Staggered => 0,
            Scheme::Skyscraper { .. } => {
                layout.channels.iter().map(|channel| channel.rotations[0].count).max().unwrap_or(1) - 1
            }
            Scheme::Pagoda | Scheme::FixedDelay => packed_buffer_slots(&layout),
        };
        let slot_ns = film_ns.div_ceil(u64::from(segments));
        Ok(Self { request, layout, segments, slot_ns, buffer_slots })
    }

    /// The numbers that it was made from.
    pub fn request(&self) -> PlanRequest {
        self.request
    }

    /// Channels.
    pub fn channels(&self) -> u8 {
        self.request.channels
    }

    /// Segments of the title, one slot each; the last one may be shorter.
    pub fn segments(&self) -> u32 {
        self.segments
    }

    /// Length of a slot.
    pub fn slot_ns(&self) -> u64 {
        self.slot_ns
    }

    /// The segment of a slot.
    pub fn segment_at(&self, channel: u8, slot: u64) -> u32 {
        let channel = &self.layout.channels[usize::from(channel)];
        let turn_slots = channel.rotations.len() as u64;
        let Rotation { first, count } = channel.rotations[(slot % turn_slots) as usize];
        let turn = slot / turn_slots + u64::from(channel.shift);
        first + (turn % u64::from(count)) as u32
    }

    /// Longest time from a viewer's arrival to the first picture, without the time that networks take.
    pub fn delay_ns(&self) -> u64 {
        self.slot_ns * u64::from(self.layout.wait)
    }

    /// The same on average.
    pub fn mean_delay_ns(&self) -> u64 {
        self.delay_ns() - self.slot_ns / 2
    }

    /// Slots that a viewer waits, the one of its arrival among them.
    pub fn wait_slots(&self) -> u32 {
        self.layout.wait
    }

    /// Channels that a viewer hears at once, at most.
    pub fn receive_channels(&self) -> u8 {
        match self.request.scheme {
            Scheme::Staggered => 1,
            Scheme::Skyscraper { .. } => self.channels().min(2),
            Scheme::Pagoda | Scheme::FixedDelay => self.channels(),
        }
    }

    /// Slots of media that a viewer holds at most. For skyscrapers the figure of the paper: the width less one; the tests try it.
    pub fn buffer_slots(&self) -> u32 {
        self.buffer_slots
    }

    /// Packets that a receiver holds at most, if a segment has up to `largest`: with segments that are partly there, and those of
    /// [`GUARD_NS`] before and after.
    pub fn buffer_packets(&self, largest: u32) -> u64 {
        let guard = GUARD_NS.div_ceil(self.slot_ns) * 2 + 1;
        let parts = (u64::from(self.receive_channels()) + 1) * guard;
        (u64::from(self.buffer_slots()) + parts).min(u64::from(self.segments)) * u64::from(largest)
    }

    /// The first slot that begins at `position_ns` or later.
    pub fn slot_from(&self, position_ns: u64) -> u64 {
        position_ns.div_ceil(self.slot_ns)
    }

    /// When a slot begins.
    pub fn slot_start_ns(&self, slot: u64) -> u64 {
        slot.saturating_mul(self.slot_ns)
    }

    /// The slot in which segment 0 is shown to a viewer ready at `first_slot`.
    pub fn playback_slot(&self, first_slot: u64) -> u64 {
        first_slot + u64::from(self.layout.wait) - 1
    }

    /// The channels that a viewer ready at `first_slot` hears: each segment in the last slot that is not too late. Ordered by time.
    pub fn joins(&self, first_slot: u64) -> Vec<ChannelJoin> {
        let playback = self.playback_slot(first_slot);
        let mut joins: Vec<_> = (0..self.channels())
            .filter(|&channel| {
                let is_staggered = self.request.scheme == Scheme::Staggered;
                !is_staggered || self.segment_at(channel, first_slot) == 0
            })
            .filter_map(|channel| self.join(channel, playback))
            .collect();
        joins.sort_by_key(|join| (join.from_slot, join.channel));
        joins
    }

    fn join(&self, channel: u8, playback: u64) -> Option<ChannelJoin> {
        let laid = &self.layout.channels[usize::from(channel)];
        let turn_slots = laid.rotations.len() as u64;
        let slots = laid.rotations.iter().zip(0u64..).flat_map(|(&Rotation { first, count }, within)| {
            (0..count).filter_map(move |number| {
                let latest = playback + u64::from(first + number);
                let turn = latest.checked_sub(within)? / turn_slots;
                let sent = (turn + u64::from(laid.shift)) % u64::from(count);
                let back = (sent + u64::from(count - number)) % u64::from(count);
                Some(turn.checked_sub(back)? * turn_slots + within)
            })
        });
        let (from, to) = slots.fold((u64::MAX, 0), |(from, to), slot| (from.min(slot), to.max(slot)));
        (from <= to).then_some(ChannelJoin { channel, from_slot: from, until_slot: to + 1 })
    }
}

/// Slots that all channels can have brought after each slot, less those shown. Both are straight lines within a slot.
fn packed_buffer_slots(layout: &Layout) -> u32 {
    let (wait, segments) = (layout.wait - 1, layout.segments());
    // Turns of the rotations of each channel, and the segments that these brought.
    let mut heard = vec![(0, 0); layout.channels.len()];
    let mut most = 0;
    for slots in 1..=wait + segments {
        let mut sum = 0;
        for ((turns, brought), Channel { rotations, .. }) in heard.iter_mut().zip(&layout.channels) {
            let turns_now = slots.div_ceil(rotations.len() as u32);
            if *turns != turns_now {
                *turns = turns_now;
                *brought = rotations.iter().map(|rotation| rotation.count.min(turns_now)).sum();
            }
            sum += slots.min(*brought);
        }
        most = most.max(sum.min(segments).saturating_sub(slots.saturating_sub(wait)));
    }
    most
}
