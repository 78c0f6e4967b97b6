//! Made titles that fail to be read or opened: they are left out for a while, and the operator is
//! informed.

use millrace_core::time::Instant;
use millrace_offload::command::FailReason;

use super::event::ServiceEvent;
use super::keys::StreamKey;
use super::ports::OpenError;
use super::state::Service;
use super::stream::PlaybackStream;

impl Service {
    /// Records that a stream has failed. It ends all the same: a speed and a range were announced
    /// to its viewer, and RTSP cannot announce others while it plays.
    pub(super) fn note_unread(&mut self, now: Instant, key: StreamKey, reason: FailReason) {
        let Some(stream) = self.streams.get(&key) else { return };
        if !matches!(reason, FailReason::ReadError(_)) {
            return;
        }
        if stream.scale().is_normal() {
            return self.leave_alone(now, key, stream.renditions.sent);
        }
        let Some(title) = stream.trick(stream.scale()).map(|made| made.entry.name.clone()) else { return };
        self.titles.unread.note(now, title.clone());
        let reason = format!("{reason}; viewers get the nearest other speed for ten minutes");
        self.tell(ServiceEvent::Broken { title, reason });
    }

    /// Records that a rendition of a stream's title could not be read or opened. A viewer that asks
    /// for it by name still gets it, if it is available.
    pub(super) fn leave_alone(&mut self, now: Instant, key: StreamKey, rendition: usize) {
        let made = self.streams.get(&key).and_then(|stream| stream.renditions.made(rendition));
        if let Some(title) = made.map(str::to_owned) {
            self.titles.unread.note(now, title);
        }
    }

    /// Records that a title could not be opened when no request is refused for it: if it is a
    /// rendition, the server wanted it, and would want it again the next second.
    pub(super) fn note_unopened(&mut self, now: Instant, title: String, error: &OpenError) {
        let is_made = |stream: &PlaybackStream| stream.renditions.have_made(&title);
        if *error == OpenError::Full || !self.streams.values().any(is_made) {
            return;
        }
        self.titles.unread.note(now, title.clone());
        let reason = format!("{error}; the server sends nobody this bit rate for ten minutes");
        self.tell(ServiceEvent::Broken { title, reason });
    }
}
