//! Titles as fragmented MP4: whether what players get is the film, picture by picture and frame of sound by frame of sound.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use millrace_web::WebLimits;
use tempfile::TempDir;

use super::client::Client;
use super::hls::{films, run, taken_in};
use super::site::{MadeUp, serve};

/// A title, and its content.
#[derive(Debug)]
struct Made {
    name: &'static str,
    /// Arguments of ffmpeg behind its inputs: a moving picture and two tones.
    args: &'static [&'static str],
    rate: &'static str,
    /// Seconds of pictures and of sound.
    seconds: (&'static str, &'static str),
    codecs: &'static str,
    /// Samples of a frame of each sound.
    sounds: &'static [u64],
}

const MADE: [Made; 4] = [
    // Pictures out of order across access points, two languages, samples of sound that are no whole ticks.
    Made {
        name: "open",
        args: &[
            "-map",
            "0:v",
            "-map",
            "1:a",
            "-map",
            "2:a",
            "-c:v",
            "libx264",
            "-preset",
            "veryfast",
            "-g",
            "50",
            "-bf",
            "3",
            "-x264-params",
            "open-gop=1:b-pyramid=1:keyint=50:scenecut=0",
            "-c:a",
            "aac",
            "-ar:a:0",
            "48000",
            "-ar:a:1",
            "44100",
            "-ac:a:0",
            "2",
            "-ac:a:1",
            "1",
            "-metadata:s:a:0",
            "language=eng",
            "-metadata:s:a:1",
            "language=deu",
        ],
        rate: "25",
        seconds: ("20", "20"),
        codecs: "avc1.64000c,mp4a.40.2",
        sounds: &[1024, 1024],
    },
    Made {
        name: "hevc",
        args: &[
            "-map",
            "0:v",
            "-map",
            "1:a",
            "-c:v",
            "libx265",
            "-preset",
            "ultrafast",
            "-x265-params",
            "log-level=none:keyint=48:min-keyint=48:scenecut=0:bframes=3:open-gop=1",
            "-c:a",
            "ac3",
            "-ac",
            "2",
        ],
        rate: "24",
        seconds: ("15", "15"),
        codecs: "hvc1.1.6.L60.90,ac-3",
        sounds: &[1536],
    },
    // Sound that ends before the pictures do.
    Made {
        name: "ntsc",
        args: &[
            "-map",
            "0:v",
            "-map",
            "1:a",
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-bf",
            "2",
            "-g",
            "60",
            "-sc_threshold",
            "0",
            "-c:a",
            "eac3",
            "-ac",
            "2",
        ],
        rate: "30000/1001",
        seconds: ("13", "11.3"),
        codecs: "avc1.4d400d,ec-3",
        sounds: &[1536],
    },
    // And one that goes on behind them.
    Made {
        name: "fast",
        args: &[
            "-map",
            "0:v",
            "-map",
            "1:a",
            "-c:v",
            "libx264",
            "-preset",
            "superfast",
            "-bf",
            "0",
            "-g",
            "100",
            "-sc_threshold",
            "0",
            "-c:a",
            "aac",
            "-ac",
            "2",
            "-muxdelay",
            "0.2",
            "-pes_payload_size",
            "0",
        ],
        rate: "50",
        seconds: ("12", "13.7"),
        codecs: "avc1.640015,mp4a.40.2",
        sounds: &[1024],
    },
];

pub(super) struct Titles {
    pub(super) site: Arc<MadeUp>,
    dir: TempDir,
}

pub(super) fn titles() -> &'static Titles {
    static TITLES: OnceLock<Titles> = OnceLock::new();
    TITLES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let films = MADE.iter().map(|made| {
            let path = dir.path().join(made.name).with_extension("ts");
            let (pictures, sound) = made.seconds;
            let picture = format!("testsrc2=size=320x180:rate={}:duration={pictures}", made.rate);
            let tones = [440, 660].map(|tone| format!("sine=frequency={tone}:duration={sound}"));
            let mut args = vec!["-nostdin", "-v", "error", "-y"];
            for input in [&picture, &tones[0], &tones[1]] {
                args.extend(["-f", "lavfi", "-i", input]);
            }
            args.extend(made.args);
            args.extend(["-pix_fmt", "yuv420p", path.to_str().unwrap()]);
            run("ffmpeg", &args);
            taken_in(dir.path(), &path)
        });
        Titles { site: MadeUp::with(films.collect()), dir }
    })
}

