//! Ladders: each rung is a sound stream, and so is every row of rungs that changes at access points.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::ladder_support;
use crate::ladder_support::{Fixture, Rung};
use millrace_core::random::SplitMix;
use millrace_make::ingest::{IngestOptions, ingest};
use millrace_make::ladder::{self, LadderError, join};
use millrace_store::check::{Depth, check_store};
use millrace_store::volume::Volume;

const LIST: &str = "180p:1.2M,120p:800k,90p:500k";

/// Rows of rungs: each alone, each pair in turn, and some at random.
fn rows(rungs: usize, groups: usize) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = (0..rungs).map(|rung| vec![rung; groups]).collect();
    for from in 0..rungs {
        for to in (0..rungs).filter(|to| *to != from) {
            rows.push((0..groups).map(|group| if group % 2 == 0 { from } else { to }).collect());
        }
    }
    let mut random = SplitMix(7);
    rows.extend((0..4).map(|_| (0..groups).map(|_| random.below(rungs as u64) as usize).collect::<Vec<_>>()));
    rows
}

/// Checks every rung and every row; all have the same sound.
fn check(film: &Fixture, rungs: &[Rung], pictures: u64, sounds: usize) {
    for rung in &rungs[1..] {
        let path = file(film, "rung.ts", &rung.bytes());
        let misfits = ladder::check(&film.volume, &rungs[0].info, &path).unwrap();
        assert_eq!(misfits, [], "{}", rung.info.name);
    }
    let mut heard = None;
    let rate = |rung: &Rung| rung.info.peak_rate;
    for (rung, wanted) in rungs.iter().zip(film.options.ladder.rungs()) {
        assert!(rate(rung) <= wanted.rate, "{}: {} for {wanted}", rung.info.name, rate(rung));
        assert_eq!(rung.times, rungs[0].times, "{}", rung.info.name);
        assert_eq!(rung.info.duration, rungs[0].info.duration);
        assert!(rung.groups.iter().all(|group| group.len().is_multiple_of(1316)), "{}", rung.info.name);
    }
    for row in rows(rungs.len(), rungs[0].groups.len()) {
        let stream: Vec<u8> =
            row.iter().enumerate().flat_map(|(at, &rung)| rungs[rung].groups[at].clone()).collect();
        let sound = film.check(&stream, pictures, sounds, &format!("row {row:?}"));
        assert_eq!(*heard.get_or_insert_with(|| sound.clone()), sound, "row {row:?}");
    }
}

