//! The server as the web side sees it, and the web side's listen addresses.

use std::collections::VecDeque;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use millrace_core::counters::{CounterSample, Registry, Sheet};
use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::limits::web::DEFAULT_MEMORY_BYTES;
use millrace_core::seam::Clock;
use millrace_core::units::ByteLen;
use millrace_make::ingest::IngestOptions;
use millrace_media::subtitles::SubtitleLabel;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::load::LoadSnapshot;
use millrace_rights::Gate;
use millrace_store::StoreError;
use millrace_store::cache::Cache;
use millrace_store::index::TitleIndex;
use millrace_store::pictures::Pictures;
use millrace_store::volume::{MediaReader, TitleEdit, TitleInfo, UploadNames, Volume};
use millrace_web::{
    Carrier, ChannelGuide, Feed, Fetch, LibraryCopy, LiveEdge, LiveFeed, LiveRecording, LiveRefusal,
    LiveStatus, LiveWindow, NewLiveSource, NotTaken, Order, PicturesState, RecordingRefusal, RecordingWish,
    ReloadReport, Secure, Site, SiteError, Status, TitleBytes, Totals, TrustedProxies, TunnelConn,
    ViewerAdmission, WebConfig, WebHandle, WebLimits,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::access::Listening;
use super::guide::GuideMaker;
use super::library::LibraryNode;
use super::listen::ListenChoice;
use super::live_sources::LiveSources;
use super::pictures::Album;
use super::reload_requests::ReloadRequests;
use super::tcp::TcpArgs;
use super::tls::Tls;
use super::uploads::{Intake, UploadArgs};
use super::{invite, status};
use crate::control::Asker;
use crate::library::open_titles::OpenTitles;
use crate::library::remote::RemoteTitle;
use crate::limits::control::LISTEN_BACKLOG;
use crate::limits::web::{MAX_WEB_INDEXES, MEMORY_PER_CACHE, MIN_MEMORY_BYTES};
use crate::live::{LiveChannel, LivePush, LiveTitles, Recordings};

/// Settings of the web side.
pub(super) struct WebSettings {
    /// The port of HTTP.
    pub(super) http: Option<TcpListener>,
    /// Where callers have the settings read again.
    pub(super) reload: Arc<ReloadRequests>,
    pub(super) connections_per_address: usize,
    /// Proxies that name their clients.
    pub(super) proxies: TrustedProxies,
    /// Memory for responses; `None`: in proportion to the cache.
    pub(super) memory: Option<ByteLen>,
    pub(super) uploads: UploadArgs,
    /// How uploads are converted.
    pub(super) ingest: IngestOptions,
    /// The served folders, absolute.
    pub(super) folders: Vec<PathBuf>,
}

/// Live titles, and the parts of the server that bring and keep their media.
struct LiveParts {
    titles: Arc<LiveTitles>,
    sources: Arc<LiveSources>,
    recordings: Arc<Recordings>,
}

/// The web side before it is started: its port is taken, and orders can be waited for.
pub(super) struct Web {
    settings: WebSettings,
    carrier: Option<Carrier>,
    secure: Option<Secure>,
    orders: mpsc::UnboundedSender<Order>,
    ordered: Option<mpsc::UnboundedReceiver<Order>>,
    limits: WebLimits,
    feed: Feed,
    totals: Arc<Totals>,
    /// How busy each engine is.
    loops: Vec<Arc<Sheet<LoadSnapshot>>>,
    rtsp_port: u16,
    live: Option<LiveParts>,
}

impl Web {
    /// Prepares it beside RTSP at this address.
    pub(super) fn new(
        settings: WebSettings,
        cache: ByteLen,
        rtsp: SocketAddr,
        tls: Option<&mut Tls>,
    ) -> anyhow::Result<Self> {
        let secure = tls.map(Tls::https).transpose()?.flatten();
        let (orders, ordered) = mpsc::unbounded_channel();
        let ordered = Some(ordered).filter(|_| settings.http.is_some() || secure.is_some());
        let limits = WebLimits {
            connections_per_address: settings.connections_per_address,
            memory: memory(settings.memory, cache),
            upload_bytes: settings.uploads.max_upload.0,
            upload_rate: settings.uploads.upload_rate.0,
            ..WebLimits::default()
        };
        let (feed, totals) = (Feed::default(), Arc::default());
        let (carrier, loops, live) = (None, Vec::new(), None);
        let rtsp_port = rtsp.port();
        Ok(Self { settings, carrier, secure, orders, ordered, limits, feed, totals, loops, rtsp_port, live })
    }

    /// The port of HTTP at the offload engine too: that of the kernel's, unless --http names an address that is not the engine's.
    pub(super) fn offload_port(&self, http: Option<ListenChoice>, tcp: &TcpArgs) -> Option<u16> {
        let port = self.settings.http.as_ref()?.local_addr().ok()?.port();
        let is_there_only = |ip: IpAddr| !ip.is_unspecified() && !tcp.has(ip);
        match http {
            Some(ListenChoice::At(at)) if is_there_only(at.ip()) => None,
            _ => Some(port),
        }
    }

    /// Connections come by this too.
    pub(super) fn carry(&mut self, carrier: Option<Carrier>) {
        self.carrier = carrier;
    }

    /// How media is taken in.
    pub(super) fn ingest(&self) -> IngestOptions {
        self.settings.ingest.clone()
    }

    /// Shows these titles, takes media and sources for more of them, and has them recorded.
    pub(super) fn show_live(
        &mut self,
        titles: &Arc<LiveTitles>,
        sources: &Arc<LiveSources>,
        recordings: &Arc<Recordings>,
    ) {
        let (titles, sources, recordings) = (Arc::clone(titles), Arc::clone(sources), Arc::clone(recordings));
        self.live = Some(LiveParts { titles, sources, recordings });
    }

    /// Where orders come from, once; `None` if there will be none.
    pub(super) fn ordered(&mut self) -> Option<mpsc::UnboundedReceiver<Order>> {
        self.ordered.take()
    }

    /// Returns the addresses that it will listen on.
    pub(super) fn addresses(&self) -> Vec<Listening> {
        let plain = self.settings.http.iter().map(|listener| ("HTTP", listener));
        let by_tls =
            self.secure.iter().flat_map(|secure| &secure.listeners).map(|listener| ("HTTPS", listener));
        plain.chain(by_tls).filter_map(|(name, listener)| Some((name, listener.local_addr().ok()?))).collect()
    }

    /// Returns the feed, which reports events to its listeners.
    pub(super) fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// Adds its counters to the rest. Uploads give way to the engines' work.
    pub(super) fn register(&mut self, registry: &mut Registry, loops: Vec<Arc<Sheet<LoadSnapshot>>>) {
        self.loops = loops;
        let totals = Arc::clone(&self.totals);
        registry.add("web", None, move || totals.read());
    }

    /// Starts it, if it is wanted, and prints where the page is.
    pub(super) fn start(
        self,
        (open_titles, volume, library): (&Arc<OpenTitles>, &Arc<Volume>, Option<&Arc<LibraryNode>>),
        (control, cache, album): (Asker, &Arc<Cache>, Arc<Album>),
        registry: &Arc<Registry>,
        gate: Arc<Gate>,
        hosts: &Hosts,
    ) -> anyhow::Result<Option<WebHandle>> {
        let Self { settings, carrier, secure, orders, limits, feed, totals, loops, rtsp_port, live, .. } =
            self;
        let WebSettings { http, reload, proxies, ingest, folders, .. } = settings;
        let listeners: Vec<_> = http.into_iter().collect();
        let host = if carrier.is_some() { &hosts.first } else { &hosts.kernel };
        let plain = listeners.iter().map(|listener| ("http", host, listener));
        let by_tls = secure.iter().flat_map(|secure| &secure.listeners);
        let by_tls = by_tls.map(|listener| ("https", &hosts.kernel, listener));
        let mut pages = Vec::new();
        for (scheme, host, listener) in plain.chain(by_tls) {
            rustix::net::listen(listener, LISTEN_BACKLOG).with_context(|| format!("listen for {scheme}"))?;
            pages.push(page(scheme, host, listener.local_addr()?.port()));
        }
        if pages.is_empty() {
            return Ok(None);
        }
        let intake = Intake {
            volume: Arc::clone(volume),
            open_titles: Arc::clone(open_titles),
            cache: Arc::clone(cache),
            loops,
            ingest,
        };
        let live = live.context("web side: no live titles")?;
        let site = ServerSite {
            intake,
            album,
            open_titles: Arc::clone(open_titles),
            volume: Arc::clone(volume),
            library: library.map(Arc::clone),
            live,
            orders,
            control,
            cache: Arc::clone(cache),
            registry: Arc::clone(registry),
            indexes: Mutex::default(),
            rtsp_port,
            folders,
            reload,
            guide: GuideMaker::default(),
        };
        let config = WebConfig { listeners, carrier, secure, limits, proxies, gate, feed, totals };
        let web = millrace_web::start(config, Arc::new(site)).context("web side")?;
        pages.iter().for_each(|page| println!("page {page}"));
        Ok(Some(web))
    }
}

/// Bytes of memory for responses: the configured size, or one in proportion to the media cache.
fn memory(chosen: Option<ByteLen>, cache: ByteLen) -> usize {
    let usual = cache.0.saturating_mul(MEMORY_PER_CACHE).clamp(MIN_MEMORY_BYTES, DEFAULT_MEMORY_BYTES);
    usize::try_from(chosen.map_or(usual, |chosen| chosen.0)).unwrap_or(usize::MAX)
}

/// What URLs name.
pub(super) struct Hosts {
    /// The offload engine's address if one runs.
    pub(super) offload: Option<String>,
    /// The offload engine's address if one runs, else as below.
    pub(super) first: String,
    /// Where the kernel's TCP listens.
    pub(super) kernel: String,
}

/// The page's address as it is printed.
fn page(scheme: &str, host: &str, port: u16) -> String {
    format!("{scheme}://{}:{port}/", invite::in_url(host))
}

/// The server, as the web side sees it.
struct ServerSite {
    intake: Intake,
    album: Arc<Album>,
    open_titles: Arc<OpenTitles>,
    volume: Arc<Volume>,
    /// Whose titles are served too.
    library: Option<Arc<LibraryNode>>,
    live: LiveParts,
    orders: mpsc::UnboundedSender<Order>,
    control: Asker,
    cache: Arc<Cache>,
    registry: Arc<Registry>,
    /// Those that were asked for last.
    indexes: Mutex<VecDeque<(TitleId, Arc<TitleIndex>)>>,
    rtsp_port: u16,
    /// The served folders, absolute.
    folders: Vec<PathBuf>,
    reload: Arc<ReloadRequests>,
    guide: GuideMaker,
}

impl ServerSite {
    fn id_of(&self, name: &str) -> Result<TitleId, SiteError> {
        self.open_titles.info_named(name).map(|info| info.id).ok_or(SiteError::NoTitle)
    }

    fn remote(&self, name: &str) -> Option<Arc<RemoteTitle>> {
        self.library.as_ref()?.remote.find(name)
    }

    /// The same for reading: a title that only the library has is fetched then.
    fn id_to_read(&self, name: &str) -> Result<TitleId, SiteError> {
        let error = match self.id_of(name) {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        let (Some(library), Some(title)) = (&self.library, self.remote(name)) else { return Err(error) };
        Err(SiteError::Coming(library.remote.request(&title, MonotonicClock.now())))
    }

    fn kept(&self, id: TitleId) -> Option<Arc<TitleIndex>> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let place = indexes.iter().position(|(other, _)| *other == id)?;
        let found = indexes.remove(place)?;
        let index = Arc::clone(&found.1);
        indexes.push_front(found);
        Some(index)
    }
}

fn unreadable(error: impl std::fmt::Display) -> SiteError {
    SiteError::Unreadable(error.to_string())
}

impl Site for ServerSite {
    fn titles(&self) -> Vec<TitleInfo> {
        let mut titles = self.open_titles.titles();
        titles.extend(self.open_titles.growing_titles());
        titles.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(library) = &self.library {
            titles.extend(library.remote.titles_beside(&titles));
            titles.sort_by(|a, b| a.name.cmp(&b.name));
        }
        titles
    }

    fn library_copy(&self, title: &TitleInfo) -> Option<LibraryCopy> {
        self.library.as_ref()?.remote.copy_of(title)
    }

    fn live(&self) -> Vec<LiveStatus> {
        let casts = self.control.casts();
        let status = |channel: &Arc<LiveChannel>| LiveStatus {
            recording: self.live.recordings.of(channel.name()),
            ..status::live(channel, self.live.titles.viewers(channel), &casts)
        };
        self.live.titles.all().iter().map(status).collect()
    }

    fn server_id(&self) -> [u8; 16] {
        self.volume.superblock().volume.0
    }

    fn guide(&self) -> Arc<[ChannelGuide]> {
        self.guide.guide(&self.live.titles, &self.open_titles)
    }

    fn record_live(&self, name: &str, wish: RecordingWish) -> Result<LiveRecording, RecordingRefusal> {
        self.live.recordings.start(name, wish)
    }

    fn stop_recording(&self, name: &str) -> Result<LiveRecording, RecordingRefusal> {
        self.live.recordings.stop(name)
    }

    fn live_window(&self, name: &str) -> Option<LiveWindow> {
        self.live.titles.get(name).map(|channel| status::live_window(&channel))
    }

    fn live_edge(&self, name: &str) -> Option<watch::Receiver<LiveEdge>> {
        self.live.titles.get(name).map(|channel| channel.segments_edge())
    }

    fn feed_live(&self, name: &str) -> Result<Box<dyn LiveFeed>, LiveRefusal> {
        Ok(Box::new(LivePush::begin(&self.live.titles, name)?))
    }

    fn add_live(&self, source: NewLiveSource) -> Result<(), LiveRefusal> {
        self.live.sources.add(source)
    }

    fn remove_live(&self, name: &str) -> Result<(), LiveRefusal> {
        self.live.sources.remove(name)
    }

    fn reload(&self) -> Option<oneshot::Receiver<Arc<ReloadReport>>> {
        self.reload.request()
    }

    fn last_reload(&self) -> Arc<ReloadReport> {
        self.reload.last()
    }

    fn rtsp_port(&self) -> Option<u16> {
        Some(self.rtsp_port)
    }

    fn title(&self, name: &str) -> Option<TitleInfo> {
        self.open_titles.info_named(name).or_else(|| Some(self.remote(name)?.info().clone()))
    }

    fn renditions(&self, name: &str) -> Vec<TitleInfo> {
        let all = self.open_titles.renditions_of(name);
        all.iter().filter_map(|rendition| self.open_titles.info_named(&rendition.title)).collect()
    }

    fn index(&self, name: &str) -> Result<Arc<TitleIndex>, SiteError> {
        if let Some(growing) = self.open_titles.growing(name) {
            return Ok(growing.index());
        }
        let id = self.id_to_read(name)?;
        if let Some(index) = self.kept(id) {
            return Ok(index);
        }
        let index = self.volume.open_title(id, DEFAULT_PACKET_BYTES).map_err(unreadable)?.index;
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.push_front((id, Arc::clone(&index)));
        indexes.truncate(MAX_WEB_INDEXES);
        Ok(index)
    }

    fn read(&self, name: &str, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        if let Some(growing) = self.open_titles.growing(name) {
            return growing.media().read_at(from, out).map_err(unreadable);
        }
        let mut reader = MediaReader::open(&self.volume, self.id_to_read(name)?).map_err(unreadable)?;
        reader.read_exact(from, out).map_err(unreadable)
    }

    fn open<'a>(&'a self, name: &'a str) -> Result<Box<dyn TitleBytes + 'a>, SiteError> {
        let reader = MediaReader::open(&self.volume, self.id_to_read(name)?).map_err(unreadable)?;
        Ok(Box::new(OpenTitle(reader)))
    }

    fn is_served_folder(&self, folder: &Path) -> bool {
        self.folders.iter().any(|served| served == folder)
    }

    fn pictures(&self, title: &TitleInfo) -> PicturesState {
        if self.remote(&title.name).is_some() {
            return PicturesState::Delayed("the title is in the library only".to_owned());
        }
        if title.is_growing() {
            return PicturesState::Delayed("the title is being recorded".to_owned());
        }
        self.album.state(title.id)
    }

    fn read_pictures(&self, title: &TitleInfo) -> Result<Pictures, SiteError> {
        self.album.read(title.id).ok_or(SiteError::NoTitle)
    }

    fn subtitles(&self, title: &TitleInfo, file: &str) -> Result<String, SiteError> {
        if self.remote(&title.name).is_some() {
            return Err(SiteError::NoTitle);
        }
        let first = self.volume.read_subtitles(title.id, file);
        if !matches!(first, Err(StoreError::BadTitle { .. })) {
            return first.map_err(unreadable);
        }
        // Another process may have replaced them since the titles were listed.
        let label = title.subtitles.iter().find(|track| track.file == file).map(|track| &track.label);
        self.open_titles.look_again(&self.volume).map_err(unreadable)?;
        let now = self.open_titles.info(title.id).ok_or(SiteError::NoTitle)?;
        let track = now.subtitles.iter().find(|track| Some(&track.label) == label);
        let track = track.ok_or(SiteError::NoTitle)?;
        self.volume.read_subtitles(title.id, &track.file).map_err(unreadable)
    }

    fn put_subtitles(&self, name: &str, label: &SubtitleLabel, bytes: &[u8]) -> Result<bool, NotTaken> {
        let title = self.open_titles.info_named(name);
        let title = title.ok_or_else(|| NotTaken::Broken("no such title".to_owned()))?;
        self.intake.put_subtitles(&title, label, bytes)
    }

    fn remove_subtitles(&self, name: &str, label: &SubtitleLabel) -> Result<bool, SiteError> {
        let removed = self.volume.remove_subtitles(self.id_of(name)?, label).map_err(unreadable)?;
        let _ = self.open_titles.look_again(&self.volume);
        Ok(removed)
    }

    fn can_take(&self, bytes: Option<u64>) -> Result<(), NotTaken> {
        self.intake.can_take(bytes)
    }

    fn take_in(
        &self,
        upload: UploadNames<'_>,
        replaced: Option<&TitleInfo>,
        bytes: &mut dyn Read,
    ) -> Result<TitleInfo, NotTaken> {
        self.intake.take_in(upload, replaced, bytes)
    }

    fn send(&self, order: Order) {
        // Without a control side the order is dropped, and with it its connection: the server ends.
        drop(self.orders.send(order));
    }

    fn fetch(&self, fetch: Fetch) {
        self.control.fetch(fetch);
    }

    fn has_viewer_sessions(&self) -> bool {
        true
    }

    fn admit_viewer(&self, admission: ViewerAdmission) {
        self.control.admit_viewer(admission);
    }

    fn take_tunnel(&self, tunnel: TunnelConn) {
        self.control.take_tunnel(tunnel);
    }

    fn status(&self) -> Result<Status, SiteError> {
        let snapshot = self.control.snapshot().ok_or_else(|| unreadable("the server does not answer"))?;
        let library = self.library.as_ref().map(|library| library.status());
        Ok(Status { library, ..status::of(snapshot, status::members(&self.volume, &self.cache)) })
    }

    fn summary(&self) -> Result<Status, SiteError> {
        let in_use = self.control.in_use().ok_or_else(|| unreadable("the server does not answer"))?;
        let (room, members) = (status::room(in_use), status::members(&self.volume, &self.cache));
        let library = self.library.as_ref().map(|library| library.status());
        Ok(Status { room, members, library, ..Status::default() })
    }

    fn remove(&self, name: &str) -> Result<(), SiteError> {
        let recording = self.open_titles.growing(name).map(|growing| growing.info().id);
        if recording.is_some() && !self.live.recordings.abort(name) {
            return Err(unreadable("the recording ends when its disk answers; remove it again then"));
        }
        // A recording may have become a title in this moment. By its id: another title may have its name.
        match self.volume.remove(recording.map_or_else(|| self.id_of(name), Ok)?) {
            Err(StoreError::NoTitle { .. }) if recording.is_some() => {}
            Err(StoreError::NoTitle { .. }) => return Err(SiteError::NoTitle),
            removed => removed.map_err(unreadable)?,
        }
        // It is listed no longer from now on. If that cannot be seen now, it is within seconds.
        let _ = self.open_titles.look(&self.volume);
        Ok(())
    }

    fn pictures_version(&self) -> u64 {
        self.album.version()
    }

    fn rename(&self, name: &str, title: &str) -> Result<TitleInfo, SiteError> {
        let id = self.id_of(name)?;
        match self.volume.edit_title(id, TitleEdit::Title(title.to_owned())) {
            Err(StoreError::NoTitle { .. }) => return Err(SiteError::NoTitle),
            edited => edited.map_err(unreadable)?,
        }
        // The new name is listed from now on. If this look fails, a later one follows within
        // seconds.
        let _ = self.open_titles.look_again(&self.volume);
        self.volume.find(&id.to_string()).map_err(unreadable)?.ok_or(SiteError::NoTitle)
    }

    fn titles_version(&self) -> u64 {
        let of_library = self.library.as_ref().map_or(0, |library| library.remote.version());
        self.open_titles.version().wrapping_add(of_library)
    }

    fn counters(&self, visit: &mut dyn FnMut(CounterSample<'_>)) {
        self.registry.read(visit);
    }
}

/// A title that is read on.
struct OpenTitle(MediaReader);

impl TitleBytes for OpenTitle {
    fn read(&mut self, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        self.0.read_exact(from, out).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_address_has_port_and_ipv6_in_brackets() {
        assert_eq!(page("http", "::1", 8080), "http://[::1]:8080/");
        assert_eq!(page("https", "tv.example", 80), "https://tv.example:80/");
    }

    #[test]
    fn memory_follows_the_cache_within_bounds() {
        const MIB: u64 = 1 << 20;
        for (chosen, cache, expected) in [
            (None, 256, 512),
            (None, 32, 64),
            (None, 16, 64),
            (None, 100, 200),
            (None, 4096, 512),
            (Some(2048), 256, 2048),
        ] {
            let chosen = chosen.map(|mib: u64| ByteLen(mib * MIB));
            assert_eq!(memory(chosen, ByteLen(cache * MIB)) as u64, expected * MIB, "{cache}");
        }
    }
}