impl Titles {
    fn path(&self, made: &Made) -> PathBuf {
        self.dir.path().join(made.name).with_extension("ts")
    }
}

/// Checksums of one stream's decoded pictures, or of its packets as they are.
pub(super) fn sums(input: &str, stream: &str, args: &[&str]) -> Vec<String> {
    let mut all = vec!["-nostdin", "-v", "error", "-i", input, "-map", stream];
    all.extend(args);
    all.extend(["-f", "framemd5", "-"]);
    let text = String::from_utf8(run("ffmpeg", &all)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    // Stream, times, duration, length, checksum; side data may follow.
    lines.map(|line| line.split(',').nth(5).unwrap().trim().to_owned()).collect()
}

pub(super) const DECODED: &[&str] = &["-vsync", "passthrough"];
pub(super) const AS_IT_IS: &[&str] = &["-c", "copy"];
pub(super) const WITHOUT_ADTS: &[&str] = &["-c", "copy", "-bsf:a", "aac_adtstoasc"];

/// Presentation and decoding times of one stream's packets, in seconds.
pub(super) fn times(input: &str, stream: &str) -> Vec<(f64, f64)> {
    let args = [
        "-v",
        "error",
        "-select_streams",
        stream,
        "-show_entries",
        "packet=pts_time,dts_time",
        "-of",
        "csv=p=0",
        input,
    ];
    let text = String::from_utf8(run("ffprobe", &args)).unwrap();
    let number = |text: Option<&str>| text.unwrap().trim().parse::<f64>().unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut parts = line.split(',');
            (number(parts.next()), number(parts.next()))
        })
        .collect()
}

#[test]
fn cmaf_contains_all_pictures_and_audio_frames() {
    let titles = titles();
    let (_web, address, _) = serve(&titles.site, WebLimits::default());
    for made in &MADE {
        let url = format!("http://{address}/titles/{}/cmaf.m3u8", made.name);
        let source = titles.path(made);
        let source = source.to_str().unwrap();
        let expected = sums(source, "0:v", DECODED);
        assert!(expected.len() > 200, "{}: {}", made.name, expected.len());
        assert_eq!(sums(&url, "0:v", DECODED), expected, "{}", made.name);
        for sound in 0..made.sounds.len() {
            let stream = format!("0:a:{sound}");
            let source_args = if made.sounds[sound] == 1024 { WITHOUT_ADTS } else { AS_IT_IS };
            let expected = sums(source, &stream, source_args);
            assert!(expected.len() > 300, "{}: {}", made.name, expected.len());
            assert!(sums(&url, &stream, AS_IT_IS) == expected, "{}: sound {sound}", made.name);
        }
        times_are_the_sources(made, &url, source);
    }
}

/// Times differ from the source's by one number only, and run on across the seams.
fn times_are_the_sources(made: &Made, url: &str, source: &str) {
    let streams = ["v:0", "a:0", "a:1"];
    let mut offset = None;
    for stream in &streams[..=made.sounds.len()] {
        let (ours, theirs) = (times(url, stream), times(source, stream));
        assert_eq!(ours.len(), theirs.len(), "{} {stream}", made.name);
        assert!(
            ours.windows(2).all(|pair| pair[0].1 < pair[1].1),
            "{} {stream}: decoding times run back",
            made.name
        );
        let offset = *offset.get_or_insert(theirs[0].0 - ours[0].0);
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            // A sample of sound, a tick of pictures, and what six digits cut off.
            assert!(
                (theirs.0 - ours.0 - offset).abs() < 1e-4,
                "{} {stream} {at}: {ours:?} {theirs:?} {offset}",
                made.name
            );
        }
    }
}

/// The boxes of a file one level down: name and content.
fn boxes(mut bytes: &[u8]) -> Vec<(&str, &[u8])> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        list.push((std::str::from_utf8(&bytes[4..8]).unwrap(), &bytes[8..length]));
        bytes = &bytes[length..];
    }
    list
}

fn child<'a>(bytes: &'a [u8], name: &str) -> &'a [u8] {
    boxes(bytes).into_iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()))
}

