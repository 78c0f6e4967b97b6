//! External interfaces of the service, as traits: the store or a test implements them.

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::matrix::FecMatrix;
use super::presentation::Presentation;
use crate::admission::CacheFigures;

/// A title as the control plane sees it.
#[derive(Clone)]
pub struct TitleEntry {
    /// Permanent identity. Another title may have its name later.
    pub id: TitleId,
    /// Its name, used to request it.
    pub name: String,
    /// Its display name.
    pub title: String,
    /// It was made from another title: it is sent in its place and cannot be requested by name
    /// ([`Library::derived`], [`Library::renditions`]).
    pub is_made: bool,
    /// How fast it shows the title that it was made of; normal for a title itself and its renditions.
    pub scale: Scale,
    /// Media time that its packets take.
    pub duration: MediaTicks,
    /// Known facts about its time stamps: how players that use them count, and when the last
    /// picture has been shown.
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
    /// How its packets are transformed, if they are.
    pub transform: Option<Transformed>,
    /// When its media time 0 was, in milliseconds since 1970: of recordings and live titles.
    pub began_unix_ms: Option<u64>,
}

/// A transformation that the operator has named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transformed {
    /// Its name.
    pub name: Arc<str>,
    /// Its place among the operator's.
    pub number: u8,
}

impl TitleEntry {
    /// The end that is announced: when the last picture has been shown, which is after the last packet has come. That of a recording that is
    /// still being made moves.
    pub fn end(&self) -> MediaTicks {
        if let Some(end) = self.access.grown_to() {
            return end;
        }
        self.presentation.end.map_or(self.duration, |end| end.max(self.duration))
    }

    /// The part that can be played now: from the oldest to the newest place of a live title, else all of it.
    pub fn available(&self) -> Range<MediaTicks> {
        self.access.window().unwrap_or(MediaTicks(0)..self.end())
    }

    /// Whether it is being written while it is sent: it has no last packet, and viewers join where it is.
    pub fn is_live(&self) -> bool {
        self.is_endless() && self.access.grown_to().is_none()
    }

    /// Whether it is written while it is sent: a live title, or a recording that was still being made when it was looked up.
    pub fn is_endless(&self) -> bool {
        self.packets == u32::MAX
    }

    /// Returns the same entry without RTP headers, for receivers of plain datagrams; `None` if it
    /// is not available in this form.
    pub fn raw(&self) -> Option<Self> {
        // A title is written in one form only.
        (!self.is_endless()).then_some(())?;
        Some(Self { layout: self.layout.raw()?, ..self.clone() })
    }
}

impl fmt::Debug for TitleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TitleEntry")
            .field("name", &self.name)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

/// A packet at which a decoder can start, and its media time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPoint {
    /// Where sending starts.
    pub packet: u32,
    /// Media time of this packet.
    pub time: MediaTicks,
}

/// One of the available bit rates of a title: the title itself, or another title that shows the
/// same at the same times, with access points at the same times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendition {
    /// Name of the rendition.
    pub name: RenditionName,
    /// The name under which [`Library::find`] finds it.
    pub title: String,
    /// Mean bit rate of its transport stream.
    pub mean_rate: BitRate,
    /// Highest bit rate over one second.
    pub peak_rate: BitRate,
}

