//! A site with titles in memory. Its engine is a thread for each order, that writes the bytes and gives the connection back.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

use millrace_core::counters::{CounterSample, Registry};
use millrace_core::ids::TitleId;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_media::subtitles::SubtitleLabel;
use millrace_rights::{Gate, Policy, Quota, RightsSnapshot};
use millrace_store::index::TitleIndex;
use millrace_store::pictures::Pictures;
use millrace_store::volume::UploadNames;
use millrace_store::volume::{Origin, SourceIdentity, TitleInfo};
use millrace_tls::{Acceptor, Certificates};
use millrace_web::status::{Refusal, Room, Session, Status, VolumeMember};
use millrace_web::{
    ALL_THAT_COMES, ChannelGuide, DeliveredAmount, Delivery, DeliveryRefusal, Feed, Fetch, GuideProgramme,
    LiveCast, LiveEdge, LiveFeed, LivePart, LivePiece, LiveRecording, LiveRefusal, LiveStatus, LiveWindow,
    NewLiveSource, NotTaken, Order, OrderSocket, OrderedMedia, OrderedSegment, PicturesState, PlayedChannel,
    RecordingRefusal, RecordingWish, ReloadReport, Secure, Site, SiteError, SkippedItem, Totals,
    TrustedProxies, WebConfig, WebHandle, WebLimits,
};
use tokio::sync::oneshot::{self, Receiver};
use tokio::sync::watch;

/// What becomes of orders for a title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// All is sent.
    Sends,
    /// This many bytes at a time, with a pause after each piece.
    Slowly(usize, Duration),
    /// Nothing is.
    Refuses(DeliveryRefusal),
    /// This many bytes, then the connection is closed.
    BreaksOff(usize),
    /// The order is dropped without a word.
    Forgets,
    /// Nothing is done until [`MadeUp::let_go`].
    Keeps,
}

pub(crate) struct Film {
    pub(crate) info: TitleInfo,
    pub(crate) index: Arc<TitleIndex>,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) manner: Manner,
}

/// Contents of an order.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) bytes: std::ops::Range<u64>,
    pub(crate) is_inside: bool,
    pub(crate) ahead_ms: u32,
    pub(crate) label: String,
    pub(crate) agent: Option<String>,
    pub(crate) peer: SocketAddr,
    pub(crate) quota: Option<Quota>,
    pub(crate) segment: Option<OrderedSegment>,
}

#[derive(Default)]
pub(crate) struct MadeUp {
    pub(crate) films: HashMap<String, Film>,
    pub(crate) orders: Mutex<Vec<Ordered>>,
    /// What viewers were asked about who fetch segments, and their users.
    pub(crate) fetches: Mutex<Vec<(OrderedSegment, Option<Quota>)>>,
    /// Which of them are sounds, with their bit rates.
    pub(crate) sounds: Mutex<Vec<Option<BitRate>>>,
    /// Channels that report the amount they have taken.
    pub(crate) overs: Mutex<Vec<Receiver<DeliveredAmount>>>,
    /// Why they may not.
    pub(crate) no_fetches: Mutex<Option<DeliveryRefusal>>,
    /// How many watch by RTSP.
    pub(crate) sessions: usize,
    pub(crate) kept: Mutex<Vec<Order>>,
    /// Titles that are not listed, and how often that has changed.
    pub(crate) hidden: Mutex<(HashSet<String>, u64)>,
    /// Titles whose removal was requested.
    pub(crate) removed: Mutex<Vec<String>>,
    /// Live sources that were added.
    pub(crate) sources: Mutex<Vec<(String, String, Option<String>)>>,
    /// The outcomes of reloads to come; without any, too many callers wait.
    pub(crate) reloads: Mutex<VecDeque<ReloadReport>>,
    /// The fault of its member.
    pub(crate) trouble: Mutex<Option<String>>,
    /// The bytes uploaded; for an upload that failed, the bytes that had come.
    pub(crate) taken: Mutex<BTreeMap<String, Vec<u8>>>,
    pub(crate) failed: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The names of uploaded files.
    pub(crate) file_names: Mutex<BTreeMap<String, String>>,
    /// Names of titles that uploads took the place of.
    pub(crate) replaced: Mutex<Vec<String>>,
    /// The state of the pictures of every title; by default, [`made_up_pictures`].
    pub(crate) pictures: Mutex<Option<PicturesState>>,
    /// A sheet of pictures, to replace the small default.
    pub(crate) sheet: Option<Vec<u8>>,
    /// Bytes that there is room for, if there is an end to it.
    pub(crate) room: Option<u64>,
    /// Held by a test, this disk hangs at the beginning of each upload.
    pub(crate) disk: Mutex<()>,
    /// How far its live titles have grown.
    pub(crate) live_edge: GrowingEdge,
}