/// When a segment begins, how long it is, and how many samples it has; its samples are all of `mdat`.
pub(super) fn measured(segment: &[u8]) -> (u64, u64, u64) {
    let names: Vec<_> = boxes(segment).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["styp", "moof", "mdat"]);
    let traf = child(child(segment, "moof"), "traf");
    let tfdt = child(traf, "tfdt");
    let start = number(tfdt, 4) << 32 | number(tfdt, 8);
    let Some((_, trun)) = boxes(traf).into_iter().find(|(name, _)| *name == "trun") else {
        return (start, 0, 0);
    };
    let samples = trun[12..].chunks_exact(16);
    assert_eq!(samples.len() as u64, number(trun, 4));
    let bytes: u64 = samples.clone().map(|sample| number(sample, 4)).sum();
    assert_eq!(bytes, child(segment, "mdat").len() as u64);
    // The data is behind the boxes, and offsets count from `moof`.
    assert_eq!(number(trun, 8), (child(segment, "moof").len() + 16) as u64);
    assert_eq!(number(&trun[12..], 8), 0x0200_0000, "a segment begins where decoders can start");
    (start, samples.clone().map(|sample| number(sample, 0)).sum(), samples.len() as u64)
}

/// How much later than decoded the first sample of a segment is shown.
fn first_wait(segment: &[u8]) -> u64 {
    number(child(child(child(segment, "moof"), "traf"), "trun"), 24)
}

