//! FEC beside the title: the viewer's request, and the quiet streams that carry it
//! (`docs/ref/rtsp.md`).
//!
//! To the engine, each parity track of a title is a title of its own. A stream of its own (the
//! "companion") sends it; it is opened, paused and closed with the media stream, and played when
//! the media run begins. Media whose viewer repairs is played with `spare`: then its leases may be
//! extents with holes. `spare` belongs to a run, so FEC is switched during playback by queueing
//! another run behind the current one: the viewer sees neither a gap nor other packet numbers.
//! Where that cannot be done in time, the run ends and another one begins, some milliseconds later.

use std::net::IpAddr;
use std::ops::Range;

use millrace_core::time::{Instant, MediaTicks};
use millrace_offload::command::{Command, Numbering, RunCut, RunSpec};

use super::event::{FecChange, ServiceEvent};
use super::keys::{StreamKey, StreamPath};
use super::matrix::{FecMatrix, FecMode, FecWish, TRACK_RS, port_offset};
use super::parity::{Companion, Fec};
use super::ports::TitleEntry;
use super::refusal::FecRefusal;
use super::run::{ActiveRun, DeliveryState, PlannedRun, Queued, QueuedChange};
use super::state::Service;
use super::stream::PlaybackStream;
use super::streams::Closing;
use crate::limits::QUEUE_AHEAD_NS;

/// What becomes of a wish for FEC.
#[derive(Debug)]
pub(super) enum Granted {
    /// Nothing was asked.
    Silent,
    /// This mode is available and can be switched to.
    Possible { matrix: FecMatrix, mode: FecMode },
    /// It is not available.
    Refused(FecRefusal),
}

impl PlaybackStream {
    /// Returns the FEC that the viewer gets beside the title.
    pub fn fec_mode(&self) -> FecMode {
        self.fec.as_ref().map_or(FecMode::Off, |fec| fec.mode)
    }

    /// Packets of one codeword that the viewer can repair.
    pub(super) fn spare(&self) -> u8 {
        self.fec.as_ref().map_or(0, |fec| fec.matrix.spare(fec.mode))
    }

    /// Whether the session only stands still to go on, with other FEC or from another engine.
    pub(super) fn goes_on(&self) -> bool {
        self.moves_to.is_some() || self.fec.as_ref().is_some_and(|fec| fec.change == Some(true))
    }

    /// Its media stream does not go on by itself when it stands still. `true` if it would have until now.
    pub(super) fn stay(&mut self) -> bool {
        let was_moving = self.moves_to.take().is_some();
        match self.fec.as_mut().map(|fec| &mut fec.change) {
            Some(change @ Some(true)) => {
                *change = Some(false);
                true
            }
            _ => was_moving,
        }
    }

    /// Bits a second of its rate that are FEC.
    pub(super) fn fec_rate(&self) -> u64 {
        self.fec.as_ref().map_or(0, |fec| fec.rate)
    }

    /// Takes the reason why it has to play without FEC; reported once.
    pub(super) fn take_fec_left_out(&mut self) -> Option<String> {
        self.fec.as_mut()?.left_out.take()
    }

    /// Returns the data sent beside the media and its destination, as text; `None` if no FEC was
    /// requested.
    pub fn fec_grant(&self) -> Option<String> {
        let rtp = self.path.address(false)?;
        self.fec.as_ref().map(|fec| fec.matrix.grant(fec.mode, rtp.port()))
    }

    /// Returns the mode for a viewer that asks for FEC without a mode; `None` if it did not ask for
    /// FEC at its admission.
    pub fn fec_on(&self) -> Option<FecMode> {
        self.fec.as_ref().map(|fec| fec.on)
    }

    pub(super) fn companions(&self) -> impl Iterator<Item = &Companion> + use<'_> {
        self.fec.iter().flat_map(|fec| &fec.companions)
    }

    /// UDP ports of the viewer that FEC goes to.
    fn fec_ports(&self) -> impl Iterator<Item = u16> + use<'_> {
        self.companions().filter_map(|companion| self.port_of(companion.track))
    }

    fn port_of(&self, track: u8) -> Option<u16> {
        self.path.address(false)?.port().checked_add(port_offset(track))
    }
}

