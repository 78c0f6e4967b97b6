//! What the service needs from outside, as traits: behind them stand the store, or a test.

use std::fmt;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::FecMatrix;
use super::seek::Presentation;
use crate::admission::CacheFigures;

/// A title as the control plane sees it.
#[derive(Clone)]
pub struct Entry {
    /// Its name, by which it is asked for.
    pub name: String,
    /// Media time that its packets take.
    pub duration: MediaTicks,
    /// What is known of its time stamps: how players count that do so in them, and when the last picture has been shown.
    pub presentation: Presentation,
    /// Mean bit rate of its transport stream.
    pub mean_rate: BitRate,
    /// Highest bit rate over one second.
    pub peak_rate: BitRate,
    /// Media packets.
    pub packets: u32,
    /// The RTP timeline that its viewers share.
    pub timeline: Timeline,
    /// How its packets lie in memory.
    pub layout: WireLayout,
    /// How its packets are protected, if they are: in the default packet size only.
    pub fec: Option<FecMatrix>,
    /// Where playing can begin.
    pub access: Arc<dyn AccessPoints>,
}

impl Entry {
    /// The end that is announced: when the last picture has been shown, which is after the last packet has come.
    pub fn end(&self) -> MediaTicks {
        self.presentation.end.map_or(self.duration, |end| end.max(self.duration))
    }

    /// The same without RTP headers, for receivers of plain datagrams; `None` if it cannot be had so.
    pub fn raw(&self) -> Option<Self> {
        Some(Self { layout: self.layout.raw()?, ..self.clone() })
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

/// A packet from which a decoder can start, and its media time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPoint {
    /// Where sending starts.
    pub packet: u32,
    /// Media time of that packet.
    pub time: MediaTicks,
}

/// From times to packets and back. All three are called while a viewer waits for a reply: they may read a page of a
/// file, not more.
pub trait AccessPoints: Send + Sync {
    /// The last access point at or before `time`; the title's beginning if there is none.
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint;
    /// First packet at or after `time`; the number of packets if there is none.
    fn packet_at(&self, time: MediaTicks) -> u32;
    /// Media time of a packet. `None` if it cannot be read: then the reply leaves out what must be exact or absent.
    fn time_of(&self, packet: u32) -> Option<MediaTicks>;
}

/// The titles. Called on the control thread between two requests: answers come from memory or from a small read.
pub trait Library: Send {
    /// The title of this name.
    fn find(&mut self, name: &str) -> Option<Entry>;
    /// The same title in packets of another size: packets, times, timeline and layout are those of that size. `None` if it
    /// cannot be had in it.
    fn sized(&mut self, entry: &Entry, packet_bytes: usize) -> Option<Entry> {
        (entry.layout.packet_bytes() == packet_bytes).then(|| entry.clone())
    }
    /// Opens it in the cache for one more viewer, in the packet size of the entry.
    ///
    /// # Errors
    /// The cache has no room for another title, or the title's files cannot be opened.
    fn open(&mut self, entry: &Entry) -> Result<TitleRef, OpenError>;
    /// Opens a parity track of it in the cache ([`super::FecMode::tracks`]), ready as FEC packets.
    ///
    /// # Errors
    /// As [`Library::open`], and when there is no such track.
    fn open_track(&mut self, entry: &Entry, track: u8) -> Result<Track, OpenError> {
        let _ = entry;
        Err(OpenError::Broken(format!("it has no parity track {track}")))
    }
    /// What is lost of a title of which so much is lost that it cannot be played: in words for viewers. `None`: nothing, or
    /// little enough.
    fn lost(&mut self, entry: &Entry) -> Option<String> {
        let _ = entry;
        None
    }
    /// What the cache has done so far, for admission; `None` if there is none.
    fn cache_figures(&self) -> Option<CacheFigures> {
        None
    }
    /// One viewer less; called once for each successful [`Library::open`] and [`Library::open_track`], after the engine has forgotten the stream.
    fn close(&mut self, title: TitleRef);
}

/// A parity track that is open in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Track {
    /// Its name there.
    pub title: TitleRef,
    /// FEC packets in it.
    pub packets: u32,
    /// How they lie in an extent.
    pub layout: WireLayout,
}

/// Why a title cannot be played although it is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Too many titles are open.
    #[error("too many titles are open at once; try again later")]
    Full,
    /// More members of its volume are lost than its parity makes up for; says which.
    #[error("{0}")]
    MembersLost(String),
    /// Its files are damaged or cannot be read: the reason is logged, not told.
    #[error("title cannot be opened: {0}")]
    Broken(String),
}