/// Nine segments, at first.
pub(crate) struct GrowingEdge(pub(crate) watch::Sender<LiveEdge>);

impl Default for GrowingEdge {
    fn default() -> Self {
        Self(watch::Sender::new(LiveEdge { segment: 9, parts: 0, parts_before: 4 }))
    }
}

/// The first parts of a segment of seven TS packets; the last part is half as long.
fn parts(number: u32, count: usize) -> Vec<LivePart> {
    let part = |at: u64| {
        let from = u64::from(number) * 1316;
        let bytes = from + at * 376..from + (at * 376 + 376).min(1316);
        LivePart { bytes, length: MediaTicks(45_000), is_independent: at == 0 }
    };
    (0..count as u64).map(part).collect()
}

impl Film {
    /// Bytes that differ everywhere, of a title that has no media times.
    pub(crate) fn pattern(name: &str, packets: usize, manner: Manner) -> Self {
        let len = packets * 188;
        let bytes: Arc<[u8]> = (0..len).map(|at| (at * 7 + at / 251 + at / 65_521) as u8).collect();
        let info = TitleInfo {
            id: TitleId([7; 16]),
            name: name.to_owned(),
            bytes: len as u64,
            packets: len.div_ceil(1316) as u32,
            packet_sizes: vec![1316],
            duration: MediaTicks(90_000 * 60),
            mean_rate: BitRate(len as u64 * 8 / 60),
            peak_rate: BitRate(len as u64 * 8 / 50),
            constant_rate: false,
            streams: Vec::new(),
            timeline: Timeline { ssrc: 1, timestamp_base: 2 },
            source: SourceIdentity {
                path: PathBuf::from("/films/pattern.ts"),
                bytes: len as u64,
                modified_unix_ns: 0,
            },
            added_unix_s: 784_111_777,
            blake3: "0123456789abcdef".repeat(4),
            notes: Vec::new(),
            derived: None,
            rendition: None,
            title: None,
            origin: Origin::default(),
            subtitles: Vec::new(),
            source_start: 0,
            chapters: Vec::new(),
            began_unix_ms: None,
        };
        Self { info, index: Arc::default(), bytes, manner }
    }
}

impl MadeUp {
    pub(crate) fn with(films: Vec<Film>) -> Arc<Self> {
        let films = films.into_iter().map(|film| (film.info.name.clone(), film)).collect();
        Arc::new(Self { films, ..Self::default() })
    }

    pub(crate) fn orders(&self) -> Vec<Ordered> {
        self.orders.lock().unwrap().clone()
    }

    /// Lists a title no longer, or again.
    pub(crate) fn hide(&self, name: &str, is_hidden: bool) {
        let mut hidden = self.hidden.lock().unwrap();
        match is_hidden {
            true => hidden.0.insert(name.to_owned()),
            false => hidden.0.remove(name),
        };
        hidden.1 += 1;
    }

    /// Drops all orders that it keeps, with their connections.
    pub(crate) fn let_go(&self) {
        self.kept.lock().unwrap().clear();
    }
}

/// Three pictures of a title of 60 s.
pub(crate) fn made_up_pictures() -> Pictures {
    Pictures::new(vec![500, 20_000, 40_000], 60_000, b"a poster".to_vec(), b"a sheet".to_vec())
}

