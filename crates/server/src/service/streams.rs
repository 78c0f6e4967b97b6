//! The table of streams, and how one is found: by its key, a port of its viewer or its place in an
//! engine.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::time::Instant;

use super::event::ServiceEvent;
use super::keys::{ConnKey, StreamKey, StreamPath, ports_of};
use super::run::DeliveryState;
use super::stream::PlaybackStream;

/// A place that its engine was ordered to clear: it is taken, and its title open, until the engine
/// reports that it is clear.
pub(super) struct Closing {
    pub(super) title: TitleRef,
    /// Titles made from it that are open beside it.
    pub(super) made: Vec<TitleRef>,
    /// The title's name, for reports on its runs still to come; `None`: FEC, which has no such
    /// reports.
    pub(super) name: Option<String>,
    /// What to tell then; `None` if the stream goes on in another place.
    pub(super) ended: Option<ServiceEvent>,
}

/// All streams that have not ended, and the places of those that have.
#[derive(Default)]
pub(super) struct PlaybackStreams {
    by_key: HashMap<StreamKey, PlaybackStream>,
    /// Streams that have reserved nothing, by the time since which they do not play.
    idle: BTreeSet<(Instant, StreamKey)>,
    /// UDP ports of viewers that something is sent to: media, its reports, FEC.
    by_port: HashMap<(IpAddr, u16), Vec<StreamKey>>,
    by_place: HashMap<(usize, StreamId), StreamKey>,
    /// Places that the engines were ordered to clear.
    closing: HashMap<(usize, StreamId), Closing>,
}

