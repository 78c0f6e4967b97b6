//! A viewer over HTTP: its connection, its requests, and its picture.

mod link;
mod turns;

use std::cell::RefCell;

use millrace_core::time::Instant;

use crate::limits::{MAX_HTTP_REDIRECTS, MAX_PLAYLIST_BYTES, MAX_WEB_TRIES, WEB_READ_BYTES};
use crate::plan::LoadPlan;
use crate::target::Seat;
use crate::ts::scan::TsScan;
use crate::viewer::{SeekTarget, ViewerContext, ViewerStage};
use crate::web::address::HttpUrl;
use crate::web::buffer::PlayBuffer;
use crate::web::exchange::{ByteRange, ResponsePart, request};
use crate::web::figures::WebFigures;
use crate::web::head::{BodyLength, Head};
use crate::web::hls::{Hls, Want};
use crate::web::hosts::Hosts;
use crate::web::media_clock::{ClockHints, MediaClock, rate_ns};
use crate::web::options::ns;
use crate::web::playlist::{PlaylistFault, Resource};
use crate::web::range::{byte_at, from, judge};
use link::{Got, HttpLink};

/// Bytes that count as one packet where packets are counted, as over RTP.
const PACKET_BYTES: u64 = 1316;

thread_local! {
    /// What all viewers of a thread read into; nothing stays in it.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; WEB_READ_BYTES]);
}

/// The object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    File,
    Playlist,
    Section,
    Segment,
}

impl Purpose {
    /// As failures begin.
    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Playlist => "playlist",
            Self::Section => "section",
            Self::Segment => "segment",
        }
    }
}

/// The request under way.
struct PendingRequest {
    purpose: Purpose,
    /// The resource wanted, before redirects.
    wanted: Resource,
    /// Where it is asked for now.
    url: HttpUrl,
    redirects: u32,
    tries: u32,
    since: Instant,
    has_head: bool,
}

/// How the title is cut.
enum Course {
    File { clock: Box<MediaClock>, whole_bytes: Option<u64> },
    Hls { way: Box<Hls>, playlist: Vec<u8>, scan: TsScan, media_ns: u64 },
}

/// One viewer.
pub(crate) struct WebViewer {
    url: HttpUrl,
    hosts: std::sync::Arc<Hosts>,
    index: u32,
    stage: ViewerStage,
    began: Instant,
    /// The last moment that was passed in.
    now: Instant,
    link: HttpLink,
    asked: Option<PendingRequest>,
    /// When connecting or the head of a reply is given up.
    deadline: Option<Instant>,
    /// The buffer is full, or there is nothing to fetch, until then.
    rests_until: Option<Instant>,
    course: Course,
    buffer: PlayBuffer,
    failure: Option<String>,
    setup_us: Option<u64>,
    has_ended: bool,
    first_media: Option<Instant>,
    last_media: Instant,
    /// Bytes that have not made up a packet yet.
    odd_bytes: u64,
    figures: WebFigures,
    /// Whether the bytes of segments are looked into, or only counted.
    is_inspected: bool,
}