/// Starts the web side on a port of its own.
pub(crate) fn serve(site: &Arc<MadeUp>, limits: WebLimits) -> (WebHandle, SocketAddr, Arc<Totals>) {
    serve_to(site, limits, &Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap()))
}

/// The same with rights.
pub(crate) fn serve_to(
    site: &Arc<MadeUp>,
    limits: WebLimits,
    gate: &Arc<Gate>,
) -> (WebHandle, SocketAddr, Arc<Totals>) {
    let totals = Arc::new(Totals::default());
    let (handle, address) = serve_with(site, limits, gate, &totals, Feed::default());
    (handle, address, totals)
}

/// The same with a source of events.
pub(crate) fn serve_with(
    site: &Arc<MadeUp>,
    limits: WebLimits,
    gate: &Arc<Gate>,
    totals: &Arc<Totals>,
    feed: Feed,
) -> (WebHandle, SocketAddr) {
    serve_on(site, TcpListener::bind("127.0.0.1:0").unwrap(), limits, gate, totals, feed)
}

/// The same behind proxies in these networks.
pub(crate) fn serve_behind(
    site: &Arc<MadeUp>,
    networks: &[&str],
    limits: WebLimits,
) -> (WebHandle, SocketAddr, Arc<Totals>) {
    let totals = Arc::new(Totals::default());
    let config = WebConfig {
        listeners: vec![TcpListener::bind("127.0.0.1:0").unwrap()],
        carrier: None,
        secure: None,
        limits,
        proxies: TrustedProxies::new(networks.iter().map(|network| network.parse().unwrap()).collect()),
        gate: Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap()),
        feed: Feed::default(),
        totals: Arc::clone(&totals),
    };
    let handle = millrace_web::start(config, Arc::<MadeUp>::clone(site)).unwrap();
    let address = handle.addresses()[0];
    (handle, address, totals)
}

/// The same at a socket of a test's own.
pub(crate) fn serve_at(site: &Arc<MadeUp>, listener: TcpListener) -> (WebHandle, SocketAddr) {
    let gate = Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap());
    serve_on(site, listener, WebLimits::default(), &gate, &Arc::default(), Feed::default())
}

fn serve_on(
    site: &Arc<MadeUp>,
    listener: TcpListener,
    limits: WebLimits,
    gate: &Arc<Gate>,
    totals: &Arc<Totals>,
    feed: Feed,
) -> (WebHandle, SocketAddr) {
    let (listeners, gate, totals) = (vec![listener], Arc::clone(gate), Arc::clone(totals));
    let proxies = TrustedProxies::default();
    let config = WebConfig { listeners, carrier: None, secure: None, limits, proxies, gate, feed, totals };
    let handle = millrace_web::start(config, Arc::<MadeUp>::clone(site)).unwrap();
    let address = handle.addresses()[0];
    (handle, address)
}

/// The web side by TLS alone, with a certificate for `localhost` in this directory.
pub(crate) fn serve_by_tls(
    site: &Arc<MadeUp>,
    limits: WebLimits,
    dir: &Path,
) -> (WebHandle, SocketAddr, Arc<Totals>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = Arc::new(millrace_tls::Totals::default());
    let certificates = Certificates::read(&certificate, &key, &tls).unwrap();
    let acceptor = Acceptor::new(&certificates, &millrace_web::PROTOCOLS, &tls).unwrap();
    let secure = Secure { listeners: vec![TcpListener::bind("127.0.0.1:0").unwrap()], acceptor };
    let totals = Arc::new(Totals::default());
    let config = WebConfig {
        listeners: Vec::new(),
        carrier: None,
        secure: Some(secure),
        limits,
        proxies: TrustedProxies::default(),
        gate: Arc::new(Gate::new(Policy::default(), RightsSnapshot::default()).unwrap()),
        feed: Feed::default(),
        totals: Arc::clone(&totals),
    };
    let handle = millrace_web::start(config, Arc::<MadeUp>::clone(site)).unwrap();
    let address = handle.addresses()[0];
    (handle, address, totals)
}

