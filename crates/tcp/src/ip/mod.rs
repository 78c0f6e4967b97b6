//! The layer between TCP and a device that carries frames: Ethernet or bare IP, IPv4 and IPv6, ICMP, neighbours. No I/O, no clock.
//!
//! ```text
//!   frame ──► input ──► Segment(..)  for Stack::input
//!                  ├──► Error(..)    for Stack::icmp
//!                  ├──► Done         (what has to be answered waits for `output`)
//!                  └──► ForKernel
//!   Out of Stack::output ──► headers ──► frame
//!   protocol(now), then output ──► own frames: ARP, neighbour discovery, echo replies, segments that waited for a neighbour
//! ```
//!
//! | file | holds |
//! | --- | --- |
//! | `settings` | link, addresses, gateways |
//! | `counters` | what became of frames |
//! | `input`, `link`, `v4`, `v6` | a frame comes in: its headers |
//! | `icmp` | echo requests and errors, both families |
//! | `arp`, `nd` | messages about neighbours |
//! | `answer` | answers to them, and own announcements |
//! | `neighbours` | the table of neighbours, their states, the order of eviction |
//! | `resolve` | segments that wait for a neighbour, solicitations |
//! | `output` | headers of segments that go out |
//! | `frames` | memory of own frames |

mod addresses;
mod answer;
mod arp;
mod counters;
mod frames;
mod icmp;
mod input;
mod link;
mod nd;
mod neighbours;
mod output;
mod rate;
mod resolve;
#[cfg(test)]
mod rig;
mod settings;
mod v4;
mod v6;

use millrace_core::time::Instant;

pub use self::counters::IpCounters;
pub use self::settings::{Address, LinkLayer, Settings, SettingsError};
use crate::limits::{ECHO_REPLIES_PER_SECOND, OWN_FRAMES, SOLICITS_PER_SECOND};

use self::addresses::Addresses;
use self::answer::Announcements;
use self::frames::Frames;
use self::link::LinkTemplate;
use self::neighbours::Neighbours;
use self::output::{Recent, Templates};
use self::rate::Rate;
use crate::keyed::HashKey;
use crate::stack::{Arrived, IcmpError};

/// Classification of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Incoming<'f> {
    /// A segment for [`Stack::input`](crate::stack::Stack::input). Its checksum has not been looked at.
    Segment(Arrived<'f>),
    /// An error that quotes a segment of an own address, for [`Stack::icmp`](crate::stack::Stack::icmp).
    Error(IcmpError),
    /// Nothing that anybody else has to know of. It may have been answered: [`Interface::output`].
    Done,
    /// Dropped; [`IpCounters`] gives the reason.
    Dropped,
    /// Nothing for this layer: as if it had not been looked at.
    ForKernel,
}

/// What became of a segment that goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Number of bytes written.
    Written(usize),
    /// It was copied, and goes when its neighbour is found: [`Interface::output`].
    Waiting,
    /// Dropped, as a network would: no route, or no room. [`IpCounters`] gives the reason.
    Dropped,
}

/// An interface: the layer below one [`Stack`](crate::stack::Stack).
///
/// A turn of its host: [`input`](Self::input) for each frame, [`protocol`](Self::protocol) once, [`headers`](Self::headers) or
/// [`frame`](Self::frame) for each segment of [`Stack::output`](crate::stack::Stack::output), [`output`](Self::output) once.
pub struct Interface {
    link: LinkTemplate,
    addresses: Addresses,
    scope: u32,
    hop_limit: u8,
    mtu: u16,
    answers_echo: bool,
    neighbours: Neighbours,
    recent: Recent,
    frames: Frames,
    announcements: Announcements,
    echo_rate: Rate,
    solicit_rate: Rate,
    templates: Templates,
    counters: IpCounters,
}

impl Interface {
    /// Creates an interface that knows no neighbour yet. All its memory is taken here. Its
    /// addresses are announced from `now` on.
    ///
    /// # Errors
    /// Reports impossible settings.
    pub fn new(settings: &Settings, now: Instant) -> Result<Self, SettingsError> {
        settings.check()?;
        let addresses = Addresses::new(settings);
        let link = LinkTemplate::new(settings.link);
        let places = if link.has_neighbours() { settings.neighbours } else { 0 };
        let key = HashKey::new(settings.secret);
        Ok(Self {
            neighbours: Neighbours::new(key, places, addresses.gateways()),
            recent: Recent::NONE,
            frames: Frames::new(OWN_FRAMES, link.bytes() + usize::from(settings.mtu)),
            announcements: Announcements::new(link.has_neighbours(), addresses.count(), now),
            echo_rate: Rate::new(ECHO_REPLIES_PER_SECOND),
            solicit_rate: Rate::new(SOLICITS_PER_SECOND),
            templates: Templates::new(settings.hop_limit, settings.dscp, key.strong(&[0])),
            counters: IpCounters::default(),
            link,
            addresses,
            scope: settings.scope,
            hop_limit: settings.hop_limit,
            mtu: settings.mtu,
            answers_echo: settings.answers_echo,
        })
    }

    /// Returns the counters of events until now.
    pub fn counters(&self) -> &IpCounters {
        &self.counters
    }

    /// Longest frame.
    pub fn frame_bytes(&self) -> usize {
        self.link.bytes() + usize::from(self.mtu)
    }

    /// Everything that the time has brought: solicitations, probes, announcements.
    pub fn protocol(&mut self, now: Instant) {
        self.fire_neighbours(now);
        self.announce(now);
    }

    /// When the next turn has something to do even if no frame comes in.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.frames.is_empty() {
            return Some(now);
        }
        [self.neighbours.next_due(), self.announcements.due()].into_iter().flatten().min()
    }

    /// Shows own frames to the device until it has no room for one (`send` returns false); how many went.
    pub fn output(&mut self, send: &mut impl FnMut(&[u8]) -> bool) -> usize {
        let mut count = 0;
        while let Some(frame) = self.frames.front()
            && send(frame)
        {
            self.frames.pop();
            count += 1;
        }
        count
    }
}
