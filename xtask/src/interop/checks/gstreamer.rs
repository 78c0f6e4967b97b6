//! GStreamer: a bare pipeline that sums every decoded picture, and a player that pauses, seeks and waits for the end.
//!
//! Before its rtspsrc ends a transport stream, it waits for the announced end and its latency. If
//! packets are still in it then, because its sink has not shown them yet, it never ends. So the
//! pipeline uses the default latency.

use std::ops::Range;

use serde_json::Value;

use super::{Check, CheckOutcome, END_SECONDS, ODD_FILMS, ODD_TIMES, SHORT_FILMS, Transport};
use crate::interop::Lab;
use crate::interop::films::{
    DEMO_CBR, DEMO_VBR, GROUP_SECONDS, JOINED, RUNGS, TWO_HOURS, TestMedia, WRAPPING_FAST, WRAPPING_RUNGS,
};
use crate::interop::frames::{difference, to_the_end};
use crate::interop::process::{ProgramResult, ProgramSpec};
use crate::interop::server::Server;
use crate::workspace;

pub(super) const LAUNCH: &[&str] = &["gst-launch-1.0"];
const PLAYER: &[&str] = &["gst-launch-1.0", "python3"];

/// Options of the sink that sums pictures.
const SUMS: &str = "hash=md5 sync=false";

/// The same with a sink that shows pictures when they are due, as a player does, and drops none
/// when the machine is busy.
const SHOWN: &str = "hash=md5 sync=true qos=false max-lateness=-1";

/// Its jitter buffer delays the first picture by this much; otherwise it starts and ends like any
/// player.
const LATENCY_SECONDS: f64 = 2.0;

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        // One of the demo's titles by each transport.
        let demo = if transport == Transport::Udp { DEMO_CBR } else { DEMO_VBR };
        let to_the_end = move |_: &Lab, server: &Server, film: &TestMedia, log: &str| {
            launch(server, film, transport.word(), 0.0, log)
        };
        let launch = |film| Check::playing("gst", "launch", film, transport, LAUNCH, to_the_end);
        checks.extend(SHORT_FILMS.into_iter().chain([demo]).map(launch));
        let odd = ODD_TIMES.into_iter().chain(ODD_FILMS).chain([JOINED]).map(launch);
        checks.extend(odd.map(|check| check.short_by_udp(transport)));
        let scene = |scene: &'static Scene, film| {
            Check::playing("gst", scene.name, film, transport, PLAYER, move |_: &Lab, server, film, log| {
                play(server, film, transport, scene, log)
            })
        };
        let with_cbr = |of: &'static Scene| {
            let check = scene(of, "cbr");
            if of.long { check.only_long() } else { check }
        };
        checks.extend(SCENES.iter().map(with_cbr));
        checks.extend(ODD_TIMES.map(|film| scene(&EARLY_SEEK, film).only_long()));
        let join = if transport == Transport::Udp { &INTO_THE_SECOND } else { &ACROSS_THE_JOIN };
        checks.push(scene(join, JOINED).only_long());
        checks.push(scene(&ANYWHERE, TWO_HOURS).short_by_udp(transport));
        checks.push(scene(&DOWN_AND_UP, RUNGS));
        checks.push(scene(&ACROSS_THE_WRAP, WRAPPING_RUNGS).only_long());
        checks.push(scene(&FASTER, WRAPPING_FAST).short_by_udp(transport));
    }
}

/// A pipeline from the command line. Its pictures must be one piece of the film from its first picture on.
pub(super) fn launch(
    server: &Server,
    film: &TestMedia,
    protocols: &str,
    extra: f64,
    log: &str,
) -> CheckOutcome {
    let url = server.url(film)?;
    let source = format!("rtspsrc location={url} protocols={protocols} ! rtpmp2tdepay");
    let pipeline = format!("{source} ! tsdemux ! h264parse ! avdec_h264 ! video/x-raw,format=I420");
    let client = server.client("gst-launch-1.0").args(&format!("-q {pipeline} ! checksumsink {SHOWN}"));
    judge_pictures(server, client, film, extra + LATENCY_SECONDS, log)
}

