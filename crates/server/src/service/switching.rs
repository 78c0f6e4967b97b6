//! Renditions: titles that show the same as another one at other bit rates, with access points at the same times (`docs/design/0030-renditions.md`).
//! A stream sends one of them in place of its title, and switches at a common access point without a break in sequence numbers and timestamps.
//!
//! Two places among the renditions say all: `sent` and `wanted`. Whatever begins a run sees to it that `sent` becomes `wanted`:
//!
//! | a run begins | it sends | and then |
//! | --- | --- | --- |
//! | with a jump, or where another speed ends | the wanted rendition | |
//! | with the packet before which the stream stopped | the rendition sent before | the wanted rendition is queued at the next access point |

use millrace_core::limits::ladder::FIT_CLOCK_TICKS;
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_offload::command::{Command, FailReason, Numbering, RunCut, RunSpec};

use super::adapt::Cause;
use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::keys::{ConnKey, StreamKey};
use super::ports::{AccessPoint, Rendition, TitleEntry};
use super::queued::Missed;
use super::refusal::{FecRefusal, Refusal};
use super::rendition::{Begins, Change, RenditionWish, Renditions};
use super::run::{ActiveRun, DeliveryState, PlannedRun, Queued, QueuedChange, Start, Stop};
use super::shown::ShownEntry;
use super::state::Service;
use super::stream::PlaybackStream;
use crate::limits::QUEUE_AHEAD_NS;

/// Where a stream can go over.
struct Crossing {
    /// The cut is before this packet of the rendition that is sent.
    packet: u32,
    /// The access point where the wanted rendition begins.
    to: AccessPoint,
    /// Where that ends.
    stop: Stop,
}

impl PlaybackStream {
    /// Returns the rendition sent now or at the next PLAY; `None` if the title has none.
    pub fn rendition(&self) -> Option<RenditionName> {
        let Renditions { sent, wanted, .. } = self.renditions;
        self.renditions.name(if self.is_fresh() { wanted } else { sent })
    }

    /// Whether the server chooses it.
    pub fn is_rendition_auto(&self) -> bool {
        self.renditions.is_auto
    }

    /// Which rendition a run of this plan sends, if it is at normal speed, and how it begins. One that goes on where it stopped can only go
    /// over if that is an access point.
    pub(super) fn rendition_for(&self, plan: &PlannedRun) -> (usize, Start) {
        let Renditions { sent, wanted, .. } = self.renditions;
        match plan.start {
            start if !plan.scale.is_normal() => (sent, start),
            Start::Resume if sent != wanted && self.stands_at_common_point() => (wanted, Start::Here),
            Start::Resume => (sent, Start::Resume),
            start => (wanted, start),
        }
    }

    fn stands_at_common_point(&self) -> bool {
        let DeliveryState::Paused { next_packet, .. } = self.media else { return false };
        let (sent, wanted) = (self.shown().sent, self.at(Scale::NORMAL, self.renditions.wanted));
        let Some(wanted) = wanted.filter(|_| next_packet < sent.packets) else { return false };
        let common = sent.access.time_of(next_packet).and_then(|time| common_point(sent, wanted.sent, time));
        common.is_some_and(|(packet, _)| packet == next_packet)
    }

    /// How a run without timestamps of its own is numbered, if its first packet has this number.
    pub(super) fn numbering(&self, shown: ShownEntry<'_>, first: u16) -> Numbering {
        let is_as_stored = shown.sent.timeline == self.home && !self.has_own_timeline;
        if is_as_stored { Numbering::Sequence(first) } else { Numbering::Own(first) }
    }

    /// Returns the first place for the switch, behind `after` if given.
    fn next_cut(&self, now: Instant, run: ActiveRun, after: Option<MediaTicks>) -> Option<Crossing> {
        let (sent, wanted) = (self.shown(), self.at(Scale::NORMAL, self.renditions.wanted)?);
        let ahead_ns = QUEUE_AHEAD_NS * u64::from(run.speed.permille()) / 1_000;
        let ahead = MediaTicks::from_ns(ahead_ns + u64::from(run.ahead_ms) * 1_000_000);
        let from = match after {
            Some(after) => MediaTicks(after.0 + 1),
            None => {
                // A stream behind its position reaches the point earlier in the title.
                let behind = MediaTicks::from_ns(self.known_behind_ns(now));
                MediaTicks((self.position(now)?.0 + ahead.0).saturating_sub(behind.0))
            }
        };
        let (packet, to) = common_point(sent.sent, wanted.sent, from)?;
        let stop = wanted.stop_at(run.stop.time);
        (packet < run.stop.packet && to.packet < stop.packet).then_some(Crossing { packet, to, stop })
    }