impl Service {
    /// Determines how much of a request can be granted, considering only title and path.
    pub(super) fn grant(&self, wish: FecWish, entry: &TitleEntry, path: StreamPath) -> Granted {
        let (wished, rtp) = match (wish, path.address(false)) {
            (FecWish::Silent, _) => return Granted::Silent,
            (FecWish::Unclear, _) => return Granted::Refused(FecRefusal::NotUnderstood),
            (_, None) => return Granted::Refused(FecRefusal::UdpOnly),
            (_, Some(_)) if entry.layout.is_raw() => return Granted::Refused(FecRefusal::RtpOnly),
            (FecWish::Mode(wished), Some(rtp)) => (wished, rtp),
        };
        let Some(matrix) = entry.fec else { return Granted::Refused(FecRefusal::NoParity) };
        if !self.config.fec {
            return Granted::Refused(FecRefusal::Disabled);
        }
        if rtp.port().checked_add(port_offset(TRACK_RS)).is_none() {
            return Granted::Refused(FecRefusal::NoPorts);
        }
        Granted::Possible { matrix, mode: matrix.at_most(wished) }
    }

    /// Gives a newly admitted stream its FEC. `None` if the request did not mention FEC.
    pub(super) fn begin_fec(&mut self, key: StreamKey, granted: Granted) -> Option<Result<(), FecRefusal>> {
        let (matrix, mode) = match granted {
            Granted::Silent => return None,
            Granted::Refused(refusal) => return Some(Err(refusal)),
            Granted::Possible { matrix, mode } => (matrix, mode),
        };
        let stream = self.streams.get_mut(&key)?;
        stream.fec = Some(Fec {
            matrix,
            on: mode.max(FecMode::Xor),
            mode: FecMode::Off,
            rate: 0,
            companions: Vec::new(),
            since: 0,
            next_run: None,
            change: None,
            left_out: None,
            kept_open: Vec::new(),
        });
        let begun = self.reserve_fec(key, mode).and_then(|()| self.open_companions(key));
        if begun.is_ok() {
            self.tell_fec(key, FecChange::Granted, None);
        }
        Some(begun)
    }

    /// Makes the rate of another mode the stream's, if there is room for what that is more: admission counts it from then on.
    fn reserve_fec(&mut self, key: StreamKey, mode: FecMode) -> Result<(), FecRefusal> {
        let stream = self.streams.get(&key).ok_or(FecRefusal::NotAsked)?;
        let fec = stream.fec.as_ref().ok_or(FecRefusal::NotAsked)?;
        for &track in mode.tracks() {
            let port = stream.port_of(track).ok_or(FecRefusal::NoPorts)?;
            let own = stream.path.address(true).is_some_and(|rtcp| rtcp.port() == port);
            if own || self.at_port(stream.viewer.ip(), port).iter().any(|other| *other != key) {
                return Err(FecRefusal::PortInUse(port));
            }
        }
        let rate = fec.matrix.rate(mode, stream.title_rate());
        let (engine, missing) = (stream.engine, mode.tracks().len().saturating_sub(fec.companions.len()));
        if rate > fec.rate {
            self.room_for_more(stream, rate - fec.rate)?;
        }
        if self.slots.stream_room(engine) < missing {
            return Err(FecRefusal::EngineStreams);
        }
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let Some(fec) = stream.fec.as_mut() else { return Ok(()) };
        let before = std::mem::replace(&mut fec.rate, rate);
        fec.mode = mode;
        let rate = stream.rate - before + rate;
        self.change_rate(key, rate);
        Ok(())
    }

