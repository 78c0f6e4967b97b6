//! Titles whose streams change: whether players get every picture and every audio frame of all
//! recordings that were joined.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use millrace_web::WebLimits;
use tempfile::TempDir;

use super::client::Client;
use super::cmaf::{AS_IT_IS, DECODED, WITHOUT_ADTS, listed, measured, resolved, sums, times};
use super::hls::{run, taken_in};
use super::site::{MadeUp, serve};

/// Duration of each recording in seconds.
const SECONDS: u32 = 6;

const H264: &[&str] = &["-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-g", "50"];
const H265: &[&str] =
    &["-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:keyint=50:bframes=2"];
const AAC: &[&str] = &["-c:a", "aac", "-ar", "48000", "-ac", "2"];

/// Parameters of a recording.
struct Recording {
    size: &'static str,
    pictures: &'static [&'static str],
    sound: &'static [&'static str],
    /// Options of the multiplexer.
    options: &'static [&'static str],
}

const fn recording(sound: &'static [&'static str], options: &'static [&'static str]) -> Recording {
    Recording { size: "160x120", pictures: H264, sound, options }
}

/// Makes a recording with time stamps that begin after `from` seconds.
fn make(path: &Path, of: &Recording, from: u32) {
    let picture = format!("testsrc2=size={}:rate=25:duration={SECONDS}", of.size);
    let tone = format!("sine=frequency=440:sample_rate=48000:duration={SECONDS}");
    let from = from.to_string();
    let mut args =
        vec!["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture, "-f", "lavfi", "-i", &tone];
    args.extend(of.pictures);
    args.extend(of.sound);
    args.extend(["-pix_fmt", "yuv420p", "-output_ts_offset", &from]);
    args.extend(of.options);
    args.push(path.to_str().unwrap());
    run("ffmpeg", &args);
}

fn pid_of(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[1] & 0x1f, packet[2]])
}

/// Joins recordings without a jump in the continuity counters.
fn join(paths: &[PathBuf]) -> Vec<u8> {
    let (mut out, mut counters) = (Vec::new(), HashMap::<u16, u8>::new());
    for path in paths {
        let mut bytes = std::fs::read(path).unwrap();
        for packet in bytes.chunks_exact_mut(188) {
            let counter = counters.entry(pid_of(packet)).or_insert(15);
            if packet[3] & 0x10 != 0 {
                *counter = (*counter + 1) & 15;
            }
            packet[3] = packet[3] & 0xf0 | *counter;
        }
        out.extend(bytes);
    }
    out
}