/// The bytes of a rung in a file.
fn file(film: &Fixture, name: &str, bytes: &[u8]) -> PathBuf {
    let path = film.dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Adds one to the counters of a PID from a byte on.
fn miscount(bytes: &mut [u8], from: usize, pid: u16) {
    for packet in bytes[from..].chunks_mut(188) {
        if u16::from(packet[1] & 0x1f) << 8 | u16::from(packet[2]) == pid {
            packet[3] = packet[3] & 0xf0 | (packet[3] + 1) & 15;
        }
    }
}

#[test]
fn files_that_fit_are_joined_and_others_are_refused_with_all_that_does_not() {
    let film = Fixture::new(150, "25", 1, LIST);
    let rungs = film.rungs();
    let volume = Volume::open_or_create(&film.dir.path().join("other")).unwrap();
    let options = IngestOptions::default();
    let best = file(&film, "best.ts", &rungs[0].bytes());
    let title = ingest(&volume, &best, &options, &mut |_| ()).unwrap();
    let name = |name: &str| name.parse().unwrap();
    let join = |own: Option<&str>, files: &[(&str, &PathBuf)]| {
        let files: Vec<_> = files.iter().map(|(label, path)| (name(label), (*path).clone())).collect();
        let title = volume.find("best").unwrap().unwrap();
        join(&volume, &title, own.map(name), &files, &options, &mut |_| ()).map_err(|error| error.to_string())
    };
    let refused = |path: &PathBuf, words: &[&str]| {
        let error = join(Some("180p"), &[("bad", path)]).unwrap_err();
        words.iter().for_each(|words| assert!(error.contains(words), "{words}: {error}"));
        assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&title), "nothing is changed");
    };
    // A group later the counters of pictures are others.
    let mut counted = rungs[1].bytes();
    miscount(&mut counted, rungs[1].groups[0].len(), 0x100);
    let counted = file(&film, "counted.ts", &counted);
    refused(&counted, &["at 0:00:04", "PID 256 has continuity counter 15 in the title, 0 in the file"]);
    let short = file(&film, "short.ts", &rungs[1].groups[..2].concat());
    refused(&short, &["the title has 3 access points, the file 2", "the title lasts"]);
    // The groups of another film, as long: pictures, sound and clock go on elsewhere.
    let mut late = Fixture::new(150, "25", 1, LIST);
    late.options.clock_start_ticks += 90_000;
    let late = file(&film, "late.ts", &late.rungs()[1].bytes());
    refused(&late, &["the clocks are 1000 ms apart", "goes on with another picture or sound"]);
    let other = film.dir.path().join("other.ts");
    let (from, to) = (film.path.to_str().unwrap(), other.to_str().unwrap());
    let codec =
        ["-c:v", "libx264", "-preset", "veryfast", "-g", "40", "-x264-params", "open-gop=1", "-c:a", "mp2"];
    ladder_support::ffmpeg(&[&["-i", from][..], &codec, &["-mpegts_start_pid", "300", to]].concat());
    refused(
        &other,
        &["MP2 on PID 301", "continuity counter", "access points, the file", "goes over", "(open group)"],
    );
    refused(&film.path, &["not a transport stream of 188-byte packets"]);
    let good: Vec<PathBuf> =
        rungs[1..].iter().map(|rung| file(&film, &format!("{}.ts", rung.info.name), &rung.bytes())).collect();
    assert!(join(None, &[("120p", &good[0])]).unwrap_err().contains("--join best=LABEL"));
    assert!(join(Some("180p"), &[("180p", &good[0])]).unwrap_err().contains("a rendition 180p already"));
    let joined = join(Some("180p"), &[("120p", &good[0]), ("90p", &good[1])]).unwrap();
    assert_eq!(joined.iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["best@120p", "best@90p"]);
    let offers = volume.renditions_of(title.id).unwrap();
    assert_eq!(offers.iter().map(|offer| offer.name.as_str()).collect::<Vec<_>>(), ["180p", "120p", "90p"]);
    assert!(join(Some("hd"), &[("60p", &good[0])]).unwrap_err().contains("is 180p; leave the label out"));
    assert_eq!(check_store(volume.dir(), Depth::Full, &mut |_| {}).unwrap(), []);
}

#[test]
fn ladder_switching_between_rungs_yields_valid_stream() {
    // Pictures that are shown in another order than they are sent, and a last group that is short.
    let mut film = Fixture::new(170, "25", 2, LIST);
    film.options.preset = "veryfast".to_owned();
    let rungs = film.rungs();
    assert_eq!(rungs[0].groups.len(), 4);
    check(&film, &rungs, 170, 2);
    let names: Vec<&str> = rungs.iter().map(|rung| rung.info.name.as_str()).collect();
    assert_eq!(names, ["film", "film@120p", "film@90p"]);
    let offers = film.volume.renditions_of(rungs[0].info.id).unwrap();
    assert_eq!(
        offers.iter().map(|offer| offer.name.to_string()).collect::<Vec<_>>(),
        ["180p", "120p", "90p"]
    );
    assert!(offers.windows(2).all(|pair| pair[0].mean_rate > pair[1].mean_rate), "{offers:?}");
    let sounds = &rungs[0].info.streams[1..];
    assert_eq!(sounds.iter().map(|sound| sound.language.as_deref()).collect::<Vec<_>>(), [Some("nor"), None]);
    assert_eq!(check_store(film.volume.dir(), Depth::Full, &mut |_| {}).unwrap(), []);
}