/// From times to packets and back. They are called while a viewer waits for a reply: they may read a page of a
/// file, not more, and open nothing.
pub trait AccessPoints: Send + Sync {
    /// Whether the files that answer have failed, so that they should be opened again ([`NeededPart::times`]). Until then the index answers.
    fn is_stale(&self) -> bool {
        false
    }
    /// Whether the title is not here, and would be fetched first.
    fn is_remote(&self) -> bool {
        false
    }
    /// Of a recording that grows: how far it has come.
    fn grown_to(&self) -> Option<MediaTicks> {
        None
    }
    /// Of a live title: the oldest place where playing can begin, and the newest one.
    fn window(&self) -> Option<Range<MediaTicks>> {
        None
    }
    /// Whether playing can go on at this packet: a live title drops its oldest packets.
    fn is_held(&self, packet: u32) -> bool {
        let _ = packet;
        true
    }
    /// Of a live title: the media time of a presentation time stamp, where stamps are known.
    fn time_of_stamp(&self, stamp: i64) -> Option<i64> {
        let _ = stamp;
        None
    }
    /// Where a viewer begins that names no place: at the beginning, or at the last access point of a live title.
    fn join(&self) -> AccessPoint {
        self.access_at_or_before(MediaTicks(0))
    }
    /// The last access point at or before `time`; the oldest one, or the title's beginning, if there is none.
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint;
    /// The first access point at or behind `time`; `None` if there is none, or none that begins a packet.
    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint>;
    /// First packet at or after `time`; the number of packets if there is none.
    fn packet_at(&self, time: MediaTicks) -> u32;
    /// Returns the media time of a packet; `None` if it cannot be read: then the reply leaves out
    /// anything that must be exact or absent.
    fn time_of(&self, packet: u32) -> Option<MediaTicks>;
    /// About the same, without reading anything where that can be done.
    fn time_near(&self, packet: u32) -> Option<MediaTicks> {
        self.time_of(packet)
    }
}

/// Something of a title that has to be opened before it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeededPart {
    /// The title's name.
    pub title: String,
    /// What of it.
    pub part: TitlePart,
}

/// The part of a title to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TitlePart {
    /// Its index and the times of its packets: [`Library::find`], and [`Library::sized`] for sizes but the default.
    Times {
        /// Size of the packets.
        packet_bytes: usize,
    },
    /// Its media in the cache: [`Library::open`].
    Media {
        /// Size of the packets.
        packet_bytes: usize,
        /// Without RTP headers.
        is_raw: bool,
    },
    /// The same transformed.
    Derived {
        /// Size of the packets.
        packet_bytes: usize,
        /// Without RTP headers.
        is_raw: bool,
        /// [`Transformed::number`]
        number: u8,
    },
    /// One of its parity tracks in the cache: [`Library::open_track`].
    Parity {
        /// Its number.
        track: u8,
    },
}

impl NeededPart {
    /// Index and times of the title of this name in the default packet size.
    pub fn title(name: &str) -> Self {
        Self { title: name.to_owned(), part: TitlePart::Times { packet_bytes: DEFAULT_PACKET_BYTES } }
    }

    /// Index and times of an entry, in packets of this size.
    pub fn times(entry: &TitleEntry, packet_bytes: usize) -> Self {
        Self { title: entry.name.clone(), part: TitlePart::Times { packet_bytes } }
    }

    /// The media of an entry.
    pub fn media(entry: &TitleEntry) -> Self {
        let (packet_bytes, is_raw) = (entry.layout.packet_bytes(), entry.layout.is_raw());
        let part = match &entry.transform {
            None => TitlePart::Media { packet_bytes, is_raw },
            Some(transform) => TitlePart::Derived { packet_bytes, is_raw, number: transform.number },
        };
        Self { title: entry.name.clone(), part }
    }

    /// A parity track of an entry.
    pub fn parity(entry: &TitleEntry, track: u8) -> Self {
        Self { title: entry.name.clone(), part: TitlePart::Parity { track } }
    }
}