impl WebViewer {
    /// Begins to watch `url`.
    pub(crate) fn new(
        plan: &LoadPlan,
        seat: Seat,
        url: &HttpUrl,
        hosts: &std::sync::Arc<Hosts>,
        now: Instant,
        lent: &mut ViewerContext<'_>,
    ) -> Result<Self, String> {
        let (options, start_ns) = (&plan.options, plan.place_of(seat.index).to_ns());
        let course = if url.is_playlist() {
            let way = Box::new(Hls::new(url.clone(), start_ns, options.web.variant));
            Course::Hls { way, playlist: Vec::new(), scan: TsScan::default(), media_ns: 0 }
        } else {
            Course::File { clock: Box::new(MediaClock::new(hints(plan), None)), whole_bytes: None }
        };
        let mut viewer = Self {
            url: url.clone(),
            hosts: hosts.clone(),
            index: seat.index,
            stage: ViewerStage::Starting,
            began: now,
            now,
            link: HttpLink::default(),
            asked: None,
            deadline: None,
            rests_until: None,
            course,
            buffer: PlayBuffer::new(options.web.plan(0), now),
            failure: None,
            setup_us: None,
            has_ended: false,
            first_media: None,
            last_media: now,
            odd_bytes: 0,
            figures: WebFigures::default(),
            is_inspected: plan.inspects(seat.index),
        };
        if let Course::File { .. } = viewer.course {
            // Without a rate the byte's number is unknown before some of the title has come.
            let rate = options.nominal_rate.filter(|_| start_ns > 0);
            let byte = rate.map_or(0, |rate| byte_at(start_ns, |bytes| rate_ns(bytes, rate)));
            viewer.ask(now, lent, Purpose::File, Resource { url: url.clone(), range: from(byte) })?;
        }
        viewer.go_on(now, lent);
        viewer.failure.take().map_or(Ok(viewer), Err)
    }

    fn fail(&mut self, reason: String) {
        if self.stage < ViewerStage::Leaving {
            self.failure = Some(reason);
            self.stage = ViewerStage::Done;
        }
    }

    /// Makes a request.
    fn ask(
        &mut self,
        now: Instant,
        lent: &ViewerContext<'_>,
        purpose: Purpose,
        wanted: Resource,
    ) -> Result<(), String> {
        let url = wanted.url.clone();
        let asked =
            PendingRequest { purpose, wanted, url, redirects: 0, tries: 1, since: now, has_head: false };
        self.send(now, lent, asked)
    }

    fn send(
        &mut self,
        now: Instant,
        lent: &ViewerContext<'_>,
        mut asked: PendingRequest,
    ) -> Result<(), String> {
        let options = &lent.plan.options;
        let text = request(&asked.url, asked.wanted.range, &options.user_agent);
        let (hosts, local) = (&self.hosts, lent.plan.local_of(self.index));
        let url = &asked.url;
        self.link.ask(lent, url, text, || {
            let server = hosts.find(url, local).ok_or("connect: the server's name has no address")?;
            Ok((server, local))
        })?;
        (asked.since, asked.has_head) = (now, false);
        self.figures.requests += 1;
        self.figures.connections += u64::from(!self.link.is_reused);
        self.deadline = Some(now + options.reply_timeout);
        self.asked = Some(asked);
        self.proceed(now)
    }

    /// Goes on with connecting and writing.
    fn proceed(&mut self, now: Instant) -> Result<(), String> {
        let was_connected = self.link.is_connected();
        self.link.proceed().map_err(|error| format!("connect: {}", error.kind()))?;
        if let Some(asked) = self.asked.as_mut().filter(|_| !was_connected && self.link.is_connected()) {
            asked.since = now; // the reply is timed from here
        }
        Ok(())
    }

    /// One read, and what follows from it.
    fn read(&mut self, now: Instant, lent: &mut ViewerContext<'_>) -> Result<(), String> {
        let plain = usize::try_from(self.unseen_bytes()).unwrap_or(usize::MAX);
        READ_BUFFER.with_borrow_mut(|buffer| {
            let got = match plain.min(buffer.len()) {
                0 => self.link.read(buffer),
                most => self.link.discard(&mut buffer[..most]),
            };
            match got {
                Got::Nothing => Ok(()),
                Got::Bytes(len) if plain > 0 => self.pass(now, len as u64, lent),
                Got::Bytes(len) => self.take(now, &buffer[..len], lent),
                Got::Closed => self.closed(now, lent),
            }
        })
    }

    /// Returns how many of the bytes to come need no inspection: those of a segment, if it is not
    /// inspected.
    fn unseen_bytes(&self) -> u64 {
        let is_segment = self.asked.as_ref().is_some_and(|asked| asked.purpose == Purpose::Segment);
        if is_segment && !self.is_inspected { self.link.exchange.plain_bytes() } else { 0 }
    }