#[test]
fn ladder_across_clock_wrap_has_no_discontinuity() {
    let mut film = Fixture::new(170, "25", 1, LIST);
    // The stamps wrap in the second group, the clock at its end.
    film.options.clock_start_ticks = (1 << 33) - 90_000 * 7 / 2;
    let rungs = film.rungs();
    check(&film, &rungs, 170, 1);
}

#[test]
fn pictures_at_an_odd_rate_and_no_sound() {
    let film = Fixture::new(200, "30000/1001", 0, "180p:1.2M,90p:500k");
    let rungs = film.rungs();
    assert_eq!(rungs[0].groups.len(), 4, "60 pictures each");
    check(&film, &rungs, 200, 0);
}

#[test]
fn ladder_after_interruption_is_hidden_and_resumes() {
    let film = Fixture::new(80, "25", 1, "180p:1.2M,90p:500k");
    let cancel = &film.options.ingest.cancel;
    let second = film.options.ladder.rungs()[1].name;
    let stop = film.make(&mut |progress| cancel.store(progress.name == Some(second), Ordering::Relaxed));
    assert!(matches!(stop, Err(LadderError::Cancelled { .. })), "{stop:?}");
    cancel.store(false, Ordering::Relaxed);
    assert_eq!(film.volume.titles().unwrap(), []);
    assert_eq!(check_store(film.volume.dir(), Depth::Full, &mut |_| {}).unwrap(), []);
    // Another process opens the store meanwhile.
    drop(Volume::open(film.volume.dir()).unwrap());
    let mut encoded = Vec::new();
    let made =
        film.make(&mut |progress| encoded.extend(progress.name.filter(|_| !progress.is_writing))).unwrap();
    assert_eq!(made.reused, 1);
    assert!(encoded.iter().all(|name| *name == second) && !encoded.is_empty(), "{encoded:?}");
    assert_eq!(film.volume.titles().unwrap().len(), 2);
    let left: Vec<_> = fs::read_dir(film.volume.dir().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn ladder_leftovers_are_removed_after_a_week() {
    let dir = tempfile::tempdir().unwrap();
    drop(Volume::open_or_create(dir.path()).unwrap());
    let work = |key: &str, days: u64| {
        let path = dir.path().join("tmp").join(format!("{}.ladder", key.repeat(16)));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("x.ts"), b"x").unwrap();
        let then = SystemTime::now() - Duration::from_secs(days * 86_400);
        File::open(&path).unwrap().set_modified(then).unwrap();
        path
    };
    let (old, new) = (work("0a", 8), work("0b", 6));
    drop(Volume::open(dir.path()).unwrap());
    assert!(!old.exists() && new.exists());
}

#[test]
fn ladder_from_unsuitable_source_is_refused_and_leaves_nothing() {
    let film = Fixture::new(30, "25", 1, "360p:1.2M,90p:500k");
    let refused = |film: &Fixture, words: &str| {
        let error = film.make(&mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(film.volume.titles().unwrap(), []);
    };
    refused(&film, "360p is larger than the film, which has 320 x 180");
    let mut sound = Fixture::new(30, "25", 1, LIST);
    let path = sound.dir.path().join("sound.mka");
    ladder_support::ffmpeg(&[
        "-i",
        sound.path.to_str().unwrap(),
        "-vn",
        "-c",
        "copy",
        path.to_str().unwrap(),
    ]);
    sound.path = path;
    refused(&sound, "no video, which a ladder needs");
    sound.path = film.path.clone();
    sound.options.ingest.ffmpeg = "/nowhere/ffmpeg".into();
    refused(&sound, "cannot be started");
    let poor = Fixture::new(30, "25", 1, "180p:1.2M,90p:150k");
    refused(&poor, "too little of 150kb/s for video");
}