/// The live title `film` is being recorded.
fn recording() -> LiveRecording {
    let title = "Film".to_owned();
    LiveRecording { title, began_unix_s: 5, ends_unix_s: Some(65), bytes: 1316, lost_bytes: 0 }
}

/// The live title `film` is sent to a group.
fn cast() -> LiveCast {
    LiveCast {
        title: "live/film".to_owned(),
        to: "239.192.1.2:20000".to_owned(),
        ttl: 1,
        listeners: 2,
        is_sending: false,
        trouble: Some("eth0 is down".to_owned()),
    }
}

impl Site for MadeUp {
    fn titles(&self) -> Vec<TitleInfo> {
        let mut titles: Vec<_> = self.films.values().map(|film| film.info.clone()).collect();
        let hidden = self.hidden.lock().unwrap();
        titles.retain(|title| title.derived.is_none() && !hidden.0.contains(&title.name));
        titles.sort_by(|a, b| a.name.cmp(&b.name));
        titles
    }

    fn title(&self, name: &str) -> Option<TitleInfo> {
        let taken = || {
            self.taken.lock().unwrap().contains_key(name).then(|| Film::pattern(name, 1, Manner::Sends).info)
        };
        self.films.get(name).map(|film| film.info.clone()).or_else(taken)
    }

    /// Every site with a title `film` shows it as a live one too, which ends with the film.
    fn live(&self) -> Vec<LiveStatus> {
        let film = self.films.get("film").map(|film| LiveStatus {
            name: film.info.name.clone(),
            state: "running",
            message: "plays /srv/a.ts".to_owned(),
            on_air: None,
            bits_per_s: 1,
            viewers: 0,
            file: "/live/film.ts".to_owned(),
            hls: "/live/film/index.m3u8".to_owned(),
            low_latency_hls: "/live/film/low-latency.m3u8".to_owned(),
            rtsp: "/live/film".to_owned(),
            channel: Some(PlayedChannel {
                item: Some("/srv/a.ts".to_owned()),
                skipped: vec![SkippedItem { item: "b".to_owned(), reason: "/srv/b: gone".to_owned() }],
                to: vec!["udp://10.0.0.9:5000".to_owned()],
            }),
            recording: Some(recording()),
            multicast: vec![cast()],
        });
        let other = film.clone().map(|film| LiveStatus {
            name: "camera".to_owned(),
            state: "failed",
            message: "rtsp://10.0.0.9/: refused".to_owned(),
            channel: None,
            recording: None,
            ..film
        });
        let spare = other.clone().map(|film| LiveStatus {
            name: "spare".to_owned(),
            state: "running",
            message: "on the backup: media comes; first source: rtsp://10.0.0.8/: refused".to_owned(),
            on_air: Some("backup"),
            ..film
        });
        film.into_iter().chain(other).chain(spare).collect()
    }

    /// The live title `film` plays the film, a title that is not there, and more without an end.
    fn guide(&self) -> Arc<[ChannelGuide]> {
        let programme = |title: &str, from_s: u64, to_s: Option<u64>| GuideProgramme {
            title: title.to_owned(),
            display_name: format!("{title} & <more>"),
            from_unix_ms: from_s * 1000,
            to_unix_ms: to_s.map(|to| to * 1000),
        };
        let now = 1_792_886_400;
        let programmes = vec![
            programme("film", now, Some(now + 60)),
            programme("secret", now + 60, Some(now + 120)),
            programme("film", now + 120, None),
        ];
        let of = |channel: &str| ChannelGuide { channel: channel.to_owned(), programmes: programmes.clone() };
        Arc::new([of("film"), of("gone")])
    }

    fn add_live(&self, source: NewLiveSource) -> Result<(), LiveRefusal> {
        if self.live().iter().any(|live| live.name == source.name) {
            return Err(LiveRefusal::InUse);
        }
        self.sources.lock().unwrap().push((source.name, source.url, source.backup));
        Ok(())
    }