/// The same for the media at `url`, with the elements that its player chooses for it.
pub(super) fn decode(server: &Server, film: &TestMedia, url: &str, log: &str) -> CheckOutcome {
    let client = server
        .client("gst-launch-1.0")
        .args(&format!("-q playbin uri={url} audio-sink=fakesink"))
        .arg(format!("video-sink=checksumsink {SUMS}"));
    judge_pictures(server, client, film, 0.0, log)
}

fn judge_pictures(
    server: &Server,
    client: ProgramSpec,
    film: &TestMedia,
    extra: f64,
    log: &str,
) -> CheckOutcome {
    let ended =
        client.env("GST_DEBUG_NO_COLOR", "1").run(&server.log(log), film.seconds + END_SECONDS + extra)?;
    if ended.status.is_none() {
        ended.ok("gst-launch-1.0")?;
    }
    let pictures = sums(&ended.out);
    if pictures != film.pictures {
        let complaint = first_error(&ended).unwrap_or("no complaint");
        return Err(format!("{}; gst-launch-1.0: {complaint}", difference(&film.pictures, &pictures)));
    }
    // When it stops at the end it cancels its own requests, and sometimes calls that an error.
    let closing =
        first_error(&ended).map(|error| format!(", said when closing: {error}")).unwrap_or_default();
    Ok(format!(
        "{} of {} pictures equal, ended {:.1} s after the film's length{closing}",
        pictures.len(),
        film.pictures.len(),
        ended.seconds - film.seconds
    ))
}

fn first_error(ended: &ProgramResult) -> Option<&str> {
    ended.err.lines().chain(ended.out.lines()).find(|line| line.contains("ERROR"))
}

/// The checksums in the output of checksumsink: a line `time checksum` for each picture.
fn sums(out: &str) -> Vec<String> {
    let is_sum = |word: &&str| word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit());
    out.lines().filter_map(|line| line.split_whitespace().nth(1)).filter(is_sum).map(str::to_owned).collect()
}

/// The player's actions with a film.
struct Scene {
    name: &'static str,
    /// Steps for `scripts/interop/gst_play.py`.
    steps: &'static str,
    /// Seconds that the steps add to the film's length, or take from it.
    added_seconds: f64,
    pauses: bool,
    /// Where the player asks to go, one place after the other.
    seeks: &'static [f64],
    /// How often it asks for the other rendition.
    changes: usize,
    /// It asks for another speed, at which only key pictures are sent.
    is_faster: bool,
    long: bool,
}

/// From the beginning to the end.
const WHOLE: Scene = Scene {
    name: "whole",
    steps: "",
    added_seconds: 0.0,
    pauses: false,
    seeks: &[],
    changes: 0,
    is_faster: false,
    long: false,
};

const SCENES: &[Scene] = &[
    WHOLE,
    Scene {
        name: "pause",
        steps: "--step 4:pause --step 7:resume",
        added_seconds: 3.0,
        pauses: true,
        ..WHOLE
    },
    Scene { name: "seek", steps: "--step 5:seek=9", seeks: &[9.0], ..WHOLE },
    // Longer than the usual session timeout of 60 s: GStreamer sends nothing while it pauses over TCP.
    Scene {
        name: "long-pause",
        steps: "--step 4:pause --step 74:resume",
        added_seconds: 70.0,
        pauses: true,
        long: true,
        ..WHOLE
    },
];

/// For shorter films: from before a wrap of the time stamps to behind it.
const EARLY_SEEK: Scene = Scene { name: "seek", steps: "--step 5:seek=7", seeks: &[7.0], ..WHOLE };

/// From the first of two joined recordings to the second and back.
const ACROSS_THE_JOIN: Scene = Scene {
    name: "seek",
    steps: "--step 5:seek=12 --step 9:seek=4",
    added_seconds: 9.0,
    seeks: &[12.0, 4.0],
    ..WHOLE
};

