//! FFmpeg: the strictest witness, because it shows the checksum of every frame it decoded.

use super::{Check, CheckOutcome, END_SECONDS, ODD_FILMS, ODD_TIMES, SHORT_FILMS, Transport};
use crate::interop::Lab;
use crate::interop::films::{
    DEMO_CBR, DEMO_VBR, GROUP_SECONDS, JOINED, JOINED_ALIKE, PART_SECONDS, TWO_HOURS, TestMedia,
};
use crate::interop::frames::{Frames, difference, position, to_the_end};
use crate::interop::process::ProgramResult;
use crate::interop::server::Server;

const NEEDS: &[&str] = &["ffmpeg"];

/// FFmpeg's messages when packets were lost or damaged; its exit status does not show it. Not
/// checked after a seek: FFmpeg has then cut the stream in the middle of a picture itself.
const COMPLAINTS: &[&str] =
    &["missed", "corrupt", "max delay reached", "error while", "invalid data", "bad cseq"];

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        let to_the_end = move |_: &Lab, server: &Server, film: &TestMedia, log: &str| {
            whole(server, film, &format!("-rtsp_transport {}", transport.word()), 0.0, log)
        };
        let from_the_middle = move |_: &Lab, server: &Server, film: &TestMedia, log: &str| {
            seek(server, film, transport, (5, 3), log)
        };
        let whole = |film| Check::playing("ffmpeg", "whole", film, transport, NEEDS, to_the_end);
        let seek = |film| Check::playing("ffmpeg", "seek", film, transport, NEEDS, from_the_middle);
        checks.extend(SHORT_FILMS.into_iter().flat_map(|film| [whole(film), seek(film)]));
        checks.push(whole("big").only_long());
        // One of the demo's titles by each transport.
        checks.push(whole(if transport == Transport::Udp { DEMO_VBR } else { DEMO_CBR }));
        let odd = ODD_TIMES.into_iter().flat_map(|film| [whole(film), seek(film)]);
        let odd = odd.chain(ODD_FILMS.map(whole));
        checks.extend(odd.map(|check| check.short_by_udp(transport)));
        let places = move |_: &Lab, server: &Server, film: &TestMedia, log: &str| {
            let seeks = TWO_HOURS_SEEKS.map(|(from_s, play_s)| {
                self::seek(server, film, transport, (from_s, play_s), &format!("{log}-{from_s}"))
            });
            Ok(seeks.into_iter().collect::<Result<Vec<_>, _>>()?.join("; "))
        };
        let across = move |_: &Lab, server: &Server, film: &TestMedia, log: &str| {
            seek_across_the_join(server, film, transport, log)
        };
        let across = |film| Check::playing("ffmpeg", "seek", film, transport, NEEDS, across);
        let anywhere = Check::playing("ffmpeg", "seek", TWO_HOURS, transport, NEEDS, places);
        // Time stamps of the one, read as positions, lie beyond its end, those of the other within it.
        let unusual = [whole(JOINED), across(JOINED), across(JOINED_ALIKE), anywhere];
        checks.extend(unusual.map(|check: Check| check.short_by_udp(transport)));
    }
}

/// Near the beginning, in the middle, and the last seconds: from where, and how long, in seconds.
const TWO_HOURS_SEEKS: [(usize, usize); 3] = [(20, 3), (3600, 3), (7190, 10)];