    /// Why its rendition cannot be changed now.
    fn may_change_rendition(&self) -> Result<(), Refusal> {
        if self.ending.is_some() {
            return Err(Refusal::Ending);
        }
        if self.fec.is_some() {
            // Parity names packets of one rendition by their numbers.
            return Err(Refusal::RenditionHeld("it was set up with FEC, which protects one rendition"));
        }
        if self.scale.is_normal() { Ok(()) } else { Err(Refusal::RenditionHeld("it plays at another speed")) }
    }
}

/// The first access point at or behind a time that both have: its packet in `sent`, and where it is in `wanted`. Of renditions that were made
/// elsewhere it need not be at the same tick.
fn common_point(sent: &TitleEntry, wanted: &TitleEntry, from: MediaTicks) -> Option<(u32, AccessPoint)> {
    let here = sent.access.access_at_or_after(from)?;
    let there = wanted.access.access_at_or_before(MediaTicks(here.time.0 + FIT_CLOCK_TICKS));
    (there.time.0.abs_diff(here.time.0) <= FIT_CLOCK_TICKS).then_some((here.packet, there))
}

/// What there is not enough of for a higher rate.
fn lacking(refusal: FecRefusal) -> Refusal {
    match refusal {
        FecRefusal::Rate { used, max, more } => Exhausted::Rate { used, max, more }.into(),
        FecRefusal::AddressRate { used, max, more } => Exhausted::AddressRate { used, max, more }.into(),
        FecRefusal::UserRate { used, max, more } => Exhausted::UserRate { used, max, more }.into(),
        FecRefusal::Full(full) => Exhausted::Full(full).into(),
        other => Refusal::Fec(other),
    }
}

impl Service {
    /// Returns the available bit rates of a title, the best first; empty if there is only one.
    pub fn renditions(&mut self, entry: &TitleEntry) -> Vec<Rendition> {
        self.titles.library.renditions(entry)
    }

    /// Returns the renditions of a title, and selects the one that a new stream begins with.
    ///
    /// # Errors
    /// There is none of the name that is wished.
    pub(super) fn choose_rendition(
        &mut self,
        entry: &TitleEntry,
        wish: Option<&RenditionWish>,
        before: Option<&Renditions>,
    ) -> Result<Renditions, Refusal> {
        let all = self.titles.library.renditions(entry);
        let mut renditions = Renditions::new(all, &entry.name, self.config.adapt);
        if let Some(before) = before.filter(|before| !before.is_empty() && !renditions.is_empty()) {
            let name = before.name(before.wanted);
            let kept = name.and_then(|name| renditions.place_of(name.as_str()).ok());
            (renditions.wanted, renditions.is_auto) = (kept.unwrap_or(renditions.own), before.is_auto);
        }
        match wish {
            None => {}
            Some(_) if renditions.is_empty() => return Err(Refusal::NoRenditions),
            Some(RenditionWish::Auto) => renditions.is_auto = true,
            Some(RenditionWish::Named(name)) => {
                (renditions.wanted, renditions.is_auto) = (renditions.place_of(name)?, false);
            }
        }
        renditions.is_auto &= !renditions.is_empty();
        if before.is_none() {
            renditions.sent = renditions.wanted;
        }
        Ok(renditions)
    }

    /// The title that a stream with these renditions begins with.
    pub(super) fn first_sent(&mut self, entry: &TitleEntry, all: &Renditions) -> Result<TitleEntry, Refusal> {
        match all.made(all.wanted) {
            Some(name) => self.titles.library.find(name).ok_or(Refusal::Broken),
            None => Ok(entry.clone()),
        }
    }

