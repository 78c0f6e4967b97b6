//! GStreamer: a bare pipeline that sums every decoded picture, and a player that pauses, seeks and waits for the end.
//!
//! Its rtspsrc ends a transport stream by the clock and not by the last packet, so up to a second of the end is
//! missing whatever the server does.

use serde_json::Value;

use super::{Check, END_SECONDS, Outcome, SHORT_FILMS, Transport};
use crate::interop::Lab;
use crate::interop::films::{FRAMES_PER_SECOND, Film, difference, to_the_end};
use crate::interop::process::{Ended, Program};
use crate::interop::server::Server;
use crate::workspace;

const LAUNCH: &[&str] = &["gst-launch-1.0"];
const PLAYER: &[&str] = &["gst-launch-1.0", "python3"];

/// Pictures at the end that GStreamer may keep to itself.
const END_FRAMES: usize = FRAMES_PER_SECOND;
/// Its jitter buffer delays the first picture by so much; beside that it starts and ends like any player.
const LATENCY_SECONDS: f64 = 2.0;

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        for film in SHORT_FILMS {
            checks.push(Check::playing(
                "gst",
                "launch",
                film,
                transport,
                LAUNCH,
                move |_, server, film, log| launch(server, film, transport.word(), 0.0, log),
            ));
        }
        for scene in SCENES {
            let check = Check::playing(
                "gst",
                scene.name,
                "cbr",
                transport,
                PLAYER,
                move |_: &Lab, server, film, log| play(server, film, transport, scene, log),
            );
            checks.push(if scene.long { check.only_long() } else { check });
        }
    }
}

/// A pipeline from the command line. Its pictures must be one piece of the film from its first picture on.
pub(super) fn launch(server: &Server, film: &Film, protocols: &str, extra: f64, log: &str) -> Outcome {
    let ended = server
        .client("gst-launch-1.0")
        .args("-q rtspsrc")
        .arg(format!("location={}", server.url(film)?))
        .args(&format!("protocols={protocols} latency=500 ! rtpmp2tdepay ! tsdemux ! h264parse ! avdec_h264"))
        .args("! video/x-raw,format=I420 ! checksumsink hash=md5 sync=false")
        .env("GST_DEBUG_NO_COLOR", "1")
        .run(&server.log(log), film.seconds + END_SECONDS + extra)?;
    check_ended(&ended)?;
    let pictures = sums(&ended.out);
    if to_the_end(&film.pictures, &pictures, END_FRAMES) != Some(0) {
        return Err(difference(&film.pictures, &pictures));
    }
    Ok(format!(
        "first {} of {} pictures equal, ended {:.1} s after the film's length",
        pictures.len(),
        film.pictures.len(),
        ended.seconds - film.seconds
    ))
}

fn check_ended(ended: &Ended) -> Result<(), String> {
    ended.ok("gst-launch-1.0")?;
    match ended.err.lines().chain(ended.out.lines()).find(|line| line.contains("ERROR")) {
        Some(line) => Err(format!("gst-launch-1.0: {line}")),
        None => Ok(()),
    }
}

/// The checksums in the output of checksumsink: a line `time checksum` for each picture.
fn sums(out: &str) -> Vec<String> {
    let is_sum = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    out.lines().filter_map(|line| line.split_whitespace().nth(1)).filter(is_sum).map(str::to_owned).collect()
}

/// What the player does with a film.
struct Scene {
    name: &'static str,
    /// Steps for `scripts/interop/gst_play.py`.
    steps: &'static str,
    /// Seconds that the steps add to the film's length, and pictures that they take away.
    added_seconds: f64,
    skipped_frames: usize,
    /// Where the player must be in the film after its seek.
    seek_to: Option<f64>,
    long: bool,
}

const SCENES: &[Scene] = &[
    Scene { name: "whole", steps: "", added_seconds: 0.0, skipped_frames: 0, seek_to: None, long: false },
    Scene {
        name: "pause",
        steps: "--step 4:pause --step 7:resume",
        added_seconds: 3.0,
        skipped_frames: 0,
        seek_to: None,
        long: false,
    },
    // The seek comes 2 s after the first picture at the latest and jumps over what lies between.
    Scene {
        name: "seek",
        steps: "--step 5:seek=8",
        added_seconds: 5.0 - 8.0 + LATENCY_SECONDS,
        skipped_frames: 6 * FRAMES_PER_SECOND,
        seek_to: Some(8.0),
        long: false,
    },
    // Longer than the usual session timeout of 60 s: GStreamer sends nothing while it pauses over TCP.
    Scene {
        name: "long-pause",
        steps: "--step 4:pause --step 74:resume",
        added_seconds: 70.0,
        skipped_frames: 0,
        seek_to: None,
        long: true,
    },
];

