//! Teletext subtitles for films; their text gives the times of their display, so a player's output
//! can be judged by the text alone.

#[path = "../../../crates/testkit/src/teletext.rs"]
#[allow(dead_code, unreachable_pub)] // the tests use the rest of it
mod teletext;

use self::teletext::{Named, SUBTITLES, mux, page};

/// Where ffmpeg puts the PMT, and a PID that it does not use.
const PMT: u16 = 4096;
const PID: u16 = 0x150;
const NAMED: &[Named] = &[("deu", SUBTITLES, 888)];
/// One each 2 s, from half a second on.
const EACH_MS: u64 = 2000;
const FROM_MS: u64 = 500;
const SHOWN_MS: u64 = 1250;
/// Before the end, so that data sent ahead of its time is within the film.
const LAST_MS: u64 = 1000;

/// A transport stream of ffmpeg's with subtitles: of `seconds`, which is shown from `begins` seconds on in its film.
pub(super) fn added(stream: &[u8], begins: f64, seconds: f64) -> Result<Vec<u8>, String> {
    let first = first_stamp(stream).ok_or("the film has no time stamps")?;
    let (begins, end) = ((begins * 1000.0) as u64, (seconds * 1000.0) as u64 - LAST_MS);
    let seconds = |ms: u64| (begins + ms) as f64 / 1000.0;
    let mut sent = Vec::new();
    for from in (FROM_MS..end.saturating_sub(SHOWN_MS)).step_by(EACH_MS as usize) {
        let to = from + SHOWN_MS;
        let text = format!("from {} to {} s", seconds(from), seconds(to));
        sent.push((first + from * 90, page(888, 0, &[&text])));
        sent.push((first + to * 90, page(888, 0, &[])));
    }
    Ok(mux(stream, PMT, PID, NAMED, &sent))
}

/// The lowest of the first time stamps of each stream.
fn first_stamp(stream: &[u8]) -> Option<u64> {
    let stamp = |packet: &[u8; 188]| {
        let at = if packet[3] & 0x20 == 0 { 4 } else { 5 + usize::from(packet[4]) };
        let pes = packet.get(at..at + 14).filter(|pes| packet[1] & 0x40 != 0 && pes[..3] == [0, 0, 1])?;
        let [a, b, c, d, e] = [9, 10, 11, 12, 13].map(|at| u64::from(pes[at]));
        (pes[7] & 0x80 != 0).then_some((a >> 1 & 7) << 30 | b << 22 | (c >> 1) << 15 | d << 7 | e >> 1)
    };
    // Half a second, and both streams.
    stream.as_chunks::<188>().0.iter().filter_map(stamp).take(20).min()
}