impl PlaybackStreams {
    pub(super) fn get(&self, key: &StreamKey) -> Option<&PlaybackStream> {
        self.by_key.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &StreamKey) -> Option<&mut PlaybackStream> {
        self.by_key.get_mut(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &PlaybackStream> {
        self.by_key.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut PlaybackStream> {
        self.by_key.values_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// All, the oldest first.
    pub(super) fn in_order(&self) -> Vec<&PlaybackStream> {
        let mut streams: Vec<_> = self.values().collect();
        streams.sort_unstable_by_key(|stream| stream.key);
        streams
    }

    /// Adds a stream that has reserved nothing.
    pub(super) fn insert(&mut self, stream: PlaybackStream) {
        self.idle.insert((stream.idle_since, stream.key));
        self.by_key.insert(stream.key, stream);
    }

    /// Removes a stream that has reserved nothing.
    pub(super) fn remove(&mut self, key: StreamKey) -> Option<PlaybackStream> {
        let stream = self.by_key.remove(&key)?;
        self.idle.remove(&(stream.idle_since, key));
        Some(stream)
    }

    /// Marks a stream as reserved, and returns it; `None` if it was reserved already.
    pub(super) fn begin_reservation(&mut self, key: StreamKey) -> Option<&PlaybackStream> {
        let stream = self.by_key.get_mut(&key).filter(|stream| !stream.is_reserved)?;
        stream.is_reserved = true;
        self.idle.remove(&(stream.idle_since, key));
        Some(stream)
    }

    /// Takes that mark from a stream, which counts as idle from then on, and returns it; `None` if
    /// it was not reserved.
    pub(super) fn end_reservation(&mut self, key: StreamKey) -> Option<&PlaybackStream> {
        let stream = self.by_key.get_mut(&key).filter(|stream| stream.is_reserved)?;
        stream.is_reserved = false;
        self.idle.insert((stream.idle_since, key));
        Some(stream)
    }

    /// Makes an idle stream fresh whose run was about to end: the place that could report where it
    /// ends is gone.
    pub(super) fn forget_unfinished_pause(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.by_key.get_mut(&key) else { return };
        if matches!(stream.media, DeliveryState::Pausing(_)) {
            self.idle.remove(&(stream.idle_since, key));
            self.idle.insert((now, key));
            (stream.media, stream.idle_since) = (DeliveryState::Fresh, now);
        }
    }

    /// Returns the idle stream that has not played for the longest time.
    pub(super) fn longest_idle(&self) -> Option<StreamKey> {
        self.idle.first().map(|&(_, key)| key)
    }

    pub(super) fn is_reserved(&self, key: StreamKey) -> bool {
        self.get(&key).is_some_and(|stream| stream.is_reserved)
    }

    /// Records a sign of life from the viewer of this stream.
    pub(super) fn note_alive(&mut self, now: Instant, key: StreamKey) {
        if let Some(stream) = self.by_key.get_mut(&key) {
            stream.last_heard = now;
        }
    }

    /// Returns the number of those that a viewer set up, and that are not for bytes alone.
    pub(super) fn session_count(&self) -> usize {
        let is_beside = |stream: &&PlaybackStream| {
            matches!(stream.path, StreamPath::Bytes { .. } | StreamPath::Multicast { .. })
        };
        self.values().filter(|stream| !is_beside(stream)).count()
    }

    /// Viewers that have been sent something and not yet BYE.
    pub(super) fn unfinished_count(&self) -> usize {
        let is_unfinished = |stream: &&PlaybackStream| {
            matches!(
                stream.media,
                DeliveryState::Running(_) | DeliveryState::Pausing(_) | DeliveryState::Paused { .. }
            )
        };
        self.values().filter(is_unfinished).count()
    }

    /// Streams in this engine.
    pub(super) fn of_engine(&self, engine: usize) -> impl Iterator<Item = &PlaybackStream> {
        self.values().filter(move |stream| stream.engine == engine)
    }

    /// Streams that an engine sends packets of.
    pub(super) fn playing(&self, engine: usize) -> impl Iterator<Item = &PlaybackStream> {
        let plays = |stream: &&PlaybackStream| {
            stream.ending.is_none() && matches!(stream.media, DeliveryState::Running(_))
        };
        self.of_engine(engine).filter(plays)
    }

    /// Streams that an engine sends packets of, the newest first.
    pub(super) fn newest(&self, engine: usize) -> Vec<&PlaybackStream> {
        let mut newest: Vec<_> = self.playing(engine).collect();
        // A segment is as old as its viewer.
        // A cast has many viewers, so it comes last.
        newest.sort_unstable_by_key(|stream| {
            let is_cast = matches!(stream.path, StreamPath::Multicast { .. });
            (is_cast, std::cmp::Reverse(stream.fetcher.unwrap_or(stream.key.0)))
        });
        newest
    }

    /// Returns how many of the newest streams of an engine send `packets_per_s` packets per second
    /// together.
    pub(super) fn newest_with(&self, engine: usize, packets_per_s: u64) -> usize {
        let mut sum = 0;
        let needed = self.newest(engine).into_iter().take_while(|stream| {
            let is_needed = sum < packets_per_s;
            sum += stream.demand().packets_per_s;
            is_needed
        });
        needed.count()
    }
}

/// Ports of viewers.
impl PlaybackStreams {
    /// Streams to which something is sent at this port.
    pub(super) fn at_port(&self, ip: IpAddr, port: u16) -> &[StreamKey] {
        self.by_port.get(&(ip, port)).map_or(&[], Vec::as_slice)
    }

    /// Something of the stream is sent to this port.
    pub(super) fn add_port(&mut self, key: StreamKey, ip: IpAddr, port: u16) {
        self.by_port.entry((ip, port)).or_default().push(key);
    }

    /// Forgets this port: datagrams from it are no longer the stream's.
    pub(super) fn forget_port(&mut self, key: StreamKey, ip: IpAddr, port: u16) {
        if let Some(keys) = self.by_port.get_mut(&(ip, port)) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_port.remove(&(ip, port));
            }
        }
    }

    /// The stream by UDP to this address whose RTP source is this, if there is exactly one.
    pub(super) fn only_stream_of(&self, ip: IpAddr, ssrc: u32) -> Option<StreamKey> {
        let mut fitting = self.values().filter(|stream| {
            matches!(stream.path, StreamPath::Udp { .. }) && stream.viewer.ip() == ip && stream.ssrc() == ssrc
        });
        match (fitting.next(), fitting.next()) {
            (Some(stream), None) => Some(stream.key),
            _ => None,
        }
    }

    /// The first UDP port of `path` on which another viewer receives a stream. Streams of the same
    /// connection and of viewers that are gone do not count.
    pub(super) fn port_in_use(
        &self,
        now: Instant,
        own: Option<StreamKey>,
        conn: Option<ConnKey>,
        path: StreamPath,
    ) -> Option<u16> {
        let StreamPath::Udp { ip, .. } = path else { return None };
        let is_strangers = |key: &StreamKey| {
            let stream = self.get(key).filter(|_| Some(*key) != own);
            stream.is_some_and(|stream| !(stream.owner == conn || stream.is_abandoned(now)))
        };
        ports_of(path).find(|port| self.at_port(ip, *port).iter().any(is_strangers))
    }

    /// Streams other than `own` whose media goes to the same address and port as on this path.
    pub(super) fn with_media_port_of(&self, path: StreamPath, own: Option<StreamKey>) -> Vec<StreamKey> {
        let StreamPath::Udp { ip, port: wanted, .. } = path else { return Vec::new() };
        let is_same = |key: &StreamKey| {
            let path = self.get(key).map(|stream| stream.path);
            matches!(path, Some(StreamPath::Udp { port, .. }) if port == wanted) && Some(*key) != own
        };
        self.at_port(ip, wanted).iter().copied().filter(is_same).collect()
    }
}

/// Places in the engines.
impl PlaybackStreams {
    /// The stream, or FEC of it, has this place now.
    pub(super) fn add_place(&mut self, key: StreamKey, engine: usize, place: StreamId) {
        self.by_place.insert((engine, place), key);
    }

    /// Places of streams and their FEC, without those that are being cleared.
    pub(super) fn open_places(&self) -> usize {
        self.by_place.len()
    }

    /// All places, with those that are being cleared.
    pub(super) fn place_count(&self) -> usize {
        self.by_place.len() + self.closing.len()
    }

    /// The stream at this place, or the one whose FEC is there.
    pub(super) fn key_at(&self, engine: usize, place: StreamId) -> Option<StreamKey> {
        self.by_place.get(&(engine, place)).copied()
    }

    /// Returns the same stream.
    pub(super) fn at_place(&self, engine: usize, place: StreamId) -> Option<&PlaybackStream> {
        self.get(&self.key_at(engine, place)?)
    }

    /// Returns the same stream, to change it.
    pub(super) fn at_place_mut(&mut self, engine: usize, place: StreamId) -> Option<&mut PlaybackStream> {
        let key = self.key_at(engine, place)?;
        self.get_mut(&key)
    }

    /// The engine is to clear this place.
    pub(super) fn begin_closing(&mut self, engine: usize, place: StreamId, closing: Closing) {
        self.by_place.remove(&(engine, place));
        self.closing.insert((engine, place), closing);
    }

    /// The engine has cleared this place.
    pub(super) fn end_closing(&mut self, engine: usize, place: StreamId) -> Option<Closing> {
        self.closing.remove(&(engine, place))
    }

    pub(super) fn closing(&self, engine: usize, place: StreamId) -> Option<&Closing> {
        self.closing.get(&(engine, place))
    }

    pub(super) fn closing_mut(&mut self, engine: usize, place: StreamId) -> Option<&mut Closing> {
        self.closing.get_mut(&(engine, place))
    }

    /// Places that this engine has still to clear.
    pub(super) fn closing_in(&self, engine: usize) -> Vec<StreamId> {
        self.closing.keys().filter(|key| key.0 == engine).map(|key| key.1).collect()
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