    /// Opens the companions that the stream's mode demands and that are not open. If that fails,
    /// the stream gets none.
    fn open_companions(&mut self, key: StreamKey) -> Result<(), FecRefusal> {
        let Some(stream) = self.streams.get(&key) else { return Ok(()) };
        let (engine, entry) = (stream.engine, stream.entry.clone());
        let is_missing = |track: &&u8| !stream.companions().any(|companion| companion.track == **track);
        let missing: Vec<_> = stream.fec_mode().tracks().iter().filter(is_missing).copied().collect();
        for track in missing {
            let opened = match self.titles.library.open_track(&entry, track) {
                Ok(opened) => match self.place_for(engine, opened.title) {
                    Some(place) => Ok(Companion::new(&entry, track, place, opened)),
                    None => Err(FecRefusal::EngineStreams),
                },
                Err(error) => {
                    self.tell(ServiceEvent::Broken {
                        title: entry.name.clone(),
                        reason: format!("FEC: {error}"),
                    });
                    Err(FecRefusal::Broken)
                }
            };
            match opened {
                Ok(companion) => self.open_companion(key, companion),
                Err(why) => {
                    self.retire_companions(key);
                    let _ = self.reserve_fec(key, FecMode::Off); // giving back never fails
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    fn open_companion(&mut self, key: StreamKey, companion: Companion) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let Some(port) = stream.port_of(companion.track) else { return };
        let Some(dest) = stream.path.beside(port) else { return };
        let (engine, ip) = (stream.engine, stream.viewer.ip());
        let Some(fec) = stream.fec.as_mut() else { return };
        let command = Command::Open { stream: companion.stream, dest, quiet: true, once: false };
        fec.companions.push(companion);
        self.streams.add_place(key, engine, companion.stream);
        self.streams.add_port(key, ip, port);
        self.command(engine, command);
    }

    /// Orders the engine to forget the companions. Their reservations stay.
    pub(super) fn retire_companions(&mut self, key: StreamKey) {
        self.retire_companions_but(key, &[]);
    }

    /// The same, but for those of these tracks.
    fn retire_companions_but(&mut self, key: StreamKey, kept: &[u8]) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let leaves = |companion: &Companion| !kept.contains(&companion.track);
        let leaving: Vec<_> = stream.companions().filter(|companion| leaves(companion)).copied().collect();
        let ports: Vec<_> = leaving.iter().filter_map(|companion| stream.port_of(companion.track)).collect();
        let (engine, ip) = (stream.engine, stream.viewer.ip());
        let Some(fec) = stream.fec.as_mut() else { return };
        fec.companions.retain(|companion| !leaves(companion));
        for companion in leaving {
            let stream = companion.stream;
            let title = companion.media.title;
            let closing = Closing { title, made: Vec::new(), name: None, ended: None };
            self.streams.begin_closing(engine, stream, closing);
            self.command(engine, Command::Close { stream });
        }
        for port in ports {
            self.streams.forget_port(key, ip, port);
        }
    }

    /// Records that the media stream has been ordered to play these packets. If `anew`, no packet
    /// before them counts as sent.
    pub(super) fn prepare_companions(
        &mut self,
        key: StreamKey,
        packets: Range<u32>,
        anew: bool,
        only_new: bool,
    ) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let is_plain = stream.is_plain();
        let Some(fec) = stream.fec.as_mut() else { return };
        if !is_plain {
            // These packets are not the ones that parity protects, or are not sent when their
            // parity is due.
            fec.next_run = None;
            return;
        }
        if anew {
            fec.since = packets.start;
        }
        fec.next_run = Some((packets, only_new));
    }

    /// The media's run has begun: its first packet leaves at `at`, and its FEC follows.
    pub(super) fn play_companions(&mut self, key: StreamKey, at: Instant) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let (engine, entry, mut last_run) = (stream.engine, stream.entry.clone(), stream.last_run);
        let Some(fec) = stream.fec.as_mut() else { return };
        let Some((Range { start: from, end: until }, only_new)) = fec.next_run.take() else { return };
        let matrix = fec.matrix;
        let mut commands = Vec::new();
        for companion in fec.companions.iter_mut().filter(|companion| !(only_new && companion.played)) {
            let (stream, track) = (companion.stream, companion.track);
            let first = matrix.first_whole(track, fec.since).max(matrix.first_due(from));
            let end = matrix.whole_until(track, until, entry.packets);
            let departure = matrix.departure(first, entry.packets);
            let times = (entry.access.time_of(from), entry.access.time_of(departure));
            // Without times of packets FEC cannot be timed; the title goes on without it.
            let (Some(start), Some(time)) = times else { continue };
            if first < end {
                let each = matrix.column_packets(track);
                last_run = last_run.next();
                let run = RunSpec {
                    run: last_run,
                    media: companion.media,
                    from: first.saturating_mul(each),
                    until: end.saturating_mul(each),
                    numbering: Numbering::Title,
                    scale_permille: 1000,
                    step: None,
                };
                let at = at.plus_ns(MediaTicks(time.0.saturating_sub(start.0)).to_ns());
                companion.played = true;
                // It may still be sending the FEC of the last packets before a jump: that ends here.
                commands.push(Command::Play { stream, at, ahead_ms: 0, run });
            } else if companion.played {
                commands.push(Command::Pause { stream });
            }
        }
        stream.last_run = last_run;
        for command in commands {
            self.command(engine, command);
        }
    }