    /// Counts `bytes` of them as received.
    fn pass(&mut self, now: Instant, bytes: u64, lent: &mut ViewerContext<'_>) -> Result<(), String> {
        self.link.exchange.pass(bytes);
        self.count_media(now, bytes);
        self.odd_bytes += bytes;
        if self.link.exchange.is_done() { self.response_came(now, lent) } else { Ok(()) }
    }

    fn count_media(&mut self, now: Instant, bytes: u64) {
        self.first_media.get_or_insert(now);
        self.last_media = now;
        self.figures.media_bytes += bytes;
    }

    fn take(&mut self, now: Instant, mut bytes: &[u8], lent: &mut ViewerContext<'_>) -> Result<(), String> {
        while let (Some(asked), false) = (&self.asked, bytes.is_empty()) {
            let purpose = asked.purpose;
            let (len, part) = self.link.exchange.take(bytes).map_err(|fault| {
                self.figures.requests_failed += 1;
                format!("{}: {fault}", purpose.name())
            })?;
            bytes = &bytes[len..];
            match part {
                ResponsePart::Frame => {}
                ResponsePart::Head(head) => {
                    if self.head_came(now, &head, lent)? {
                        return Ok(()); // elsewhere, over another connection
                    }
                }
                ResponsePart::Payload(payload) => self.payload_came(now, purpose, payload, lent)?,
            }
            if self.link.exchange.is_done() {
                self.response_came(now, lent)?;
            }
        }
        if !bytes.is_empty() {
            self.link.close(); // nobody asked for this
        }
        Ok(())
    }

    /// Judges a reply. `true` if it leads elsewhere.
    fn head_came(&mut self, now: Instant, head: &Head, lent: &ViewerContext<'_>) -> Result<bool, String> {
        let Some(mut asked) = self.asked.take() else { return Ok(false) };
        let first_byte_us = now.ns_since(asked.since) / 1000;
        self.figures.first_byte_us.get_or_insert(first_byte_us);
        let name = asked.purpose.name();
        let is_redirect = matches!(head.status, 301 | 302 | 303 | 307 | 308);
        if !is_redirect {
            let fault = judge(head, asked.wanted.range);
            self.figures.requests_failed += u64::from(fault.is_some());
            if let Some(fault) = fault {
                return Err(format!("{name}: {fault}"));
            }
            self.setup_us.get_or_insert(now.ns_since(self.began) / 1000);
            (self.stage, self.deadline, asked.has_head) = (ViewerStage::Playing, None, true);
            if let (Purpose::File, Course::File { clock, whole_bytes }) = (asked.purpose, &mut self.course) {
                let length = match head.body {
                    BodyLength::Bytes(bytes) => Some(bytes),
                    _ => None,
                };
                let whole = head.content_range.map_or(length, |(_, whole)| whole);
                *whole_bytes = whole;
                clock.begin(whole);
            }
            self.asked = Some(asked);
            return Ok(false);
        }
        self.figures.redirects += 1;
        asked.redirects += 1;
        self.link.close();
        let location = head.location.as_deref().ok_or_else(|| format!("{name}: a redirect to nowhere"))?;
        if asked.redirects > MAX_HTTP_REDIRECTS {
            self.figures.requests_failed += 1;
            return Err(format!("{name}: more than {MAX_HTTP_REDIRECTS} redirects"));
        }
        asked.url = asked.url.join(location).map_err(|why| format!("{name}: redirect: {why}"))?;
        self.send(now, lent, asked)?;
        Ok(true)
    }