    fn reload(&self) -> Option<oneshot::Receiver<Arc<ReloadReport>>> {
        let report = self.reloads.lock().unwrap().pop_front()?;
        let (outcome, receiver) = oneshot::channel();
        outcome.send(Arc::new(report)).unwrap();
        Some(receiver)
    }

    fn remove_live(&self, name: &str) -> Result<(), LiveRefusal> {
        match name {
            "film" => Ok(()),
            "camera" => Err(LiveRefusal::Conflict("it is set by --live".to_owned())),
            _ => Err(LiveRefusal::NoTitle),
        }
    }

    fn record_live(&self, name: &str, _wish: RecordingWish) -> Result<LiveRecording, RecordingRefusal> {
        if name == "film" { Err(RecordingRefusal::Busy) } else { Err(RecordingRefusal::NoSource) }
    }

    fn stop_recording(&self, name: &str) -> Result<LiveRecording, RecordingRefusal> {
        if name == "film" { Ok(recording()) } else { Err(RecordingRefusal::NotRecorded) }
    }

    fn live_window(&self, name: &str) -> Option<LiveWindow> {
        let piece = |number: u32| LivePiece {
            number,
            bytes: u64::from(number) * 1316..u64::from(number + 1) * 1316,
            length: MediaTicks(180_000),
            is_discontinuous: number == 1,
            parts: parts(number, 4),
        };
        let pieces = (0..9).map(piece).collect();
        self.films.get(name).map(|_| LiveWindow {
            version: "v".to_owned(),
            mean_rate: BitRate(1_000_000),
            peak_rate: BitRate(2_000_000),
            breaks_before: 7,
            listed: 0,
            pieces,
            growing: parts(9, self.live_edge.0.borrow().parts),
            is_growing_discontinuous: false,
            longest: MediaTicks(180_000),
        })
    }

    fn live_edge(&self, name: &str) -> Option<watch::Receiver<LiveEdge>> {
        self.films.get(name).map(|_| self.live_edge.0.subscribe())
    }

    fn feed_live(&self, _name: &str) -> Result<Box<dyn LiveFeed>, LiveRefusal> {
        Err(LiveRefusal::InUse)
    }

    fn renditions(&self, name: &str) -> Vec<TitleInfo> {
        let mut titles: Vec<_> = self
            .films
            .values()
            .map(|film| &film.info)
            .filter(|info| info.rendition_name().is_some())
            .collect();
        titles.retain(|title| title.name == name || title.name.starts_with(&format!("{name}@")));
        titles.sort_by_key(|title| std::cmp::Reverse(title.peak_rate.0));
        titles.into_iter().cloned().collect()
    }

    fn index(&self, name: &str) -> Result<Arc<TitleIndex>, SiteError> {
        self.films.get(name).map(|film| Arc::clone(&film.index)).ok_or(SiteError::NoTitle)
    }