    /// Pauses the companions, because the media stream has been ordered to pause.
    pub(super) fn pause_companions(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(&key) else { return };
        let engine = stream.engine;
        let played = stream.companions().filter(|companion| companion.played);
        let streams: Vec<_> = played.map(|companion| companion.stream).collect();
        for stream in streams {
            self.command(engine, Command::Pause { stream });
        }
    }

    /// Switches a stream's FEC over, while it plays too: a moment from now and without a gap.
    ///
    /// # Errors
    /// Why it stays as it is.
    pub(super) fn switch_fec(
        &mut self,
        now: Instant,
        key: StreamKey,
        mode: FecMode,
    ) -> Result<(), FecRefusal> {
        self.switch(now, key, mode, true)
    }

    /// Switches FEC over, at once unless it `may_wait`.
    fn switch(
        &mut self,
        now: Instant,
        key: StreamKey,
        mode: FecMode,
        may_wait: bool,
    ) -> Result<(), FecRefusal> {
        if self.streams.get(&key).is_some_and(|stream| stream.fec.is_some() && stream.fec_mode() == mode) {
            return Ok(());
        }
        self.reserve_fec(key, mode)?;
        let Some(media) = self.streams.get(&key).map(|stream| stream.media) else { return Ok(()) };
        match media {
            // The media sent now is not accompanied by FEC: the run need not know.
            DeliveryState::Running(_) if self.streams.get(&key).is_some_and(|stream| !stream.is_plain()) => {
                self.change_companions(key);
            }
            DeliveryState::Running(run) if may_wait && self.queue_switch(now, key, run) => {}
            DeliveryState::Running(run) => self.pause_to_switch(key, run),
            DeliveryState::Pausing(_) => {
                if let Some(fec) = self.streams.get_mut(&key).and_then(|stream| stream.fec.as_mut()) {
                    fec.change = fec.change.or(Some(false));
                }
            }
            DeliveryState::Fresh | DeliveryState::Paused { .. } | DeliveryState::Ended { .. } => {
                self.change_companions(key)
            }
        }
        Ok(())
    }

    /// Ends the media's run; another one for the session's mode follows when it stands still.
    fn pause_to_switch(&mut self, key: StreamKey, run: ActiveRun) {
        let Some(fec) = self.streams.get_mut(&key).and_then(|stream| stream.fec.as_mut()) else { return };
        fec.change = Some(true);
        self.pause_run(key, run);
    }

    /// Has the media go over to a run for the session's mode, a moment from now and where an extent ends: then there is time to read
    /// the next one, and no extent is needed for both runs. `false`: it ends too soon, or its times are not known.
    fn queue_switch(&mut self, now: Instant, key: StreamKey, run: ActiveRun) -> bool {
        let Some(stream) = self.streams.get_mut(&key) else { return false };
        let Some(position) = stream.position(now) else { return false };
        let ahead = MediaTicks(position.0 + MediaTicks::from_ns(QUEUE_AHEAD_NS).0);
        let per_extent = stream.entry.layout.packets_per_extent();
        let packet = stream.entry.access.packet_at(ahead).next_multiple_of(per_extent);
        let time = stream.entry.access.time_of(packet).filter(|_| packet < run.stop.packet);
        let Some(time) = time else { return false };
        let spec = RunSpec {
            run: stream.next_run(),
            media: stream.run_media(),
            from: packet,
            until: run.stop.packet,
            numbering: Numbering::Title,
            scale_permille: 1000,
            step: None,
        };
        let (engine, place) = (stream.engine, stream.place);
        let queued = Queued { run: spec.run, from: packet, time, stop: run.stop, next: QueuedChange::Fec };
        stream.queued = Some(queued);
        self.command(engine, Command::Queue { stream: place, cut: RunCut::At(packet), run: spec });
        true
    }