/// Downloads the parts of a media playlist, between discontinuities, each into a file.
fn parts(client: &mut Client, path: &str, dir: &Path) -> Vec<PathBuf> {
    let answer = client.get(path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    let mut parts: Vec<Vec<u8>> = vec![Vec::new()];
    for line in answer.text().lines() {
        let map = line.strip_prefix("#EXT-X-MAP:URI=\"").map(|rest| rest.trim_end_matches('"'));
        if line == "#EXT-X-DISCONTINUITY" {
            parts.push(Vec::new());
        }
        if let Some(address) = map.or_else(|| (!line.starts_with('#')).then_some(line)) {
            let piece = client.get(&resolved(path, address));
            assert_eq!(piece.status, 200, "{address}");
            parts.last_mut().unwrap().extend(piece.body);
        }
    }
    let name = path.replace('/', "-");
    let write = |(number, bytes): (usize, Vec<u8>)| {
        let path = dir.join(format!("{name}.{number}"));
        std::fs::write(&path, bytes).unwrap();
        path
    };
    parts.into_iter().filter(|bytes| !bytes.is_empty()).enumerate().map(write).collect()
}

fn all_sums(paths: &[PathBuf], stream: &str, args: &[&str]) -> Vec<String> {
    paths.iter().flat_map(|path| sums(path.to_str().unwrap(), stream, args)).collect()
}

/// Addresses of the video and all audio tracks in fragmented MP4.
fn tracks(client: &mut Client, name: &str) -> Vec<String> {
    let master = format!("/titles/{name}/cmaf.m3u8");
    let answer = client.get(&master);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = m3u8_rs::parse_master_playlist_res(&answer.body).unwrap();
    let sounds = list.alternatives.iter().map(|sound| sound.uri.clone().unwrap());
    let all = [list.variants[0].uri.clone()].into_iter().chain(sounds);
    all.map(|uri| resolved(&master, &uri)).collect()
}

struct Joined {
    dir: TempDir,
    sources: Vec<PathBuf>,
    site: std::sync::Arc<MadeUp>,
}

/// A title `film`, joined from these recordings. Each begins when the previous one ends, or `pause`
/// seconds later.
fn joined(recordings: &[Recording], pause: u32) -> Joined {
    let dir = tempfile::tempdir().unwrap();
    let mut sources = Vec::new();
    for (recording, number) in recordings.iter().zip(0u32..) {
        let path = dir.path().join(format!("{number}.ts"));
        make(&path, recording, number * (SECONDS + pause));
        sources.push(path);
    }
    let path = dir.path().join("film.ts");
    std::fs::write(&path, join(&sources)).unwrap();
    let site = MadeUp::with(vec![taken_in(dir.path(), &path)]);
    Joined { dir, sources, site }
}

/// Checks that fragmented MP4 and transport stream each contain all of the title.
fn check(what: &str, joined: &Joined, sound: &[&str]) {
    let (_web, address, _) = serve(&joined.site, WebLimits::default());
    let mut client = Client::to(address);
    let list = tracks(&mut client, "film");
    assert_eq!(list.len(), 2, "{what}: one track of pictures and one of sound: {list:?}");
    let pictures = parts(&mut client, &list[0], joined.dir.path());
    let sounds = parts(&mut client, &list[1], joined.dir.path());
    assert_eq!(pictures.len(), joined.sources.len(), "{what}: an init segment for each part");
    let expected = all_sums(&joined.sources, "0:v", DECODED);
    let found = all_sums(&pictures, "0:v", DECODED);
    assert_eq!(found.len(), expected.len(), "{what}: pictures");
    let same = found.iter().zip(&expected).filter(|(found, expected)| found == expected).count();
    assert_eq!(same, expected.len(), "{what}: pictures differ");
    let frames = all_sums(&joined.sources, "0:a", sound);
    assert_eq!(all_sums(&sounds, "0:a", AS_IT_IS).len(), frames.len(), "{what}: frames of sound");
    assert!(all_sums(&sounds, "0:a", AS_IT_IS) == frames, "{what}: sounds differ");
    for pair in pictures.windows(2).chain(sounds.windows(2)) {
        let stream = if pictures.contains(&pair[0]) { "v:0" } else { "a:0" };
        let [before, after] = [&pair[0], &pair[1]].map(|path| times(path.to_str().unwrap(), stream));
        assert!(before.last().unwrap().1 < after[0].1, "{what} {stream}: {:?} {:?}", before.last(), after[0]);
    }
    // Each part of the transport stream begins with its tables, so that a player can start there
    // without earlier data.
    let stream = parts(&mut client, "/titles/film/media.m3u8", joined.dir.path());
    assert_eq!(stream.len(), joined.sources.len(), "{what}");
    for part in &stream {
        let bytes = std::fs::read(part).unwrap();
        let pids: Vec<u16> = bytes.chunks_exact(188).take(2).map(pid_of).collect();
        assert!(pids[0] == 0 && [0x1000, 0x1100].contains(&pids[1]), "{what}: {pids:x?}");
    }
    // The new program map arrives slightly before the cut, so a part may end with the first packets
    // of the next part's streams.
    assert!(
        all_sums(&stream, "0:v:0", DECODED) == expected,
        "{what}: pictures of the transport stream differ"
    );
}

#[test]
fn title_with_other_pids_has_one_track_of_each() {
    const OTHER: &[&str] = &["-mpegts_start_pid", "0x200", "-tables_version", "1"];
    let both = [recording(AAC, &[]), recording(AAC, OTHER)];
    check("other PIDs", &joined(&both, 0), WITHOUT_ADTS);
}

#[test]
fn title_with_other_pids_behind_a_jump_has_its_tables_in_front() {
    const OTHER: &[&str] = &["-mpegts_start_pid", "0x200", "-mpegts_pmt_start_pid", "0x1100"];
    check("a jump", &joined(&[recording(AAC, &[]), recording(AAC, OTHER)], 500), WITHOUT_ADTS);
}

#[test]
fn title_with_pictures_of_another_size_is_decoded_whole() {
    let larger = Recording { size: "320x240", ..recording(AAC, &[]) };
    check("A B A", &joined(&[recording(AAC, &[]), larger, recording(AAC, &[])], 0), WITHOUT_ADTS);
}

#[test]
fn title_with_another_format_of_aac_has_every_frame() {
    const MONO: &[&str] = &["-c:a", "aac", "-ar", "44100", "-ac", "1"];
    let all = [recording(AAC, &[]), recording(MONO, &[]), recording(AAC, &[])];
    check("48 and 44.1 kHz", &joined(&all, 0), WITHOUT_ADTS);
}

#[test]
fn title_with_other_codecs_has_one_track_of_each() {
    const AC3: &[&str] = &["-c:a", "ac3", "-ar", "48000", "-ac", "2"];
    let other = Recording { pictures: H265, ..recording(AC3, &[]) };
    let film = joined(&[recording(AC3, &[]), other], 0);
    check("H.264 and H.265", &film, AS_IT_IS);
}

/// A change within one recording, away from access points.
#[test]
fn ac3_that_changes_to_more_channels_has_every_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let tone = format!("sine=frequency=440:sample_rate=48000:duration={SECONDS}");
    let surround = "pan=5.1|c0=c0|c1=c0|c2=c0|c3=c0|c4=c0|c5=c0";
    for (name, filter) in [("a.ac3", "pan=stereo|c0=c0|c1=c0"), ("b.ac3", surround)] {
        let out = path(name);
        let args =
            ["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &tone, "-af", filter, "-c:a", "ac3", &out];
        run("ffmpeg", &args);
    }
    let sound = [path("a.ac3"), path("b.ac3")].map(|path| std::fs::read(path).unwrap()).concat();
    std::fs::write(path("all.ac3"), sound).unwrap();
    let picture = format!("testsrc2=size=160x120:rate=25:duration={}", 2 * SECONDS);
    let (all, film) = (path("all.ac3"), path("film.ts"));
    let mut args =
        vec!["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", &picture, "-f", "ac3", "-i", &all];
    args.extend(H264);
    args.extend(["-pix_fmt", "yuv420p", "-c:a", "copy", &film]);
    run("ffmpeg", &args);
    let site = MadeUp::with(vec![taken_in(dir.path(), Path::new(&film))]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let mut client = Client::to(address);
    let list = tracks(&mut client, "film");
    let sounds = parts(&mut client, &list[1], dir.path());
    assert_eq!(sounds.len(), 2);
    assert!(all_sums(&sounds, "0:a", AS_IT_IS) == sums(&film, "0:a", AS_IT_IS));
    let channels = sounds.iter().map(|part| {
        let args =
            ["-v", "error", "-show_entries", "stream=channels", "-of", "csv=p=0", part.to_str().unwrap()];
        String::from_utf8(run("ffprobe", &args)).unwrap().trim_matches(['\n', ',']).to_owned()
    });
    assert_eq!(channels.collect::<Vec<_>>(), ["2", "6"]);
    let pictures = parts(&mut client, &list[0], dir.path());
    assert!(all_sums(&pictures, "0:v", DECODED) == sums(&film, "0:v", DECODED));
}

/// Channels given by a program config element.
#[test]
fn aac_without_named_channels_is_decoded() {
    const SIDE: &[&str] = &["-af", "pan=5.1(side)|c0=c0|c1=c0|c2=c0|c3=c0|c4=c0|c5=c0", "-c:a", "aac"];
    let film = joined(&[recording(SIDE, &[])], 0);
    let (_web, address, _) = serve(&film.site, WebLimits::default());
    let mut client = Client::to(address);
    let list = tracks(&mut client, "film");
    assert_eq!(list.len(), 2, "{list:?}");
    let sounds = parts(&mut client, &list[1], film.dir.path());
    assert!(all_sums(&sounds, "0:a", &[]) == all_sums(&film.sources, "0:a", &[]), "decoded samples differ");
}

/// The tables of Blu-ray have no stream type for AAC, so FFmpeg writes it as private data.
#[test]
fn aac_as_private_data_has_every_frame_once() {
    let dir = tempfile::tempdir().unwrap();
    for hz in ["48000", "44100"] {
        let source = dir.path().join(format!("film-{hz}.m2ts"));
        let tone = format!("sine=frequency=440:sample_rate={hz}:duration=54");
        let picture = "testsrc2=size=160x120:rate=25:duration=54";
        let mut args =
            vec!["-nostdin", "-v", "error", "-y", "-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", &tone];
        args.extend(H264);
        args.extend(["-c:a", "aac", "-pix_fmt", "yuv420p", "-mpegts_m2ts_mode", "1"]);
        args.push(source.to_str().unwrap());
        run("ffmpeg", &args);
        let film = taken_in(dir.path(), &source);
        let name = film.info.name.clone();
        let (_web, address, _) = serve(&MadeUp::with(vec![film]), WebLimits::default());
        let mut client = Client::to(address);
        let list = tracks(&mut client, &name);
        assert_eq!(list.len(), 2, "{list:?}");
        let expected = sums(source.to_str().unwrap(), "0:a", WITHOUT_ADTS);
        assert!(expected.len() > 2300, "{}", expected.len());
        let sounds = parts(&mut client, &list[1], dir.path());
        let [sound] = &sounds[..] else { panic!("{sounds:?}") };
        assert!(sums(sound.to_str().unwrap(), "0:a", AS_IT_IS) == expected, "{hz}: frames differ");
        // Each segment begins where the one before it ends.
        let (_, segments) = listed(&mut client, &list[1]);
        assert!(segments.len() >= 9, "{}", segments.len());
        let mut next = None;
        for (path, ..) in &segments {
            let (start, length, samples) = measured(&client.get(path).body);
            assert!(samples > 0 && next.is_none_or(|next| next == start), "{path}: {next:?} {start}");
            next = Some(start + length);
        }
    }
}

/// One audio track that exists only in the middle, and one that continues.
#[test]
fn title_with_further_sound_lists_no_segment_without_samples() {
    const TWO: &[&str] = &["-map", "0:v", "-map", "1:a", "-map", "1:a", "-tables_version", "1"];
    let all = [recording(AAC, &[]), recording(AAC, TWO), recording(AAC, &["-tables_version", "2"])];
    let film = joined(&all, 0);
    let (_web, address, _) = serve(&film.site, WebLimits::default());
    let mut client = Client::to(address);
    let list = tracks(&mut client, "film");
    assert_eq!(list.len(), 3, "{list:?}");
    let further = parts(&mut client, &list[2], film.dir.path());
    assert!(
        all_sums(&further, "0:a", AS_IT_IS) == sums(film.sources[1].to_str().unwrap(), "0:a:1", WITHOUT_ADTS)
    );
    let through = parts(&mut client, &list[1], film.dir.path());
    let expected = all_sums(&film.sources, "0:a:0", WITHOUT_ADTS);
    assert!(all_sums(&through, "0:a", AS_IT_IS) == expected);
    let discontinuities =
        list.iter().map(|path| client.get(path).text().matches("#EXT-X-DISCONTINUITY\n").count());
    assert_eq!(discontinuities.collect::<Vec<_>>(), [2, 2, 2], "all tracks count alike");
    let length = |path: &String, client: &mut Client| -> f64 {
        let text = client.get(path).text().to_owned();
        let lengths = text.lines().filter_map(|line| line.strip_prefix("#EXTINF:"));
        lengths.map(|length| length.trim_end_matches(',').parse::<f64>().unwrap()).sum()
    };
    let (pictures, sound) = (length(&list[0], &mut client), length(&list[2], &mut client));
    // The time before the track is counted, the time after it is not.
    assert!((pictures - sound - f64::from(SECONDS)).abs() < 0.2, "{pictures} {sound}");
}

/// A recording cut at any point, or with late tables: audio and video stay in sync.
#[test]
fn recording_that_begins_in_mid_stream_keeps_its_times() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.ts");
    make(&whole, &recording(AAC, &["-muxdelay", "0.3"]), 0);
    let bytes = std::fs::read(&whole).unwrap();
    let packets = bytes.len() / 188;
    let is_table = |packet: &[u8]| [0, 17, 0x1000].contains(&pid_of(packet));
    let late: Vec<u8> = bytes
        .chunks_exact(188)
        .enumerate()
        .filter(|(at, packet)| *at > packets / 5 || !is_table(packet))
        .flat_map(|(_, packet)| packet.to_vec())
        .collect();
    for (name, bytes) in [("cut", &bytes[packets / 7 * 188..]), ("late", &late[..])] {
        let path = dir.path().join(name).with_extension("ts");
        std::fs::write(&path, bytes).unwrap();
        let site = MadeUp::with(vec![taken_in(dir.path(), &path)]);
        let (_web, address, _) = serve(&site, WebLimits::default());
        let mut client = Client::to(address);
        let list = tracks(&mut client, name);
        let ours = ["v:0", "a:0"].iter().zip(&list).map(|(stream, path)| {
            let part = parts(&mut client, path, dir.path());
            times(part[0].to_str().unwrap(), stream)
        });
        let [pictures, sound] = &ours.collect::<Vec<_>>()[..] else { panic!() };
        // Compared with the whole recording from the end, because only the beginning is lost.
        let theirs = ["v:0", "a:0"].map(|stream| times(whole.to_str().unwrap(), stream));
        let offset = theirs[0].last().unwrap().1 - pictures.last().unwrap().1;
        for (ours, theirs) in [(pictures, &theirs[0]), (sound, &theirs[1])] {
            assert!(ours.windows(2).all(|pair| pair[0].1 < pair[1].1), "{name}");
            for (ours, theirs) in ours.iter().rev().zip(theirs.iter().rev()) {
                assert!((theirs.0 - ours.0 - offset).abs() < 1e-3, "{name}: {ours:?} {theirs:?} {offset}");
            }
        }
    }
}