/// Plays with `gst_play.py` and judges its report.
fn play(server: &Server, film: &Film, transport: Transport, scene: &Scene, log: &str) -> Outcome {
    let limit = film.seconds + scene.added_seconds + LATENCY_SECONDS + END_SECONDS;
    let ended = python(server)
        .arg(workspace::root().join("scripts/interop/gst_play.py"))
        .arg(server.url(film)?)
        .args(&format!("--transport {} --limit {limit} {}", transport.word(), scene.steps))
        // The script ends by itself at its limit and says what it has seen until then.
        .run(&server.log(log), limit + END_SECONDS)?;
    ended.ok("gst_play.py")?;
    let report: Value =
        serde_json::from_str(&ended.out).map_err(|e| format!("gst_play.py printed no JSON: {e}"))?;
    judge(&report, film.pictures.len(), scene)
}

fn python(server: &Server) -> Program {
    // Its own interpreter finds the GObject bindings that the distribution installs.
    let system = std::path::Path::new("/usr/bin/python3");
    server
        .client(if system.exists() { "/usr/bin/python3" } else { "python3" })
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Whether a report of `gst_play.py` is that of a film of `frames` pictures played well.
fn judge(report: &Value, frames: usize, scene: &Scene) -> Outcome {
    let number = |name: &str| report[name].as_f64();
    let count = |name: &str| report[name].as_u64();
    if let Some(error) = report["errors"].as_array().and_then(|list| list.first()) {
        return Err(format!("GStreamer: {error}"));
    }
    let Some(end) = number("end_s") else {
        return Err(format!("no end of stream within {} s, {} pictures", report["wall_s"], report["frames"]));
    };
    let (lost, got) = (count("lost").unwrap_or(u64::MAX), count("frames").unwrap_or(0) as usize);
    // After a seek its count of lost packets says nothing (see gst_play.py); its pictures do.
    if lost != 0 && scene.seek_to.is_none() {
        return Err(format!("{lost} packets lost or late, {got} pictures"));
    }
    let gaps = count("gaps").unwrap_or(u64::MAX);
    if gaps != 0 {
        return Err(format!("pictures missing at {gaps} places, {got} shown"));
    }
    let wanted = frames - scene.skipped_frames - END_FRAMES;
    if got < wanted {
        return Err(format!("{got} of {frames} pictures; at least {wanted} were to be shown"));
    }
    let paused = count("frames_while_paused").unwrap_or(0);
    if paused != 0 {
        return Err(format!("{paused} pictures while paused"));
    }
    if report["hangs"] == true {
        return Err("the player hangs when it is closed".into());
    }
    let mut figures = format!("{got} pictures shown without a gap, end of stream after {end:.1} s");
    if let Some(wanted) = scene.seek_to {
        let first = number("first_after_seek_s").ok_or("no picture after the seek")?;
        // An answer may start at the access point before: 2 s at most in these films.
        if !(wanted - 2.1..wanted + 0.5).contains(&first) {
            return Err(format!("the seek to {wanted} s shows {first:.2} s"));
        }
        figures += &format!(", seek to {wanted} s showed {first:.2} s");
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        json!({"frames": 290, "lost": 0, "gaps": 0, "errors": [], "end_s": 14.1, "wall_s": 14.2, "frames_while_paused": 0,
               "hangs": false, "first_after_seek_s": 7.98})
    }

    #[test]
    fn a_good_report_passes() {
        assert_eq!(
            judge(&good(), 300, &SCENES[0]).unwrap(),
            "290 pictures shown without a gap, end of stream after 14.1 s"
        );
        assert!(judge(&good(), 300, &SCENES[2]).unwrap().ends_with("seek to 8 s showed 7.98 s"));
    }

    #[test]
    fn every_fault_fails() {
        let faults = [
            ("errors", json!(["rtspsrc0: gone"]), "gone"),
            ("end_s", Value::Null, "no end of stream"),
            ("lost", json!(2), "2 packets lost"),
            ("gaps", json!(1), "missing at 1 places"),
            ("frames", json!(200), "200 of 300 pictures"),
            ("frames_while_paused", json!(9), "9 pictures while paused"),
            ("hangs", json!(true), "hangs"),
        ];
        for (name, value, words) in faults {
            let mut report = good();
            report[name] = value;
            let fault = judge(&report, 300, &SCENES[1]).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
        let mut report = good();
        report["first_after_seek_s"] = json!(3.2);
        assert!(judge(&report, 300, &SCENES[2]).unwrap_err().contains("shows 3.20 s"));
    }

    #[test]
    fn sums_are_read_from_the_sink() {
        let out = "0:00:00.000000000 0123456789abcdef0123456789abcdef\nProgress: (open) Opening Stream\n";
        assert_eq!(sums(out), ["0123456789abcdef0123456789abcdef"]);
    }
}