pub(super) fn resolved(base: &str, uri: &str) -> String {
    let mut parts: Vec<&str> = base.split('/').collect();
    parts.pop();
    for part in uri.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Init segments and media segments of a media playlist: address, listed seconds, whether behind a discontinuity.
pub(super) fn listed(client: &mut Client, path: &str) -> (Vec<String>, Vec<(String, f64, bool)>) {
    let answer = client.get(path);
    assert_eq!(
        (answer.status, answer.header("Content-Type")),
        (200, Some("application/vnd.apple.mpegurl")),
        "{path}"
    );
    assert!(
        answer.text().starts_with("#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n"),
        "{}",
        answer.text()
    );
    let list = m3u8_rs::parse_media_playlist_res(&answer.body).unwrap();
    assert!(list.end_list && list.unknown_tags.is_empty());
    assert!(list.segments.iter().all(|segment| segment.duration.round() as u64 <= list.target_duration));
    let maps = list.segments.iter().filter_map(|segment| segment.map.as_ref());
    let maps = maps.map(|map| resolved(path, &map.uri)).collect();
    let seconds = |segment: &m3u8_rs::MediaSegment| {
        let at = answer.text().find(&format!(",\n{}\n", segment.uri)).unwrap();
        answer.text()[..at].rsplit(':').next().unwrap().parse().unwrap()
    };
    let segments =
        list.segments.iter().map(|s| (resolved(path, &s.uri), seconds(s), s.discontinuity)).collect();
    (maps, segments)
}

#[test]
fn playlists_say_what_segments_have() {
    let titles = titles();
    let (_web, address, _) = serve(&titles.site, WebLimits::default());
    let mut client = Client::to(address);
    for made in &MADE {
        let name = made.name;
        let path = format!("/titles/{name}/cmaf.m3u8");
        let answer = client.get(&path);
        assert_eq!((answer.status, answer.header("Cache-Control")), (200, Some("no-cache")), "{name}");
        let master = m3u8_rs::parse_master_playlist_res(&answer.body).unwrap();
        assert_eq!((master.version, master.independent_segments), (Some(7), true));
        let [variant, stills] = &master.variants[..] else { panic!("{master:?}") };
        assert_eq!(variant.codecs.as_deref(), Some(made.codecs), "{name}");
        let group = match made.codecs.split_once(',') {
            Some((_, "mp4a.40.2")) => "aac",
            Some((_, codec)) => codec,
            None => panic!("{made:?}"),
        };
        assert_eq!((variant.audio.as_deref(), master.alternatives.len()), (Some(group), made.sounds.len()));
        assert!(stills.is_i_frame && stills.resolution == variant.resolution);
        for (at, sound) in master.alternatives.iter().enumerate() {
            assert_eq!((sound.default, sound.autoselect, &sound.group_id[..]), (at == 0, true, group));
            let expected = if (name, at) == ("open", 1) { "1" } else { "2" };
            assert_eq!(
                sound.channels.as_ref().map(|channels| format!("{channels:?}").contains(expected)),
                Some(true)
            );
        }
        if name == "open" {
            let languages: Vec<_> =
                master.alternatives.iter().map(|sound| sound.language.as_deref()).collect();
            assert_eq!(languages, [Some("en"), Some("de")]);
            let names: Vec<_> = master.alternatives.iter().map(|sound| &sound.name[..]).collect();
            assert_eq!(names, ["English", "German"]);
        }
        let sounds = master.alternatives.iter().map(|sound| (sound.uri.as_deref().unwrap(), "audio/mp4"));
        for (uri, content_type) in [(&variant.uri[..], "video/mp4")].into_iter().chain(sounds) {
            let playlist = resolved(&path, uri);
            let (maps, segments) = listed(&mut client, &playlist);
            let [map] = &maps[..] else { panic!("{maps:?}") };
            let init = client.get(map);
            assert_eq!((init.status, init.header("Content-Type")), (200, Some(content_type)));
            let mdhd = child(child(child(child(&init.body, "moov"), "trak"), "mdia"), "mdhd");
            let scale = number(mdhd, 12);
            let (mut next, mut most) = (None, 0);
            for (address, seconds, _) in &segments {
                let answer = client.get(address);
                assert_eq!(
                    (answer.status, answer.header("Content-Type")),
                    (200, Some(content_type)),
                    "{address}"
                );
                assert_eq!(answer.header("Cache-Control"), Some("public, max-age=31536000, immutable"));
                let (start, length, samples) = measured(&answer.body);
                // One without sound, behind the sound's end, begins with its pictures.
                if samples > 0 {
                    assert!(next.is_none_or(|next| next == start), "{address}: {next:?} {start}");
                    next = Some(start + length);
                }
                most = most.max(length / samples.max(1));
                // Within a frame. The first picture of a title is decoded when it is shown, later than
                // its clock indicates: by its time, or by less if sound comes before it. Without
                // reordering no picture waits.
                let frame = most as f64 / scale as f64;
                let moved = match content_type == "video/mp4" && address == &segments[0].0 {
                    true => start.min(first_wait(&client.get(&segments[1].0).body)),
                    false => 0,
                };
                assert!(
                    ((length + moved) as f64 / scale as f64 - seconds).abs() <= frame + 1e-3,
                    "{address}: {length} {seconds}"
                );
                // The same once more, in parts and by another client.
                let part = client.ask("GET", address, "Range: bytes=10-99\r\n");
                assert_eq!((part.status, part.body == answer.body[10..100]), (206, true));
                assert_eq!(
                    client
                        .ask(
                            "GET",
                            address,
                            &format!("If-None-Match: {}\r\n", answer.header("ETag").unwrap())
                        )
                        .status,
                    304
                );
            }
        }
    }
}

/// Browsers play H.265 in this form only, so the usual address returns it; for everything else that
/// address stays as it was.
#[test]
fn index_playlist_selects_cmaf_for_hevc_only() {
    let titles = titles();
    let (_web, address, _) = serve(&titles.site, WebLimits::default());
    let mut client = Client::to(address);
    assert!(client.get("/titles/hevc/index.m3u8").text().contains("\ncmaf/256.m3u8\n"));
    assert!(client.get("/titles/open/index.m3u8").text().contains("\nmedia.m3u8\n"));
}

#[test]
fn stills_are_the_first_pictures_of_segments() {
    let titles = titles();
    let (_web, address, _) = serve(&titles.site, WebLimits::default());
    let mut client = Client::to(address);
    for made in &MADE {
        let path = format!("/titles/{}/cmaf/256/stills.m3u8", made.name);
        let text = client.get(&path).text().to_owned();
        assert!(text.contains("#EXT-X-I-FRAMES-ONLY\n"), "{text}");
        let (maps, stills) = listed(&mut client, &path);
        let (_, segments) = listed(&mut client, &format!("/titles/{}/cmaf/256.m3u8", made.name));
        assert_eq!(stills.len(), segments.len());
        let init = client.get(&maps[0]).body;
        for ((still, ..), (segment, ..)) in stills.iter().zip(&segments) {
            let (still, segment) = (client.get(still).body, client.get(segment).body);
            assert_eq!((measured(&still).0, measured(&still).2), (measured(&segment).0, 1));
            let mdat = child(&still, "mdat");
            assert!(child(&segment, "mdat").starts_with(mdat));
            // It is a whole picture, and one only.
            let file = titles.dir.path().join("still.mp4");
            std::fs::write(&file, [&init[..], &still].concat()).unwrap();
            assert_eq!(sums(file.to_str().unwrap(), "0:v", DECODED).len(), 1);
        }
    }
}

/// Two recordings with clocks that have nothing in common: all of both, one behind the other.
#[test]
fn joined_recordings_follow_each_other() {
    let (_web, address, _) = serve(&films().site, WebLimits::default());
    let mut client = Client::to(address);
    for pid in [256, 257] {
        let (maps, segments) = listed(&mut client, &format!("/titles/joined/cmaf/{pid}.m3u8"));
        assert_eq!(maps.len(), 2);
        assert_eq!(segments.iter().filter(|(_, _, is_discontinuous)| *is_discontinuous).count(), 1);
        let (mut end, mut samples) = (0, 0);
        for (address, ..) in &segments {
            let (start, length, count) = measured(&client.get(address).body);
            assert!(start >= end, "{address}: {start} {end}");
            (end, samples) = (start + length, samples + count);
        }
        let expected = if pid == 256 { 2 * 7 * 25 } else { packets(&films().dir.path().join("joined.ts")) };
        assert_eq!(samples as usize, expected, "{pid}");
        let sum: f64 = segments.iter().map(|(_, seconds, _)| seconds).sum();
        assert!((13.9..14.2).contains(&sum), "{sum}");
    }
}

/// Frames of sound in a file.
fn packets(path: &Path) -> usize {
    let args = [
        "-v",
        "fatal",
        "-select_streams",
        "a",
        "-show_entries",
        "packet=pts",
        "-of",
        "csv=p=0",
        path.to_str().unwrap(),
    ];
    let text = String::from_utf8(run("ffprobe", &args)).unwrap();
    text.lines().filter(|line| !line.is_empty()).count()
}

/// Segments are kept in memory for other viewers, within the budget for responses.
#[test]
fn made_segments_count_in_the_memory_budget() {
    let titles = titles();
    let (_web, address, totals) = serve(&titles.site, WebLimits::default());
    let mut client = Client::to(address);
    let (_, pictures) = listed(&mut client, "/titles/open/cmaf/256.m3u8");
    let mut bytes = 0;
    for (path, ..) in &pictures {
        bytes += client.get(path).body.len() as u64;
        // The segments of all tracks are made together.
        bytes += client.get(&path.replace("/256/", "/257/")).body.len() as u64;
        bytes += client.get(&path.replace("/256/", "/258/")).body.len() as u64;
        let held = totals.read().memory_held_bytes;
        assert!(held >= bytes, "{held} bytes are counted, {bytes} are kept");
    }
    assert!(bytes > 1_000_000, "{bytes}");
    // A budget too small to make one.
    let (_web, address, totals) = serve(&titles.site, WebLimits { memory: 100_000, ..WebLimits::default() });
    let answer = Client::to(address).get(&pictures[0].0);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.header("Retry-After").is_some(), "{answer:?}");
    let counted = totals.read();
    assert!(counted.memory_exhausted > 0 && counted.memory_held_bytes <= 100_000, "{counted:?}");
}

#[test]
fn cmaf_path_that_does_not_exist_returns_404() {
    let titles = titles();
    let (_web, address, _) = serve(&titles.site, WebLimits::default());
    let mut client = Client::to(address);
    let (maps, segments) = listed(&mut client, "/titles/open/cmaf/256.m3u8");
    let (init, segment) = (&maps[0], &segments[0].0);
    let sound = segment.replace("/256/", "/257/");
    assert_eq!(client.get(&sound).status, 200);
    for path in [
        "/titles/nothing/cmaf.m3u8",
        "/titles/open/cmaf/255.m3u8",
        "/titles/open/cmaf/65536.m3u8",
        "/titles/open/cmaf/0256.m3u8",
        "/titles/open/cmaf/257/stills.m3u8",
        &segment.replace("/2.", "/3."),
        &segment.replace("/256/", "/255/"),
        &segment.replace("/0.m4s", "/9999.m4s"),
        &segment.replace("/0.m4s", "/00.m4s"),
        &sound.replace("/0.m4s", "/still-0.m4s"),
        &init.replace("init-0", "init-1"),
        &segment.replace("/open/", "/hevc/"),
    ] {
        let answer = client.get(path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("\"error\""), "{path}");
    }
}