    fn read(&self, name: &str, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        let film = self.films.get(name).ok_or(SiteError::NoTitle)?;
        let from = from as usize;
        let bytes = film.bytes.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or_else(|| SiteError::Unreadable("beyond the end".to_owned()))?);
        Ok(())
    }

    fn is_served_folder(&self, folder: &Path) -> bool {
        folder == Path::new("/served")
    }

    fn subtitles(&self, _title: &TitleInfo, _file: &str) -> Result<String, SiteError> {
        Ok("WEBVTT\n\n00:00:05.000 --> 00:00:07.000\nkept\n\n".to_owned())
    }

    fn put_subtitles(&self, name: &str, label: &SubtitleLabel, bytes: &[u8]) -> Result<bool, NotTaken> {
        if !bytes.starts_with(b"WEBVTT") {
            return Err(NotTaken::Broken("no cue found".to_owned()));
        }
        Ok(self.films[name].info.subtitles.iter().any(|track| track.label == *label))
    }

    fn remove_subtitles(&self, name: &str, label: &SubtitleLabel) -> Result<bool, SiteError> {
        Ok(self.films[name].info.subtitles.iter().any(|track| track.label == *label))
    }

    fn pictures(&self, _title: &TitleInfo) -> PicturesState {
        let said = self.pictures.lock().unwrap().clone();
        said.unwrap_or_else(|| PicturesState::Made(Arc::new(made_up_pictures().about)))
    }

    fn read_pictures(&self, _title: &TitleInfo) -> Result<Pictures, SiteError> {
        let pictures = made_up_pictures();
        Ok(Pictures { sheet: self.sheet.clone().unwrap_or(pictures.sheet), ..pictures })
    }

    fn can_take(&self, bytes: Option<u64>) -> Result<(), NotTaken> {
        match self.room.filter(|room| bytes.unwrap_or(0) > *room) {
            Some(room) => Err(NotTaken::Full(format!("room for {room} bytes"))),
            None => Ok(()),
        }
    }

    /// What begins with `BAD` or `MP4` is refused with its first bytes.
    fn take_in(
        &self,
        upload: UploadNames<'_>,
        replaced: Option<&TitleInfo>,
        bytes: &mut dyn Read,
    ) -> Result<TitleInfo, NotTaken> {
        let name = upload.name;
        drop(self.disk.lock().unwrap());
        if let Some(file_name) = upload.file_name {
            self.file_names.lock().unwrap().insert(name.to_owned(), file_name.to_owned());
        }
        let mut all = Vec::new();
        let mut piece = vec![0; 50_000];
        loop {
            let count = match bytes.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) => {
                    self.failed.lock().unwrap().insert(name.to_owned(), all);
                    return Err(NotTaken::Unavailable(error.to_string()));
                }
            };
            all.extend_from_slice(&piece[..count]);
            let why = match all.get(..3) {
                Some(b"BAD") => NotTaken::Broken("no clock".to_owned()),
                Some(b"MP4") => NotTaken::OtherKind("not a transport stream".to_owned()),
                _ if self.room.is_some_and(|room| all.len() as u64 > room) => {
                    NotTaken::Full("full".to_owned())
                }
                _ => continue,
            };
            self.failed.lock().unwrap().insert(name.to_owned(), all);
            return Err(why);
        }
        self.replaced.lock().unwrap().extend(replaced.map(|title| title.name.clone()));
        self.taken.lock().unwrap().insert(name.to_owned(), all);
        Ok(self.title(name).expect("it was just taken in"))
    }

    fn send(&self, order: Order) {
        self.orders.lock().unwrap().push(Ordered {
            bytes: order.media.bytes.clone(),
            is_inside: matches!(order.socket, OrderSocket::Inside(_)),
            ahead_ms: order.media.ahead_ms,
            label: order.label.clone(),
            agent: order.agent.clone(),
            peer: order.peer,
            quota: order.media.quota.as_deref().cloned(),
            segment: order.media.segment.as_deref().copied(),
        });
        assert!(order.media.before.len() <= millrace_core::limits::web::MAX_ORDER_HEAD_BYTES);
        let title = order.media.title.strip_prefix("live/").unwrap_or(&order.media.title);
        let (bytes, manner) = match self.films.get(title) {
            Some(film) => (Arc::clone(&film.bytes), film.manner.clone()),
            None => (Arc::from(Vec::new()), Manner::Refuses(DeliveryRefusal::Gone)),
        };
        match manner {
            Manner::Keeps => self.kept.lock().unwrap().push(order),
            manner => drop(spawn(move || deliver(order, &bytes, &manner))),
        }
    }

    fn fetch(&self, fetch: Fetch) {
        self.sounds.lock().unwrap().push(fetch.sound);
        self.fetches.lock().unwrap().push((fetch.segment, fetch.quota));
        let why = self.no_fetches.lock().unwrap().clone();
        self.overs.lock().unwrap().push(fetch.over);
        fetch.done.send(why.map_or(Ok(()), Err)).unwrap();
    }

    fn status(&self) -> Result<Status, SiteError> {
        let session = |number: usize| Session {
            session: format!("session-{number}"),
            title: "film".to_owned(),
            peer: "192.0.2.1:5000".to_owned(),
            transport: "UDP",
            is_playing: true,
            position_s: Some(1.5),
            age_s: 2,
            bits_per_s: 8_000_000,
            lost: None,
        };
        Ok(Status {
            room: vec![Room { what: "streams".to_owned(), used: 3, of: 100 }],
            sessions: (0..self.sessions).map(session).collect(),
            casts: vec![cast()],
            refusals: vec![Refusal {
                at_unix_s: 784_111_777,
                what: "film for 192.0.2.1:5000: full".to_owned(),
                more: 2,
            }],
            members: vec![VolumeMember {
                member: 1,
                place: "/disk1".to_owned(),
                trouble: self.trouble.lock().unwrap().clone().or(Some("it is slow".to_owned())),
            }],
            library: None,
        })
    }

    /// Only written down: many tests share these titles.
    fn remove(&self, name: &str) -> Result<(), SiteError> {
        self.films.get(name).ok_or(SiteError::NoTitle)?;
        self.removed.lock().unwrap().push(name.to_owned());
        Ok(())
    }

    fn pictures_version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", self.pictures.lock().unwrap()).hash(&mut hasher);
        hasher.finish()
    }

    fn rename(&self, name: &str, title: &str) -> Result<TitleInfo, SiteError> {
        let film = self.films.get(name).ok_or(SiteError::NoTitle)?;
        Ok(TitleInfo { title: Some(title.to_owned()), ..film.info.clone() })
    }

    fn titles_version(&self) -> u64 {
        self.hidden.lock().unwrap().1
    }

    fn counters(&self, visit: &mut dyn FnMut(CounterSample<'_>)) {
        let mut registry = Registry::default();
        for engine in 0..2u64 {
            let probe =
                Probe { sent_bytes: 1000 + engine, open: engine, longest_turn_ns: 1_500_000_000 + engine };
            registry.add("engine", Some(("engine", engine.to_string())), move || probe);
        }
        registry.add_all("titles", "title", || vec![("a\"b\\c\nd".to_owned(), Probe::default())]);
        registry.read(visit);
    }
}