/// The titles. Called on the control thread between two requests: nothing here waits for a disk, but for a page of a file that is open.
///
/// Anything that is not open is requested ([`Library::begin`]) and answered later
/// ([`Library::poll_answer`]). A library that has everything in memory leaves those methods as they
/// are.
pub trait Library: Send {
    /// Whether a need is met: what uses it can be called now. Also if it cannot be met and that is known without a disk.
    fn has(&mut self, need: &NeededPart) -> bool {
        let _ = need;
        true
    }
    /// Begins to meet a need. Called once until its answer has come; at most [`MAX_OPENINGS`](crate::limits::MAX_OPENINGS) are
    /// under way.
    fn begin(&mut self, need: &NeededPart) {
        let _ = need;
    }
    /// The next need that is met now, or cannot be.
    fn poll_answer(&mut self) -> Option<(NeededPart, Result<(), OpenError>)> {
        None
    }
    /// Readable when there may be answers; `None` if there never are.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Makes the descriptor quiet until the next answer; called before the answers are polled to the end.
    fn rearm(&mut self) {}
    /// Returns the title of this name, with the parts of it that are open.
    fn find(&mut self, name: &str) -> Option<TitleEntry>;
    /// Whether viewers have the title in the cache in this form.
    fn is_cached(&self, entry: &TitleEntry) -> bool {
        let _ = entry;
        false
    }
    /// Returns the same title in packets of another size: packets, times, timeline and layout match
    /// this size. `None` if it is not available in this size, or if its times are not open.
    fn sized(&mut self, entry: &TitleEntry, packet_bytes: usize) -> Option<TitleEntry> {
        (entry.layout.packet_bytes() == packet_bytes).then(|| entry.clone())
    }
    /// Returns the same title under the transformation that the operator has given this name: time
    /// stamps and timeline are those that its viewers see. `None` if there is no transformation of
    /// this name.
    fn transformed(&mut self, entry: &TitleEntry, name: &str) -> Option<TitleEntry> {
        let _ = (entry, name);
        None
    }
    /// One more viewer of its media in the cache, in the packet size of the entry.
    ///
    /// # Errors
    /// The cache has no room for another title, or the title's files could not be opened.
    fn open(&mut self, entry: &TitleEntry) -> Result<TitleRef, OpenError>;
    /// The same for a parity track of it ([`super::FecMode::tracks`]), ready as FEC packets.
    ///
    /// # Errors
    /// As [`Library::open`], and when there is no such track.
    fn open_track(&mut self, entry: &TitleEntry, track: u8) -> Result<CachedParity, OpenError> {
        let _ = entry;
        Err(OpenError::Broken(format!("it has no parity track {track}")))
    }
    /// Returns the titles that were made from this one to be sent in its place at another speed:
    /// each speed once, with the name under which [`Library::find`] finds it. Cheap: called at each
    /// such play.
    fn derived(&mut self, entry: &TitleEntry) -> Vec<(Scale, String)> {
        let _ = entry;
        Vec::new()
    }
    /// Returns the available bit rates of this title, the best first, including its own; empty if
    /// that is the only one. Cheap: called for each new stream.
    fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        let _ = entry;
        Vec::new()
    }
    /// A viewer would rather have this title at this speed than at the nearest there is: it may be made when there is time. Asked at each
    /// such play, and only for usual speeds.
    fn wish(&mut self, entry: &TitleEntry, scale: Scale) {
        let _ = (entry, scale);
    }
    /// Describes, in words for viewers, the losses of a title that has lost too much to be played.
    /// `None` if nothing is lost, or little enough.
    fn lost(&mut self, entry: &TitleEntry) -> Option<String> {
        let _ = entry;
        None
    }
    /// Returns the cache's figures up to now, for admission; `None` if there is no cache.
    fn cache_figures(&self) -> Option<CacheFigures> {
        None
    }
    /// One viewer less; called once for each successful [`Library::open`] and [`Library::open_track`], after the engine has forgotten the stream.
    fn close(&mut self, title: TitleRef);
}

/// A parity track that is open in the cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedParity {
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
    /// More members of its volume are lost than its parity makes up for; names them.
    #[error("{0}")]
    MembersLost(String),
    /// It lacks something that its transformation needs; names it.
    #[error("{0}")]
    Unfit(String),
    /// It is not here: it is being fetched, or will be; in words for viewers.
    #[error("{0}")]
    Coming(String),
    /// Its disks do not respond: the reason is logged and not sent to the viewer.
    #[error("title cannot be opened: {0}")]
    TimedOut(String),
    /// Its files are damaged or cannot be read: the reason is logged and not sent to the viewer.
    #[error("title cannot be opened: {0}")]
    Broken(String),
}