    /// The run for another mode has taken over.
    pub(super) fn fec_switched(&mut self, key: StreamKey, packets: Range<u32>) {
        self.change_companions(key);
        self.prepare_companions(key, packets, false, true);
    }

    /// The run for another mode will not be. Then the run that lasts ends.
    pub(super) fn fec_missed(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        match (stream.media, stream.fec.as_mut()) {
            (DeliveryState::Running(run), _) => self.pause_to_switch(key, run),
            (_, Some(fec)) => fec.change = fec.change.or(Some(false)),
            _ => {}
        }
    }

    /// Finishes the switch that was postponed until the media stream stops.
    pub(super) fn finish_switch(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let queued = stream.queued.take_if(|queued| queued.next == QueuedChange::Fec);
        let Some(fec) = stream.fec.as_mut() else { return };
        if queued.is_some() {
            fec.change = fec.change.or(Some(false));
        }
        let Some(goes_on) = fec.change.take() else { return };
        self.change_companions(key);
        let waits = self.streams.get(&key).is_none_or(|stream| stream.pending.is_some());
        if goes_on && !waits {
            let plan = self.streams.get(&key).map(PlannedRun::resume);
            // A title that has ended meanwhile has nothing to go on with.
            let _ = plan.map(|plan| self.start(now, key, plan));
        }
    }

    /// Opens the companions that the session's mode demands, and closes all others. The media's
    /// next run learns how much its viewer can repair.
    pub(super) fn change_companions(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(&key) else { return };
        self.retire_companions_but(key, stream.fec_mode().tracks());
        if let Err(refusal) = self.open_companions(key) {
            self.tell_fec(key, FecChange::Switched, Some(refusal.to_string()));
        }
        self.release_tracks(key);
    }

    /// A companion cannot go on: the title goes on without FEC.
    pub(super) fn companion_failed(&mut self, now: Instant, key: StreamKey, reason: String) {
        let on = self.streams.get(&key).is_some_and(|stream| stream.fec_mode() != FecMode::Off);
        if on && self.switch(now, key, FecMode::Off, false).is_ok() {
            self.tell_fec(key, FecChange::Failed, Some(reason));
        }
    }

    /// The title plays without the FEC that was granted.
    pub(super) fn fec_left_out(&mut self, key: StreamKey, why: String) {
        if let Some(fec) = self.streams.get_mut(&key).and_then(|stream| stream.fec.as_mut()) {
            fec.left_out = Some(why.clone());
        }
        self.tell_fec(key, FecChange::Switched, Some(why));
    }

    pub(super) fn tell_fec(&mut self, key: StreamKey, change: FecChange, trouble: Option<String>) {
        if let Some(stream) = self.streams.get(&key) {
            let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
            let mode = stream.fec_mode();
            self.tell(ServiceEvent::Fec { session, title, mode, change, trouble });
        }
    }

    /// A new stream gets its title on ports to which another one's FEC goes: that must stop.
    pub(super) fn clear_fec_ports(
        &mut self,
        now: Instant,
        key: Option<StreamKey>,
        ip: IpAddr,
        ports: impl Iterator<Item = u16>,
    ) {
        for port in ports {
            let holders = self.streams.at_port(ip, port).to_vec();
            for other in holders.into_iter().filter(|other| Some(*other) != key) {
                let sends =
                    self.streams.get(&other).is_some_and(|stream| stream.fec_ports().any(|p| p == port));
                if sends {
                    // Packets sent until the run ends could have been repaired; the port is no
                    // longer its own.
                    let _ = self.switch(now, other, FecMode::Off, false);
                    self.retire_companions(other);
                    let trouble = format!("another session has port {port}");
                    self.tell_fec(other, FecChange::Switched, Some(trouble));
                }
            }
        }
    }
}
