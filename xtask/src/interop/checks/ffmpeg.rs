//! FFmpeg: the strictest witness, because it shows the checksum of every frame it decoded.

use super::{Check, END_SECONDS, ODD_FILMS, ODD_TIMES, Outcome, SHORT_FILMS, Transport};
use crate::interop::Lab;
use crate::interop::films::{
    DEMO_CBR, DEMO_VBR, FRAMES_PER_SECOND, Film, Frames, difference, position, to_the_end,
};
use crate::interop::process::Ended;
use crate::interop::server::Server;

const NEEDS: &[&str] = &["ffmpeg"];

/// What FFmpeg says when packets were lost or damaged; its exit status does not tell. Not asked after a seek: it
/// has cut the stream in the middle of a picture itself then.
const COMPLAINTS: &[&str] =
    &["missed", "corrupt", "max delay reached", "error while", "invalid data", "bad cseq"];

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        let to_the_end = move |_: &Lab, server: &Server, film: &Film, log: &str| {
            whole(server, film, &format!("-rtsp_transport {}", transport.word()), 0.0, log)
        };
        let from_the_middle =
            move |_: &Lab, server: &Server, film: &Film, log: &str| seek(server, film, transport, log);
        let whole = |film| Check::playing("ffmpeg", "whole", film, transport, NEEDS, to_the_end);
        let seek = |film| Check::playing("ffmpeg", "seek", film, transport, NEEDS, from_the_middle);
        checks.extend(SHORT_FILMS.into_iter().flat_map(|film| [whole(film), seek(film)]));
        checks.push(whole("big").only_long());
        // One of the demo's titles by each transport.
        checks.push(whole(if transport == Transport::Udp { DEMO_VBR } else { DEMO_CBR }));
        let odd = ODD_TIMES.into_iter().flat_map(|film| [whole(film), seek(film)]);
        let odd = odd.chain(ODD_FILMS.map(whole));
        checks.extend(odd.map(|check| check.short_by_udp(transport)));
    }
}

/// Plays a film to its end: every picture and every sound must be the stored one, and the player must end by itself
/// because the server said BYE. `extra` seconds are allowed for what happens before the film starts.
pub(super) fn whole(server: &Server, film: &Film, options: &str, extra: f64, log: &str) -> Outcome {
    let ended = server
        .client("ffmpeg")
        .args("-v warning -nostdin -xerror")
        .args(options)
        .args("-timeout 5000000 -i")
        .arg(server.url(film)?)
        .args("-map 0:v:0 -map 0:a:0 -fps_mode passthrough -f framemd5 -")
        .run(&server.log(log), film.seconds + END_SECONDS + extra)?;
    check_clean(&ended)?;
    let frames = Frames::parse(&ended.out);
    if !is_all(&film.pictures, &frames.pictures, usize::from(film.is_stream)) {
        return Err(format!("pictures: {}", difference(&film.pictures, &frames.pictures)));
    }
    let sounds = &film.stored()?.sounds;
    if !is_all(sounds, &frames.sounds, 0) {
        return Err(format!("sound: {}", difference(sounds, &frames.sounds)));
    }
    Ok(format!(
        "{} of {} pictures and {} of {} blocks of sound equal, ended {:.1} s after the film's length",
        frames.pictures.len(),
        film.pictures.len(),
        frames.sounds.len(),
        sounds.len(),
        ended.seconds - film.seconds
    ))
}

/// Whether everything arrived that can. Of a PES packet that does not say how long it is FFmpeg's RTSP reader knows only when
/// the next begins that it is whole, so it keeps the very last to itself, whatever the server does. Films that came as a
/// transport stream may have such pictures.
fn is_all(wanted: &[String], got: &[String], may_miss: usize) -> bool {
    to_the_end(wanted, got, 4) == Some(0) && got.len() + may_miss >= wanted.len()
}

/// Starts in the middle: the pictures must be those of the film from there on, without a gap.
///
/// FFmpeg adds the first time stamp of the transport stream (1.4 s in films that it made itself, if nothing else was wanted) to the
/// place it asks the server for, which takes it off again.
fn seek(server: &Server, film: &Film, transport: Transport, log: &str) -> Outcome {
    const FROM_S: usize = 5;
    const PLAY_S: usize = 3;
    let ended = server
        .client("ffmpeg")
        .args(&format!(
            "-v warning -nostdin -rtsp_transport {} -timeout 5000000 -ss {FROM_S} -i",
            transport.word()
        ))
        .arg(server.url(film)?)
        .args(&format!("-t {PLAY_S} -map 0:v:0 -fps_mode passthrough -f framemd5 -"))
        .run(&server.log(log), PLAY_S as f64 + 2.0 * END_SECONDS)?;
    ended.ok("ffmpeg")?;
    let pictures = Frames::parse(&ended.out).pictures;
    let (first, end) = (FROM_S * FRAMES_PER_SECOND, (FROM_S + PLAY_S) * FRAMES_PER_SECOND);
    let at = position(&film.pictures, &pictures).ok_or_else(|| {
        format!("not one piece of the film: {}", difference(&film.pictures[first..], &pictures))
    })?;
    let got_end = at + pictures.len();
    // A picture more or less at either end is a matter of rounding time stamps.
    if at.abs_diff(first) > 2 || got_end.abs_diff(end) > 2 {
        return Err(format!("pictures {at} to {got_end}; wanted {first} to {end}"));
    }
    Ok(format!("asked for {FROM_S} s: pictures {at} to {got_end} without a gap"))
}

fn check_clean(ended: &Ended) -> Result<(), String> {
    ended.ok("ffmpeg")?;
    match complaints(&ended.err).first() {
        Some(complaint) => Err(format!("ffmpeg complains: {complaint}")),
        None => Ok(()),
    }
}

fn complaints(log: &str) -> Vec<&str> {
    let bad = |line: &&str| COMPLAINTS.iter().any(|word| line.to_lowercase().contains(word));
    log.lines().filter(bad).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_what_may_be_missing_is_all() {
        let list = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        let wanted = list("abcdefgh");
        for good in ["abcdefgh", "abcdefg"] {
            assert!(is_all(&wanted, &list(good), 1), "{good}");
        }
        for bad in ["abcdef", "bcdefgh"] {
            assert!(!is_all(&wanted, &list(bad), 1), "{bad}");
        }
        assert!(is_all(&wanted, &wanted, 0) && !is_all(&wanted, &wanted[..7], 0));
    }

    #[test]
    fn complaints_of_loss_are_seen() {
        let log = "Guessed Channel Layout\n[rtsp @ 0x5] RTP: missed 3 packets\n[mpegts] Packet corrupt (stream = 0)\n";
        assert_eq!(complaints(log).len(), 2);
        assert!(complaints("Input #0, rtsp, from 'x':\n").is_empty());
    }
}
