//! One line for each session of a load.

use std::io::{self, Write};

use serde::Serialize;

use crate::ts::light::TsFindings;

/// One session: one viewer with one title. A viewer that zaps has several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// The viewer's number.
    pub viewer: u32,
    /// Its how many-th session this is, from 0.
    pub session: u32,
    /// The title it watched.
    pub title: String,
    /// When it began, since the first viewer could.
    pub began_ms: u64,
    /// Why it failed; nothing if it did not.
    pub failure: Option<String>,
    /// From the start to the reply that lets it play; nothing if none came.
    pub setup_us: Option<u64>,
    /// Time between this reply and the first packet.
    pub first_packet_us: Option<i64>,
    /// From the wish to zap to the first packet of this title, if it was zapped to.
    pub zap_us: Option<u64>,
    /// Packets received.
    pub packets: u64,
    /// Their payload.
    pub payload_bytes: u64,
    /// Payload for the time from first to last packet, pauses not counted.
    pub rate_bits_per_s: u64,
    /// Packets missing, at start and end too; with FEC, those that were not repaired.
    pub lost: u64,
    /// With FEC: packets repaired.
    pub repaired: Option<u64>,
    /// Packets that came after one with a higher number.
    pub reordered: u64,
    /// Packets that came again.
    pub duplicates: u64,
    /// The latest packet.
    pub lateness_max_us: u64,
    /// Interarrival jitter (RFC 3550) at the end.
    pub jitter_us: u64,
    /// Its largest value.
    pub jitter_max_us: u64,
    /// Longest time without a packet.
    pub longest_gap_us: u64,
    /// Runs: 1, and one more for each PLAY after a pause or a seek.
    pub runs: u32,
    /// Whether the title came to its end: its BYE was heard, or, where viewers share an RTCP socket, its last seconds came.
    pub has_ended: bool,
    /// Over HTTP: from the start to the first picture.
    pub startup_us: Option<u64>,
    /// Over HTTP: times that the picture stood still for want of media.
    pub rebuffers: Option<u64>,
    /// Over HTTP: for how long, all together.
    pub rebuffering_us: Option<u64>,
    /// What its transport stream is like, if it was looked into.
    pub ts: Option<TsFindings>,
}

/// Text as CSV has it when it might hold a comma.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn number<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Writes sessions as CSV with a header line; unknown values are empty.
///
/// # Errors
/// What writing gives.
pub fn write_per_stream(streams: &[StreamReport], out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "viewer,session,title,began_ms,failure,setup_us,first_packet_us,zap_us,packets,payload_bytes,rate_bits_per_s,\
         lost,reordered,duplicates,lateness_max_us,jitter_us,jitter_max_us,longest_gap_us,runs,has_ended,\
         startup_us,rebuffers,rebuffering_us,\
         ts_packets,sync_losses,continuity_errors,pcrs,pcr_jumps,pcr_interval_max_us,pcr_jitter_us,repaired"
    )?;
    for s in streams {
        let ts = |value: fn(&TsFindings) -> u64| number(s.ts.as_ref().map(value));
        let fields = [
            s.viewer.to_string(),
            s.session.to_string(),
            quoted(&s.title),
            s.began_ms.to_string(),
            s.failure.as_deref().map(quoted).unwrap_or_default(),
            number(s.setup_us),
            number(s.first_packet_us),
            number(s.zap_us),
            s.packets.to_string(),
            s.payload_bytes.to_string(),
            s.rate_bits_per_s.to_string(),
            s.lost.to_string(),
            s.reordered.to_string(),
            s.duplicates.to_string(),
            s.lateness_max_us.to_string(),
            s.jitter_us.to_string(),
            s.jitter_max_us.to_string(),
            s.longest_gap_us.to_string(),
            s.runs.to_string(),
            u8::from(s.has_ended).to_string(),
            number(s.startup_us),
            number(s.rebuffers),
            number(s.rebuffering_us),
            ts(|ts| ts.packets),
            ts(|ts| ts.sync_losses),
            ts(|ts| ts.continuity_errors),
            ts(|ts| ts.pcrs),
            ts(|ts| ts.pcr_jumps),
            ts(|ts| ts.pcr_interval_max_us),
            ts(|ts| ts.pcr_jitter_us),
            number(s.repaired),
        ];
        writeln!(out, "{}", fields.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_per_stream_rows_have_as_many_fields_as_header() {
        let plain = StreamReport { viewer: 3, title: "rtsp://h/a".to_owned(), ..StreamReport::default() };
        let full = StreamReport {
            failure: Some("SETUP refused: 461".to_owned()),
            ts: Some(TsFindings { continuity_errors: 2, ..TsFindings::default() }),
            ..plain.clone()
        };
        let mut csv = Vec::new();
        write_per_stream(&[plain, full], &mut csv).unwrap();
        let lines: Vec<_> = std::str::from_utf8(&csv).unwrap().lines().collect();
        let counts: Vec<_> = lines.iter().map(|line| line.split(',').count()).collect();
        assert_eq!(counts, [31; 3]);
        assert!(lines[1].starts_with("3,0,\"rtsp://h/a\",0,,,,,0,"), "{}", lines[1]);
        assert!(
            lines[2].contains("\"SETUP refused: 461\"") && lines[2].ends_with("0,0,2,0,0,0,0,"),
            "{}",
            lines[2]
        );
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