    fn payload_came(
        &mut self,
        now: Instant,
        purpose: Purpose,
        bytes: &[u8],
        lent: &mut ViewerContext<'_>,
    ) -> Result<(), String> {
        if purpose != Purpose::Playlist {
            self.count_media(now, bytes.len() as u64);
        }
        match (&mut self.course, purpose) {
            (Course::File { clock, .. }, _) => {
                let media_ns = clock.bytes(bytes)?;
                let late_ns = self.buffer.received(now, media_ns);
                self.note_late(late_ns, bytes.len() as u64, lent);
            }
            (Course::Hls { playlist, .. }, Purpose::Playlist) => {
                if playlist.len() + bytes.len() > MAX_PLAYLIST_BYTES {
                    return Err(PlaylistFault::TooLong.to_string());
                }
                playlist.extend_from_slice(bytes);
            }
            (Course::Hls { way, scan, .. }, Purpose::Segment) => {
                if way.is_plain_ts() && self.is_inspected {
                    scan.bytes(bytes, |_| {});
                }
                self.odd_bytes += bytes.len() as u64;
            }
            (Course::Hls { .. }, _) => {}
        }
        Ok(())
    }

    /// Records the lateness of `bytes` in packets like those of RTP, so that shares compare.
    fn note_late(&mut self, late_ns: u64, bytes: u64, lent: &mut ViewerContext<'_>) {
        let all = self.odd_bytes + bytes;
        self.odd_bytes = all % PACKET_BYTES;
        lent.lateness.saturating_record_n(late_ns / 1000, all / PACKET_BYTES);
    }

    /// The reply is whole.
    fn response_came(&mut self, now: Instant, lent: &mut ViewerContext<'_>) -> Result<(), String> {
        let Some(asked) = self.asked.take() else { return Ok(()) };
        if !self.link.exchange.keeps_alive() {
            self.link.close();
        }
        let Course::Hls { way, playlist, scan, media_ns } = &mut self.course else {
            self.buffer.complete(now);
            return Ok(());
        };
        match asked.purpose {
            Purpose::Playlist => {
                self.figures.playlists += 1;
                let text = std::mem::take(playlist);
                let read = self.hosts.playlists.read(&text, &asked.url, way.choice());
                read.and_then(|list| way.playlist_came(now, list)).map_err(|fault| fault.to_string())?;
                self.buffer.set_plan(lent.plan.options.web.plan(way.target_ns()));
            }
            Purpose::Section => way.section_came(asked.wanted),
            Purpose::Segment | Purpose::File => {
                self.figures.segments += 1;
                *media_ns = media_ns.saturating_add(way.segment_ns());
                way.segment_came();
                scan.restart();
                let late_ns = self.buffer.received(now, *media_ns);
                self.note_late(late_ns, 0, lent);
            }
        }
        Ok(())
    }

    /// The server closed the connection.
    fn closed(&mut self, now: Instant, lent: &mut ViewerContext<'_>) -> Result<(), String> {
        let end = self.link.exchange.close();
        let was_kept = self.link.is_reused && self.link.exchange.is_untouched();
        self.link.close();
        let (Some(asked), Err(fault)) = (&self.asked, end) else {
            return self.response_came(now, lent);
        };
        let name = asked.purpose.name();
        if !was_kept {
            self.figures.connection_losses += 1;
            self.figures.requests_failed += 1;
        }
        // A server may end a kept connection at any time, also when a request is on its way.
        if !was_kept && (asked.tries >= MAX_WEB_TRIES || asked.purpose == Purpose::File) {
            return Err(format!("{name}: {fault}"));
        }
        if let Course::Hls { playlist, scan, .. } = &mut self.course {
            playlist.clear();
            scan.restart();
        }
        let Some(mut asked) = self.asked.take() else { return Ok(()) };
        asked.tries += u32::from(!was_kept);
        (asked.url, asked.redirects) = (asked.wanted.url.clone(), 0);
        self.send(now, lent, asked)
    }

    /// Whether the buffer is full now, and until when.
    fn rest(&mut self, now: Instant) -> bool {
        if self.rests_until.is_none() {
            self.rests_until = self.buffer.reads_at(now);
        }
        self.rests_until.is_some()
    }