/// Plays a film to its end: every picture and every audio frame must be the stored one, and the
/// player must end by itself because of the server's RTCP BYE. `extra` seconds are allowed for the
/// time before the film starts.
pub(super) fn whole(server: &Server, film: &TestMedia, options: &str, extra: f64, log: &str) -> CheckOutcome {
    let ended = server
        .client("ffmpeg")
        .args("-v warning -nostdin")
        .args(if film.is_joined { "" } else { "-xerror" })
        .args(options)
        .args("-timeout 5000000 -i")
        .arg(server.url(film)?)
        .args("-map 0:v:0 -map 0:a:0 -fps_mode passthrough -f framemd5 -")
        .run(&server.log(log), film.seconds + END_SECONDS + extra)?;
    check_clean(&ended, film)?;
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
fn seek(
    server: &Server,
    film: &TestMedia,
    transport: Transport,
    (from_s, play_s): (usize, usize),
    log: &str,
) -> CheckOutcome {
    let ended = server
        .client("ffmpeg")
        .args(&format!(
            "-v warning -nostdin -rtsp_transport {} -timeout 5000000 -ss {from_s} -i",
            transport.word()
        ))
        .arg(server.url(film)?)
        .args(&format!("-t {play_s} -map 0:v:0 -fps_mode passthrough -f framemd5 -"))
        .run(&server.log(log), play_s as f64 + 2.0 * END_SECONDS)?;
    ended.ok("ffmpeg")?;
    let pictures = Frames::parse(&ended.out).pictures;
    let (first, end) = (from_s * film.rate, (from_s + play_s) * film.rate);
    let at = position(&film.pictures, &pictures).ok_or_else(|| {
        format!("not one piece of the film: {}", difference(&film.pictures[first..], &pictures))
    })?;
    let got_end = at + pictures.len();
    // A picture more or less at either end is a matter of rounding time stamps.
    if at.abs_diff(first) > 2 || got_end.abs_diff(end) > 2 {
        return Err(format!("pictures {at} to {got_end}; wanted {first} to {end}"));
    }
    Ok(format!("asked for {from_s} s: pictures {at} to {got_end} without a gap"))
}

/// A place in the first of two joined recordings is found as in any film. FFmpeg requests a place
/// in the second by the time stamps of the first, and the server finds it; but FFmpeg then drops
/// each picture whose time stamp is below the requested one, unless it is far enough below that
/// FFmpeg takes it for one behind a wrap.
fn seek_across_the_join(server: &Server, film: &TestMedia, transport: Transport, log: &str) -> CheckOutcome {
    let said = seek(server, film, transport, (3, 3), &format!("{log}-first"))?;
    let from_s = PART_SECONDS + 3.0;
    let shown = |drops: bool| {
        let (options, log) =
            if drops { ("", log.to_owned()) } else { ("-noaccurate_seek", format!("{log}-shows-all")) };
        let ended = server
            .client("ffmpeg")
            .args(&format!("-v warning -nostdin -rtsp_transport {} -timeout 5000000", transport.word()))
            .args(&format!("{options} -ss {from_s} -i"))
            .arg(server.url(film)?)
            .args("-map 0:v:0 -fps_mode passthrough -f framemd5 -")
            .run(&server.log(&log), film.seconds - from_s + 2.0 * END_SECONDS)?;
        ended.ok("ffmpeg")?;
        Ok::<_, String>(Frames::parse(&ended.out).pictures)
    };
    let is_dropped = film.name == JOINED_ALIKE;
    let pictures = shown(!is_dropped)?;
    let at = to_the_end(&film.pictures, &pictures, 1)
        .ok_or_else(|| format!("second recording: {}", difference(&film.pictures, &pictures)))?;
    let at_s = at as f64 / film.rate as f64;
    // The answer starts at the access point before the wanted place.
    if !(from_s - GROUP_SECONDS as f64..=from_s).contains(&at_s) {
        return Err(format!("asked for {from_s} s: shows the film from {at_s:.2} s on"));
    }
    let dropped = if is_dropped { shown(true)?.len() } else { 0 };
    if dropped > 0 {
        return Err(format!(
            "FFmpeg shows {dropped} early pictures of the second recording; docs/ref/rtsp.md says none"
        ));
    }
    let note = if is_dropped { ", if it drops none" } else { "" };
    Ok(format!("{said}; asked for {from_s} s: from {at_s:.2} s to the end{note}"))
}

/// FFmpeg must have nothing to complain of, but for the join of two recordings, where the counters of transport packets jump in the
/// file too.
fn check_clean(ended: &ProgramResult, film: &TestMedia) -> Result<(), String> {
    ended.ok("ffmpeg")?;
    let is_of_the_join = |complaint: &&str| film.is_joined && complaint.to_lowercase().contains("corrupt");
    match complaints(&ended.err).iter().find(|complaint| !is_of_the_join(complaint)) {
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
    fn is_all_tolerates_given_number_of_missing_frames() {
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
