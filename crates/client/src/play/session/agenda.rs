//! The timed actions of a session: script, receiver reports, progress, and the check whether it is
//! over.

use std::sync::atomic::Ordering;

use crate::limits::BYE_LINGER_NS;
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{MAX_REPORT_BYTES, write_receiver_report};

use super::{Session, SessionTransport, nanos};
use crate::clock::random_u64;
use crate::play::TransportChoice;
use crate::play::progress::ProgressClock;
use crate::report::EndReason;
use crate::rtsp::dialogue::DialoguePhase;
use crate::rtsp::headers::NptRange;
use crate::script::Action;

/// The times of the actions due.
pub(super) struct Agenda {
    /// Reply to the first PLAY.
    pub(super) playing_since: Option<Instant>,
    pub(super) report_at: Instant,
    pub(super) progress: ProgressClock,
    /// Last packet, or reply to PLAY.
    pub(super) alive_at: Instant,
    pub(super) bye_at: Option<Instant>,
    pub(super) next_step: usize,
}

impl Session<'_> {
    pub(super) fn follow_script(&mut self, now: Instant) {
        let Some(since) = self.agenda.playing_since else { return };
        while let Some(step) = self.options.script.0.get(self.agenda.next_step) {
            if now < since.plus_ns(step.at_ns) {
                return;
            }
            self.agenda.next_step += 1;
            match step.action {
                Action::Pause => {
                    self.dialogue.pause(now);
                }
                Action::Resume => self.play(now, None),
                Action::Seek(place) => {
                    self.stop(now);
                    self.play(now, Some(NptRange { start: Some(place), end: self.options.end }));
                }
                Action::Scale(scale) => {
                    self.stop(now);
                    self.pace.scale = Some(scale);
                    self.play(now, None);
                }
                Action::Rendition(name) => {
                    self.dialogue.set_rendition(now, name);
                }
            }
        }
    }

    fn stop(&mut self, now: Instant) {
        if self.dialogue.phase() == DialoguePhase::Playing {
            self.dialogue.pause(now);
        }
    }

    /// The next receiver report in 2.5 to 5 s, at random so that many receivers do not report at once.
    pub(super) fn schedule_report(&mut self, now: Instant) {
        self.agenda.report_at = now.plus_ns(2_500_000_000 + random_u64() % 2_500_000_000);
    }

    pub(super) fn send_report_if_due(&mut self, now: Instant) {
        if self.agenda.playing_since.is_some() && now >= self.agenda.report_at {
            self.schedule_report(now);
            self.send_report(false);
        }
    }

    pub(super) fn send_report(&mut self, bye: bool) {
        let block = self.media.report_block();
        let mut report = [0; MAX_REPORT_BYTES];
        let len = write_receiver_report(&mut report, self.ssrc, block.as_ref(), &self.options.cname, bye);
        let report = &report[..len];
        let sent = match &self.path {
            SessionTransport::None => false,
            SessionTransport::Udp(udp) => {
                udp.server.is_some_and(|(_, rtcp)| udp.rtcp.socket().send_to(report, rtcp).is_ok())
            }
            SessionTransport::Tcp { rtcp, .. } => {
                self.connection.push_frame(*rtcp, report);
                true
            }
        };
        self.receiver.receiver_reports += u64::from(sent);
    }

    pub(super) fn tell_progress(&mut self, now: Instant) {
        let Some(since) = self.agenda.playing_since else { return };
        let is_paused = self.dialogue.phase() == DialoguePhase::Paused;
        if let Some(progress) = self.agenda.progress.look(now, since, &self.media, is_paused) {
            (self.progress)(&progress);
        }
    }

    pub(super) fn check_end(&mut self, now: Instant) {
        let agenda = &mut self.agenda;
        if self.media.has_bye() && !self.dialogue.is_busy() {
            let linger_ns = BYE_LINGER_NS.min(nanos(self.options.reorder_wait));
            agenda.bye_at.get_or_insert(now.plus_ns(linger_ns));
        }
        let over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let since = agenda.playing_since;
        let playing = self.dialogue.phase() == DialoguePhase::Playing;
        let has_nothing = since.is_some() && playing && self.media.packets() == 0;
        let is_first_try =
            self.way.choice == TransportChoice::Auto && matches!(self.path, SessionTransport::Udp(_));
        if self.cancel.load(Ordering::Relaxed) {
            self.end = Some(EndReason::Cancelled);
        } else if self.media.sink().is_gone() {
            self.end = Some(EndReason::OutputClosed);
        } else if over(agenda.bye_at) {
            self.end = Some(EndReason::Bye);
        } else if has_nothing && is_first_try && over(since.map(|since| since + self.options.udp_timeout)) {
            self.nothing_by_udp = true;
        } else if over(since.zip(self.options.duration).map(|(since, duration)| since + duration)) {
            self.end = Some(EndReason::Duration);
        } else if playing && over(Some(agenda.alive_at + self.options.silence)) {
            self.end = Some(EndReason::Silence);
        }
    }
}
