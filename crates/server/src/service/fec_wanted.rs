//! FEC that a viewer switches over to while it has a stream.

use millrace_core::time::Instant;

use super::event::FecChange;
use super::keys::{ConnKey, StreamKey};
use super::matrix::FecMode;
use super::ports::NeededPart;
use super::refusal::{FecRefusal, Refusal};
use super::state::Service;
use super::stream::PlaybackStream;

impl Service {
    /// Switches a stream's FEC over because its viewer wants it, by a request on this connection: to this mode, or the most below it that
    /// its title has.
    ///
    /// # Errors
    /// [`Refusal::Fec`]: why it stays as it is; [`Refusal::Opening`] if its parity is being opened.
    pub fn set_fec(
        &mut self,
        now: Instant,
        key: StreamKey,
        mode: FecMode,
        conn: Option<ConnKey>,
    ) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        if stream.ending.is_some() {
            return Err(Refusal::Ending);
        }
        let mode = stream.fec.as_ref().ok_or(FecRefusal::NotAsked)?.matrix.at_most(mode);
        let entry = stream.entry.clone();
        let is_open = |track: u8| stream.companions().any(|companion| companion.track == track);
        let missing: Vec<_> = mode.tracks().iter().copied().filter(|&track| !is_open(track)).collect();
        self.need(now, conn, missing.iter().map(|&track| NeededPart::parity(&entry, track)))?;
        // The engine may switch to the mode only later. Open failures are reported then.
        let tracks = missing.iter().filter_map(|&track| self.titles.library.open_track(&entry, track).ok());
        let kept: Vec<_> = tracks.map(|track| track.title).collect();
        if let Some(fec) = self.streams.get_mut(&key).and_then(|stream| stream.fec.as_mut()) {
            fec.kept_open.extend(kept);
        }
        let switched = self.switch_fec(now, key, mode);
        let waits = |stream: &PlaybackStream| {
            stream.queued.is_some() || stream.fec.as_ref().is_some_and(|fec| fec.change.is_some())
        };
        if !self.streams.get(&key).is_some_and(waits) {
            self.release_tracks(key);
        }
        switched?;
        self.tell_fec(key, FecChange::Switched, None);
        Ok(())
    }

    /// No track is kept open for companions to come.
    pub(super) fn release_tracks(&mut self, key: StreamKey) {
        let fec = self.streams.get_mut(&key).and_then(|stream| stream.fec.as_mut());
        for title in fec.map(|fec| std::mem::take(&mut fec.kept_open)).unwrap_or_default() {
            self.titles.library.close(title);
        }
    }
}