/// The same by UDP, where a datagram from before a backward seek may arrive after it: rtspsrc then
/// takes the end to be nearer by as much.
const INTO_THE_SECOND: Scene = Scene { steps: "--step 5:seek=12", seeks: &[12.0], ..ACROSS_THE_JOIN };

/// Near the beginning, in the middle, and the last 10 s of two hours.
const ANYWHERE: Scene = Scene {
    name: "seek",
    steps: "--step 5:seek=20 --step 10:seek=3600 --step 15:seek=7190",
    added_seconds: 36.0 - 7200.0,
    seeks: &[20.0, 3600.0, 7190.0],
    ..WHOLE
};

/// To the lower bit rate and back, by SET_PARAMETER while it plays.
const DOWN_AND_UP: Scene = Scene {
    name: "rendition",
    steps: "--step 5:rendition=180p --step 10:rendition=360p",
    changes: 2,
    ..WHOLE
};

/// The same before a wrap of clock and time stamps, at it, and behind it.
const ACROSS_THE_WRAP: Scene = Scene {
    steps: "--step 3:rendition=180p --step 7:rendition=360p --step 11:rendition=180p",
    changes: 3,
    ..DOWN_AND_UP
};

/// Four times the speed, from before a wrap of the time stamps to the end.
const FASTER: Scene = Scene {
    name: "faster",
    steps: "--latency 500 --step 4:rate=4",
    added_seconds: -8.0,
    is_faster: true,
    ..WHOLE
};

/// Plays with `gst_play.py` and judges its report.
fn play(server: &Server, film: &TestMedia, transport: Transport, scene: &Scene, log: &str) -> CheckOutcome {
    let limit = film.seconds + scene.added_seconds + LATENCY_SECONDS + END_SECONDS;
    let ended = python(server)
        .arg(workspace::root().join("scripts/interop/gst_play.py"))
        .arg(server.url(film)?)
        .args(&format!("--transport {} --limit {limit} {}", transport.word(), scene.steps))
        // The script ends by itself at its limit and reports everything seen until then.
        .run(&server.log(log), limit + END_SECONDS)?;
    ended.ok("gst_play.py")?;
    let report = serde_json::from_str(&ended.out).map_err(|e| format!("gst_play.py printed no JSON: {e}"))?;
    judge(&report, film, scene, transport)
}