    /// Sees to it that a stream gets the rendition that its viewer wants, by a request on this connection: at once if it is not playing, else
    /// from the next access point on.
    ///
    /// # Errors
    /// Why the current one is kept; [`Refusal::Opening`] while the requested one opens.
    pub fn set_rendition(
        &mut self,
        now: Instant,
        key: StreamKey,
        wish: &RenditionWish,
        conn: Option<ConnKey>,
    ) -> Result<Change, Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        if stream.renditions.is_empty() {
            return Err(Refusal::NoRenditions);
        }
        let wanted = match wish {
            RenditionWish::Auto => stream.renditions.wanted,
            RenditionWish::Named(name) => stream.renditions.place_of(name)?,
        };
        stream.may_change_rendition()?;
        let (viewer, title) = (stream.viewer, stream.entry.name.clone());
        self.want_rendition(now, key, wanted, Cause::Viewer, conn)
            .map_err(|refusal| self.told(viewer, &title, refusal))?;
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        stream.renditions.is_auto = *wish == RenditionWish::Auto;
        let begins = match (stream.queued, stream.media) {
            (Some(Queued { next: QueuedChange::Rendition(to, _), time, .. }), _) if to == wanted => {
                Begins::At(time)
            }
            (Some(_), _) => Begins::Next,
            (None, DeliveryState::Running(_)) if stream.renditions.sent == wanted => Begins::Now,
            _ => Begins::WithPlay,
        };
        let to = stream.renditions.name(wanted).ok_or(Refusal::NoRenditions)?;
        Ok(Change { to, begins })
    }

    /// Opens a rendition, charges its additional rate and sends it from the next access point on.
    pub(super) fn want_rendition(
        &mut self,
        now: Instant,
        key: StreamKey,
        wanted: usize,
        cause: Cause,
        conn: Option<ConnKey>,
    ) -> Result<(), Refusal> {
        self.open_rendition(now, key, wanted, conn)?;
        let basis = self.config.rate_basis;
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        self.charge(key, stream.renditions.rate(wanted, basis))?;
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        (stream.renditions.wanted, stream.renditions.cause) = (wanted, Some(cause));
        if stream.is_fresh() {
            stream.renditions.sent = wanted;
        }
        self.queue_rendition(now, key, None);
        self.settle_charge(key);
        if self.streams.get(&key).is_some_and(|stream| stream.queued.is_none()) {
            self.release_made(key);
        }
        Ok(())
    }

    /// Opens the wanted rendition of a stream that is about to play.
    ///
    /// # Errors
    /// [`Refusal::Opening`], or why it cannot be opened.
    pub(super) fn open_wanted(
        &mut self,
        now: Instant,
        key: StreamKey,
        conn: Option<ConnKey>,
    ) -> Result<(), Refusal> {
        let wanted = self.streams.get(&key).map_or(0, |stream| stream.renditions.wanted);
        self.open_rendition(now, key, wanted, conn)
    }

    fn open_rendition(
        &mut self,
        now: Instant,
        key: StreamKey,
        rendition: usize,
        conn: Option<ConnKey>,
    ) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let Some(name) = stream.renditions.made(rendition).map(str::to_owned) else { return Ok(()) };
        self.open_made(now, key, conn, &name, Scale::NORMAL)
    }

    /// Counts at least this many bits a second for a stream's title.
    ///
    /// # Errors
    /// What there is not enough of.
    fn charge(&mut self, key: StreamKey, rate: u64) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let has = stream.title_rate();
        if rate > has {
            self.room_for_more(stream, rate - has).map_err(lacking)?;
            self.change_rate(key, stream.rate - has + rate);
        }
        Ok(())
    }

    /// The same for one that is about to play at this speed.
    pub(super) fn charge_for(&mut self, key: StreamKey, scale: Scale) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let (viewer, title) = (stream.viewer, stream.entry.name.clone());
        let cost = stream.renditions.cost(scale, self.config.rate_basis);
        self.charge(key, cost).map_err(|refusal| self.told(viewer, &title, refusal))
    }

    /// Counts the current rate of a stream.
    pub(super) fn settle_charge(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(&key).filter(|stream| !stream.renditions.is_empty()) else {
            return;
        };
        let cost = stream.renditions.cost(stream.scale, self.config.rate_basis);
        self.change_rate(key, stream.rate - stream.title_rate() + cost);
    }

    /// Switches to the wanted rendition at the first access point behind `after` that can be met.
    pub(super) fn queue_rendition(&mut self, now: Instant, key: StreamKey, after: Option<MediaTicks>) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let Renditions { sent, wanted, .. } = stream.renditions;
        let is_for_it =
            sent != wanted && stream.queued.is_none() && stream.ending.is_none() && stream.scale.is_normal();
        let DeliveryState::Running(run) = stream.media else { return };
        let Some(Crossing { packet, to, stop }) =
            is_for_it.then(|| stream.next_cut(now, run, after)).flatten()
        else {
            return;
        };
        let first = run.sequence.wrapping_add((packet - run.from) as u16);
        let numbering = stream
            .at(Scale::NORMAL, wanted)
            .map_or(Numbering::Own(first), |shown| stream.numbering(shown, first));
        let spec = RunSpec {
            run: stream.next_run(),
            media: stream.media_at(Scale::NORMAL, wanted),
            from: to.packet,
            until: stop.packet,
            numbering,
            scale_permille: run.speed.permille(),
            step: None,
        };
        let cause = stream.renditions.cause.unwrap_or(Cause::Viewer);
        let next = QueuedChange::Rendition(wanted, cause);
        stream.queued = Some(Queued { run: spec.run, from: to.packet, time: to.time, stop, next });
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Queue { stream: place, cut: RunCut::At(packet), run: spec });
    }

    /// The queued run has taken over.
    pub(super) fn rendition_taken_over(
        &mut self,
        now: Instant,
        key: StreamKey,
        rendition: usize,
        at: MediaTicks,
        cause: Cause,
    ) {
        self.say_rendition(now, key, rendition, Some(at), cause);
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.renditions.sent = rendition;
        }
        self.settle_charge(key);
        self.release_made(key);
        // Handles a request made meanwhile.
        self.queue_rendition(now, key, None);
    }

    /// The queued run will not be.
    pub(super) fn rendition_missed(
        &mut self,
        now: Instant,
        key: StreamKey,
        rendition: usize,
        at: MediaTicks,
        missed: Missed,
    ) {
        match missed {
            Missed::Passed => self.queue_rendition(now, key, Some(at)),
            // The current run is at its end: the wanted rendition comes with the next one.
            Missed::Refused => {}
            Missed::Failed(reason) => {
                if matches!(reason, FailReason::ReadError(_)) {
                    self.leave_alone(now, key, rendition);
                }
                let Some(stream) = self.streams.get_mut(&key) else { return };
                if stream.renditions.wanted == rendition {
                    stream.renditions.wanted = stream.renditions.sent;
                }
                let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
                if let Some(to) = stream.renditions.name(rendition) {
                    let reason = reason.to_string();
                    self.tell(ServiceEvent::RenditionFailed { session, title, to, reason });
                }
                self.settle_charge(key);
                self.release_made(key);
                self.queue_rendition(now, key, None);
            }
        }
    }

    /// The run of a stream that begins at this place is of this rendition.
    pub(super) fn tell_rendition(&mut self, now: Instant, key: StreamKey, to: usize, at: Option<MediaTicks>) {
        let cause = self.streams.get(&key).and_then(|stream| stream.renditions.cause);
        self.say_rendition(now, key, to, at, cause.unwrap_or(Cause::Viewer));
    }

    fn say_rendition(
        &mut self,
        now: Instant,
        key: StreamKey,
        to: usize,
        at: Option<MediaTicks>,
        cause: Cause,
    ) {
        let Some(stream) = self.streams.get(&key) else { return };
        let Renditions { sent, .. } = stream.renditions;
        let names = stream.renditions.name(sent).zip(stream.renditions.name(to));
        let is_up = to < sent;
        let Some((from, to)) = names.filter(|_| sent != to) else { return };
        let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
        self.note_change(now, key, is_up);
        self.tell(ServiceEvent::Rendition { session, title, from, to, at, cause });
    }
}
