//! Ladders: each rung is a sound stream, and so is every row of rungs that changes at access points.

mod ladder_support;

use std::fs::{self, File};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use ladder_support::{Fixture, Rung};
use millrace_core::random::SplitMix;
use millrace_store::check::{Depth, check_store};
use millrace_store::ingest::ladder::LadderError;
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

#[test]
fn every_row_of_rungs_is_a_sound_stream() {
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
fn a_clock_that_wraps_is_no_seam() {
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
fn an_interrupted_ladder_leaves_nothing_visible_and_goes_on() {
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
fn what_nobody_goes_on_with_is_removed_after_a_week() {
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
fn what_makes_no_ladder_is_refused_and_leaves_nothing() {
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
    refused(&sound, "it has no pictures");
    sound.path = film.path.clone();
    sound.options.ingest.ffmpeg = "/nowhere/ffmpeg".into();
    refused(&sound, "cannot be started");
    let poor = Fixture::new(30, "25", 1, "180p:1.2M,90p:150k");
    refused(&poor, "too little of 150kb/s for pictures");
}