fn python(server: &Server) -> ProgramSpec {
    // Its own interpreter finds the GObject bindings that the distribution installs.
    let system = std::path::Path::new("/usr/bin/python3");
    server
        .client(if system.exists() { "/usr/bin/python3" } else { "python3" })
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Whether a report of `gst_play.py` is that of a film played well.
fn judge(report: &Value, film: &TestMedia, scene: &Scene, transport: Transport) -> CheckOutcome {
    let count = |name: &str| report[name].as_u64().unwrap_or(u64::MAX);
    let shown: Vec<String> = serde_json::from_value(report["pictures"].clone()).unwrap_or_default();
    if let Some(error) = report["errors"].as_array().and_then(|list| list.first()) {
        return Err(format!("GStreamer: {error}"));
    }
    let Some(end) = report["end_s"].as_f64() else {
        return Err(format!("no end of stream within {} s, {} pictures", report["wall_s"], shown.len()));
    };
    // After a seek over UDP its count of lost packets means nothing (see gst_play.py); the pictures
    // show losses.
    let jumps = !scene.seeks.is_empty() || scene.is_faster;
    let counts_well = !jumps || transport == Transport::Tcp;
    if counts_well && count("lost") != 0 {
        return Err(format!("{} packets lost or late, {} pictures", count("lost"), shown.len()));
    }
    if count("frames_while_paused") != 0 {
        return Err(format!("{} pictures while paused", count("frames_while_paused")));
    }
    if report["hangs"] == true {
        return Err("the player hangs when it is closed".into());
    }
    let note = if !scene.seeks.is_empty() {
        let (shown, stale) = without_stale(&film.pictures, &shown, transport);
        format!("{stale}{}", after_seeks(film, &shown, scene.seeks)?)
    } else if scene.is_faster {
        let (shown, stale) = without_stale(&film.pictures, &shown, transport);
        let place = report["rates"][0][1].as_f64().ok_or("no other speed was asked for")?;
        format!("{stale}{}", key_pictures(film, &shown, place)?)
    } else if scene.changes > 0 {
        changes(film, &shown, scene.changes)?
    } else if shown == film.pictures {
        String::new()
    } else if scene.pauses && transport == Transport::Tcp {
        after_resume(film, &shown)?
    } else {
        return Err(difference(&film.pictures, &shown));
    };
    Ok(format!("{} pictures shown, all equal{note}, end of stream after {end:.1} s", shown.len()))
}

/// The pictures must be the film's from its beginning up to the first seek, from there to the next, and from the last to the end.
fn after_seeks(film: &TestMedia, shown: &[String], seeks: &[f64]) -> CheckOutcome {
    let pieces = pieces(&film.pictures, shown).ok_or_else(|| difference(&film.pictures, shown))?;
    let seconds = |picture: usize| picture as f64 / film.rate as f64;
    let found: Vec<_> = pieces
        .iter()
        .map(|piece| format!("{:.2} to {:.2} s", seconds(piece.start), seconds(piece.end)))
        .collect();
    let found = format!("seeks to {seeks:?} s show the film from {}", found.join(", "));
    // The answer starts at the access point before the wanted place.
    let early = GROUP_SECONDS as f64 + 0.1;
    let mut starts = pieces.iter().skip(1).map(|piece| seconds(piece.start)).zip(seeks);
    let is_right = pieces.len() == 1 + seeks.len()
        && pieces.first().is_some_and(|piece| piece.start == 0)
        && pieces.last().is_some_and(|piece| piece.end == film.pictures.len())
        && starts.all(|(start, &wanted)| (wanted - early..wanted + 0.5).contains(&start));
    if is_right { Ok(format!("; {found}")) } else { Err(found) }
}

/// The film's pictures from its beginning up to `place`, in seconds, and from there on one of each group, to the last.
fn key_pictures(film: &TestMedia, shown: &[String], place: f64) -> CheckOutcome {
    let group = GROUP_SECONDS * film.rate;
    let before = film.pictures.iter().zip(shown).take_while(|(a, b)| a == b).count();
    let keys: Vec<&String> = film.pictures.iter().step_by(group).collect();
    let (before, behind) = shown.split_at(before);
    if !behind.first().is_some_and(|first| keys.contains(&first)) {
        return Err(format!("behind picture {} comes none that begins a group", before.len()));
    }
    let from = keys.len().checked_sub(behind.len()).unwrap_or(keys.len());
    let begins = (from * GROUP_SECONDS) as f64;
    let found = format!("{} pictures, then {} of {} groups", before.len(), behind.len(), keys.len());
    // Its position is ahead of the picture shown by its jitter buffer and a bit.
    let is_right = (place - 1.2..place + 0.5).contains(&(before.len() as f64 / film.rate as f64))
        && behind.iter().eq(keys[from..].iter().copied())
        && (place - GROUP_SECONDS as f64 - 0.1..place + 0.5).contains(&begins);
    if is_right { Ok(format!("; {found}")) } else { Err(format!("{found}, asked for at {place} s")) }
}

/// Every picture must be the film's at one bit rate or the other, each in its place, and change from one to the other so often, at access points.
fn changes(film: &TestMedia, shown: &[String], wanted: usize) -> CheckOutcome {
    let is_lower = |at: usize| match &shown[at] {
        picture if Some(picture) == film.pictures.get(at) => Some(false),
        picture if Some(picture) == film.lower.get(at) => Some(true),
        _ => None,
    };
    let of: Option<Vec<bool>> = (0..shown.len()).map(is_lower).collect();
    let Some(of) = of.filter(|of| of.len() == film.pictures.len()) else {
        let foreign = (0..shown.len()).find(|&at| is_lower(at).is_none()).unwrap_or(shown.len());
        return Err(format!(
            "{} of {} pictures, picture {foreign} is not the film's at either bit rate",
            shown.len(),
            film.pictures.len()
        ));
    };
    let places: Vec<usize> = (1..of.len()).filter(|&at| of[at] != of[at - 1]).collect();
    let found = format!("the bit rate changes at pictures {places:?}");
    let is_right = places.len() == wanted && places.iter().all(|at| at % (GROUP_SECONDS * film.rate) == 0);
    if is_right { Ok(format!("; {found}")) } else { Err(found) }
}

/// Removes the picture that GStreamer makes of a datagram from before a seek, and reports it.
///
/// While rtspsrc flushes and asks for PAUSE it reads nothing by UDP. A datagram that was sent meanwhile waits in its socket until the flush is over,
/// and is decoded behind it: one damaged picture in front of the first at the new place. By TCP it reads up to the answer.
fn without_stale(film: &[String], shown: &[String], transport: Transport) -> (Vec<String>, String) {
    let place = |sum: &String| film.iter().position(|other| other == sum);
    let is_stale = |at: usize| {
        let around = || Some((place(shown.get(at.checked_sub(1)?)?)?, place(shown.get(at + 1)?)?));
        // One picture damaged within a piece is no seek's: the next but one of the film follows.
        place(&shown[at]).is_none() && around().is_some_and(|(before, behind)| behind != before + 2)
    };
    let stale: Vec<usize> = match transport {
        Transport::Udp => (0..shown.len()).filter(|&at| is_stale(at)).collect(),
        Transport::Tcp => Vec::new(),
    };
    let kept = shown.iter().enumerate().filter(|(at, _)| !stale.contains(at)).map(|(_, sum)| sum.clone());
    let note =
        if stale.is_empty() { String::new() } else { format!(" but {} from before a seek", stale.len()) };
    (kept.collect(), note)
}

/// The parts of the film without a gap that `shown` consists of; `None` if one of its pictures is not in the film.
fn pieces(film: &[String], shown: &[String]) -> Option<Vec<Range<usize>>> {
    let (mut pieces, mut rest) = (Vec::new(), shown);
    while let Some(first) = rest.first() {
        let start = film.iter().position(|sum| sum == first)?;
        let length = film[start..].iter().zip(rest).take_while(|(a, b)| a == b).count();
        pieces.push(start..start + length);
        rest = &rest[length..];
    }
    Some(pieces)
}

/// When rtspsrc resumes over TCP it marks the first packet as a discontinuity (over UDP it does not), and tsdemux then
/// throws away the picture that is half there. So pictures may be damaged up to the next access point, and only these.
fn after_resume(film: &TestMedia, shown: &[String]) -> CheckOutcome {
    let (group, film) = (GROUP_SECONDS * film.rate, &film.pictures);
    let before = film.iter().zip(shown).take_while(|(a, b)| a == b).count();
    let damaged = shown[before..].iter().take_while(|sum| !film.contains(sum)).count();
    let again = to_the_end(film, &shown[before + damaged..], 0).ok_or_else(|| difference(film, shown))?;
    let next_access_point = before.next_multiple_of(group);
    if before == 0 || again > next_access_point {
        return Err(format!(
            "{before} pictures, then {damaged} damaged, then the film from picture {again} on"
        ));
    }
    Ok(format!(" but {damaged} behind the pause, which GStreamer cut itself"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn film() -> TestMedia {
        let pictures = (0..300).map(|number| number.to_string()).collect();
        TestMedia {
            name: "film",
            seconds: 12.0,
            rate: 25,
            is_stream: true,
            is_joined: false,
            pictures,
            sounds: Vec::new(),
            stored: None,
            lower: Vec::new(),
        }
    }

    fn report(pictures: &[String]) -> Value {
        json!({"pictures": pictures, "lost": 0, "errors": [], "end_s": 14.1, "wall_s": 14.2,
               "frames_while_paused": 0, "hangs": false})
    }

    #[test]
    fn judge_accepts_complete_report() {
        let film = film();
        let verdict = judge(&report(&film.pictures), &film, &SCENES[0], Transport::Udp);
        assert_eq!(verdict.unwrap(), "300 pictures shown, all equal, end of stream after 14.1 s");
        let jumped = [&film.pictures[..40], &film.pictures[200..]].concat();
        let verdict = judge(&report(&jumped), &film, &SCENES[2], Transport::Udp).unwrap();
        assert!(
            verdict.contains("seeks to [9.0] s show the film from 0.00 to 1.60 s, 8.00 to 12.00 s"),
            "{verdict}"
        );
    }

    #[test]
    fn judge_rejects_each_fault() {
        let film = film();
        let faults = [
            ("errors", json!(["rtspsrc0: gone"]), "gone"),
            ("end_s", Value::Null, "no end of stream"),
            ("lost", json!(2), "2 packets lost"),
            ("pictures", json!(film.pictures[..299]), "299 of 300 frames"),
            ("pictures", json!(film.pictures[1..]), "first difference at frame 0"),
            ("frames_while_paused", json!(9), "9 pictures while paused"),
            ("hangs", json!(true), "hangs"),
        ];
        for (name, value, words) in faults {
            let mut report = report(&film.pictures);
            report[name] = value;
            let fault = judge(&report, &film, &SCENES[1], Transport::Udp).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
    }

    #[test]
    fn damage_behind_a_pause_ends_at_the_access_point() {
        let film = film();
        let pause = |damaged: std::ops::Range<usize>, transport| {
            let mut pictures = film.pictures.clone();
            pictures[damaged].fill("damaged".into());
            judge(&report(&pictures), &film, &SCENES[1], transport)
        };
        assert!(pause(97..100, Transport::Tcp).unwrap().contains("all equal but 3 behind the pause"));
        assert!(pause(0..0, Transport::Tcp).unwrap().contains("all equal, end"));
        assert!(pause(97..100, Transport::Udp).unwrap_err().contains("3 of them damaged"));
        assert!(pause(97..103, Transport::Tcp).unwrap_err().contains("97 pictures, then 6 damaged"));
        // Pictures that are missing, not damaged, were lost elsewhere.
        let missing = [&film.pictures[..97], &film.pictures[101..]].concat();
        assert!(judge(&report(&missing), &film, &SCENES[1], Transport::Tcp).is_err());
    }

    #[test]
    fn judge_rejects_wrong_seek() {
        let film = film();
        let seek = |pictures: Vec<String>, transport, lost: u64| {
            let mut report = report(&pictures);
            report["lost"] = json!(lost);
            judge(&report, &film, &SCENES[2], transport)
        };
        let all = &film.pictures;
        let good = [&all[..40], &all[200..]].concat();
        // GStreamer counts lost packets over UDP that were never sent.
        assert!(seek(good.clone(), Transport::Udp, 900).is_ok());
        assert!(seek(good.clone(), Transport::Tcp, 900).unwrap_err().contains("900 packets lost"));
        let too_early = [&all[..40], &all[100..]].concat();
        assert!(seek(too_early, Transport::Udp, 0).unwrap_err().contains("4.00 to 12.00 s"));
        let without_the_last = [&all[..40], &all[200..299]].concat();
        assert!(seek(without_the_last, Transport::Udp, 0).unwrap_err().contains("8.00 to 11.96 s"));
        let mut damaged = good;
        damaged[60] = "damaged".into();
        assert!(seek(damaged, Transport::Udp, 0).unwrap_err().contains("1 of them damaged"));
        // The remains of a datagram from before the seek come between the two pieces, once, and by
        // UDP only.
        let stale = |count: usize| [&all[..40], &vec!["damaged".into(); count], &all[200..]].concat();
        let verdict = seek(stale(1), Transport::Udp, 0).unwrap();
        assert!(verdict.contains("all equal but 1 from before a seek; seeks"), "{verdict}");
        assert!(seek(stale(2), Transport::Udp, 0).is_err());
        assert!(seek(stale(1), Transport::Tcp, 0).is_err());
        // The beginning is missing, or the seek, or a picture before it.
        for shown in [&[&all[200..]][..], &[all], &[&all[..20], &all[21..40], &all[200..]]] {
            assert!(seek(shown.concat(), Transport::Udp, 0).is_err());
        }
    }

    #[test]
    fn bit_rate_change_must_occur_at_access_point_without_damage() {
        let mut film = film();
        film.lower = (0..300).map(|number| format!("lower {number}")).collect();
        let (best, lower) = (film.pictures.clone(), film.lower.clone());
        let down_and_up = |down: usize, up: usize| [&best[..down], &lower[down..up], &best[up..]].concat();
        assert_eq!(
            changes(&film, &down_and_up(150, 250), 2).unwrap(),
            "; the bit rate changes at pictures [150, 250]"
        );
        assert!(changes(&film, &down_and_up(150, 249), 2).unwrap_err().contains("[150, 249]"));
        assert!(changes(&film, &best, 2).is_err() && changes(&film, &down_and_up(150, 300), 2).is_err());
        let mut damaged = down_and_up(150, 250);
        damaged[150] = "damaged".into();
        assert!(changes(&film, &damaged, 2).unwrap_err().contains("picture 150 is not the film's"));
        let missing = [&best[..150], &lower[151..250], &best[250..]].concat();
        assert!(changes(&film, &missing, 2).unwrap_err().contains("299 of 300 pictures, picture 150"));
        assert!(changes(&film, &down_and_up(150, 250)[..299], 2).unwrap_err().contains("picture 299"));
    }

    #[test]
    fn another_speed_shows_one_picture_of_each_group_and_all_of_them() {
        let film = film();
        let all = &film.pictures;
        let faster = |before: usize, keys: &[usize]| {
            let keys: Vec<String> = keys.iter().map(|key| all[*key].clone()).collect();
            [&all[..before], &keys[..]].concat()
        };
        let whole = [0, 50, 100, 150, 200, 250];
        let found = "; 40 pictures, then 6 of 6 groups";
        assert_eq!(key_pictures(&film, &faster(40, &whole), 1.6).unwrap(), found);
        assert_eq!(
            key_pictures(&film, &faster(70, &whole[1..]), 2.7).unwrap(),
            "; 70 pictures, then 5 of 6 groups"
        );
        for keys in [
            &[0, 50, 150, 200, 250][..],
            &whole[..5],
            &[0, 0, 50, 100, 150, 200, 250],
            &[0, 50, 99],
            &[],
            &whole[2..],
        ] {
            assert!(key_pictures(&film, &faster(40, keys), 1.6).is_err(), "{keys:?}");
        }
        let without_beginning = &faster(40, &whole)[40..];
        assert!(key_pictures(&film, without_beginning, 1.6).is_err());
        let mut report = report(&faster(40, &whole));
        report["rates"] = json!([[4.0, 1.6, 40]]);
        assert!(judge(&report, &film, &FASTER, Transport::Tcp).unwrap().contains(found));
        report["rates"] = json!([]);
        assert!(judge(&report, &film, &FASTER, Transport::Tcp).unwrap_err().contains("no other speed"));
    }

    #[test]
    fn several_seeks_are_told_apart() {
        let film = film();
        let all = &film.pictures;
        let there_and_back = [&all[..40], &all[200..240], &all[100..]].concat();
        assert!(after_seeks(&film, &there_and_back, &[8.0, 4.0]).is_ok());
        for seeks in [&[8.0][..], &[8.0, 8.0], &[4.0, 8.0], &[8.0, 4.0, 4.0]] {
            assert!(after_seeks(&film, &there_and_back, seeks).is_err(), "{seeks:?}");
        }
    }

    #[test]
    fn sums_are_read_from_the_sink() {
        let out = "0:00:00.000000000 0123456789abcdef0123456789abcdef\nProgress: (open) Opening Stream\n";
        assert_eq!(sums(out), ["0123456789abcdef0123456789abcdef"]);
    }
}