millrace_core::counters! {
    /// For `/metrics`.
    struct Probe {
        /// Bytes sent.
        sum sent_bytes,
        /// Now open.
        gauge open,
        /// Longest turn.
        highest longest_turn_ns,
    }
}

fn deliver(order: Order, bytes: &[u8], manner: &Manner) {
    let Order { socket, media: OrderedMedia { bytes: range, before, .. }, done, .. } = order;
    let mut socket = socket;
    let end = if range == ALL_THAT_COMES { bytes.len() } else { range.end as usize };
    let whole = [&before[..], &bytes[range.start as usize..end]].concat();
    let is_sent = match manner {
        Manner::Forgets | Manner::Keeps => return,
        Manner::Refuses(why) => {
            drop(socket);
            return done.send(Delivery::Refused(why.clone()));
        }
        Manner::Sends => write_all(&mut socket, &whole),
        Manner::BreaksOff(count) => {
            write_all(&mut socket, &whole[..*count]);
            drop(socket);
            return done.send(Delivery::Broken);
        }
        Manner::Slowly(count, pause) => whole.chunks(*count).all(|piece| {
            sleep(*pause);
            write_all(&mut socket, piece)
        }),
    };
    drop(socket);
    done.send(if is_sent { Delivery::Sent } else { Delivery::Broken });
}

/// Writes into a socket that does not block, as an engine does; false if the viewer has gone.
fn write_all(socket: &mut OrderSocket, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let wrote = match socket {
            OrderSocket::Viewer(socket) => socket.write(bytes),
            OrderSocket::Inside(socket) => socket.write(bytes),
            OrderSocket::Carried(name) => {
                let mut socket = name.downcast_ref::<TcpStream>().expect("a socket");
                socket.write(bytes)
            }
        };
        match wrote {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(Duration::from_micros(200)),
            Err(_) => return false,
        }
    }
    true
}
