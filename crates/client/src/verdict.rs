//! The overall result of a reception, in one word: for an exit code.

use serde::Serialize;

use crate::limits::{MAX_BYE_EARLY_US, MIN_BYE_EARLY_US, SILENT_EARLY_US};
use crate::report::{EndReason, ReceptionReport};

/// A reference may be longer by less than this: it is no whole number of packets then.
const TS_PACKET_BYTES: u64 = millrace_core::limits::TS_PACKET_BYTES as u64;

/// The overall result of a reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceptionVerdict {
    /// Everything that was asked for came and is right.
    Right,
    /// Packets or bytes are missing or wrong, or nothing came.
    Damaged,
    /// The stream ended before its end.
    CutOff,
    /// The data received is not the MPEG transport stream agreed on.
    Foreign,
}

/// Where in the title the last run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndPlace {
    /// Its announced beginning, from the server.
    pub start_us: Option<u64>,
    /// Where the last packet belongs.
    pub reached_us: Option<u64>,
    /// Its announced end, from the server.
    pub announced_us: Option<u64>,
    /// How fast the title was shown, in hundredths of the normal speed, below 0 for backwards; none: the server did not say.
    pub scale_hundredths: Option<i16>,
}

impl EndPlace {
    /// Whether the title was shown backwards. It then stands at its beginning, and nothing
    /// announces its end.
    pub(crate) fn is_reverse(&self) -> bool {
        self.scale_hundredths.is_some_and(i16::is_negative)
    }

    /// Returns how long it takes to send this much of the title.
    fn sent_us(&self, shown_us: u64) -> u64 {
        let speed = self.scale_hundredths.map_or(100, i16::unsigned_abs).max(1);
        shown_us.saturating_mul(100) / u64::from(speed)
    }

    /// Media that is missing between the last packet and the announced end.
    fn missing_us(&self) -> Option<u64> {
        let (announced, reached) = (self.announced_us?, self.reached_us?);
        let (low, high) = if self.is_reverse() { (announced, reached) } else { (reached, announced) };
        Some(self.sent_us(high.saturating_sub(low)))
    }
}

impl ReceptionReport {
    /// Returns the overall result. Lateness, and jumps in the title itself, are reported but do not
    /// count here.
    pub fn verdict(&self) -> ReceptionVerdict {
        let (s, ts) = (&self.sequence, &self.ts);
        let is_foreign = self.receiver.malformed > 0 || ts.sync_losses > 0 || ts.odd_payloads > 0;
        let is_wrong = self
            .byte_check
            .as_ref()
            .is_some_and(|check| check.different_bytes > 0 || check.unaligned_bytes > 0);
        let lost = s.lost + s.lost_at_start + s.lost_at_end.unwrap_or(0) + s.restarts;
        if is_foreign {
            ReceptionVerdict::Foreign
        } else if self.packets == 0 {
            ReceptionVerdict::Damaged
        } else if self.is_cut_off() {
            ReceptionVerdict::CutOff
        } else if lost > 0 || is_wrong || self.uncompared_bytes() > 0 {
            ReceptionVerdict::Damaged
        } else {
            ReceptionVerdict::Right
        }
    }

    /// Whether the stream ended before its end. A listener knows of no announced end.
    fn is_cut_off(&self) -> bool {
        let early = match self.end {
            EndReason::Bye => {
                let announced = self.place.announced_us.unwrap_or(0);
                let length = self.place.sent_us(announced.abs_diff(self.place.start_us.unwrap_or(0)));
                (length / 2).clamp(MIN_BYE_EARLY_US, MAX_BYE_EARLY_US)
            }
            EndReason::Silence | EndReason::ServerClosed => SILENT_EARLY_US,
            EndReason::Complete | EndReason::Duration | EndReason::OutputClosed | EndReason::Cancelled => {
                return false;
            }
        };
        match self.place.missing_us() {
            Some(missing) => missing > early,
            // Without BYE nothing confirms that this was all.
            None => !self.plays.is_empty() && self.end != EndReason::Bye,
        }
    }

    /// Bytes of the reference that did not come although the whole title was asked for and ended.
    fn uncompared_bytes(&self) -> u64 {
        let [play] = &self.plays[..] else { return 0 };
        let is_whole = play.range_asked.as_deref() == Some("npt=0.000-") && self.end.is_of_the_stream();
        let Some(check) = self.byte_check.as_ref().filter(|_| is_whole) else { return 0 };
        let missing = check.reference_bytes.saturating_sub(check.checked_bytes + check.unaligned_bytes);
        // A file may end within a TS packet; that partial packet is never sent.
        if missing < TS_PACKET_BYTES { 0 } else { missing }
    }

    /// Returns the problems found here, to report beside the others.
    pub(crate) fn problems_of_the_end(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let (true, Some(missing)) = (self.is_cut_off(), self.place.missing_us()) {
            said.push(format!("cut off {:.3} s before the announced end", missing as f64 / 1e6));
        }
        if self.uncompared_bytes() > 0 {
            said.push(format!("{} bytes of the reference did not come", self.uncompared_bytes()));
        }
        said
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