    /// Requests the next resource if it is time; updates the events that the connection is watched
    /// for, and handles the end of the title.
    fn go_on(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        self.now = now;
        if self.stage >= ViewerStage::Leaving {
            return;
        }
        self.rests_until = self.rests_until.filter(|until| now < *until);
        if let Err(reason) = self.fetch_next(now, lent) {
            return self.fail(reason);
        }
        let wants_bytes = match &self.asked {
            // A head is always welcome, and a segment once begun is taken as it comes.
            Some(asked) if asked.purpose == Purpose::File && asked.has_head => !self.rest(now),
            _ => true,
        };
        if let Err(error) = self.link.watch(lent, wants_bytes) {
            return self.fail(format!("epoll: {}", error.kind()));
        }
        if self.buffer.has_ended(now) {
            (self.has_ended, self.stage) = (true, ViewerStage::Done);
        }
    }

    fn fetch_next(&mut self, now: Instant, lent: &ViewerContext<'_>) -> Result<(), String> {
        let Course::Hls { way, .. } = &self.course else { return Ok(()) };
        if self.asked.is_some() || self.buffer.is_complete() {
            return Ok(());
        }
        let (purpose, resource) = match way.want(now) {
            Want::End => {
                self.buffer.complete(now);
                return Ok(());
            }
            Want::Wait(until) => {
                self.rests_until = Some(until);
                return Ok(());
            }
            Want::Playlist(url) => (Purpose::Playlist, Resource { url, range: ByteRange::Whole }),
            Want::Section(resource) => (Purpose::Section, resource),
            Want::Segment(resource) => (Purpose::Segment, resource),
        };
        if matches!(purpose, Purpose::Section | Purpose::Segment) && self.rest(now) {
            return Ok(());
        }
        self.rests_until = None;
        self.ask(now, lent, purpose, resource)
    }

    /// Goes elsewhere in the title.
    fn seek(&mut self, now: Instant, place: SeekTarget, lent: &ViewerContext<'_>) -> bool {
        match &mut self.course {
            Course::Hls { way, playlist, scan, media_ns } => {
                let Some(length_ns) = way.media_ns() else { return false };
                let to_ns = match place {
                    SeekTarget::At(at) => at.to_ns(),
                    SeekTarget::Part(part) => (length_ns as f64 * part.clamp(0.0, 1.0)) as u64,
                };
                if !way.seek(to_ns) {
                    return false;
                }
                scan.restart();
                playlist.clear();
                *media_ns = 0;
                self.abandon();
            }
            Course::File { clock, whole_bytes } => {
                let (media_ns, bytes) = clock.media();
                let to = match place {
                    SeekTarget::Part(part) => {
                        whole_bytes.map(|whole| (whole as f64 * part.clamp(0.0, 1.0)) as u64)
                    }
                    SeekTarget::At(at) if media_ns > 0 => {
                        Some((u128::from(bytes) * u128::from(at.to_ns()) / u128::from(media_ns)) as u64)
                    }
                    SeekTarget::At(_) => None,
                };
                // The last byte at most: a server refuses a range behind the end.
                let last = whole_bytes.map_or(u64::MAX, |whole| whole.saturating_sub(1));
                let Some(to) = to.map(|to| to.min(last)) else { return false };
                self.abandon();
                let resource = Resource { url: self.url.clone(), range: from(to - to % 188) };
                if let Err(reason) = self.ask(now, lent, Purpose::File, resource) {
                    self.fail(reason);
                    return true;
                }
            }
        }
        self.buffer.seek(now);
        true
    }

    /// Drops the request: its resource is no longer wanted.
    fn abandon(&mut self) {
        if self.asked.take().is_some() {
            self.link.close();
        }
        (self.deadline, self.rests_until) = (None, None);
    }
}

fn hints(plan: &LoadPlan) -> ClockHints {
    ClockHints { rate: plan.options.nominal_rate, media_ns: plan.options.web.film_length.map(ns) }
}
