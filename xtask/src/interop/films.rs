//! The films that are played.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::Lab;
use super::frames::{Frames, difference};
use super::process::ProgramSpec;
use super::subtitles;
use crate::workspace;

/// Pictures a second of a film, unless stated otherwise.
pub(super) const FRAMES_PER_SECOND: usize = 25;
/// Seconds from one access point to the next.
pub(super) const GROUP_SECONDS: usize = 2;

/// A film, its frames, and the title that the store made of it.
pub(crate) struct TestMedia {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
    /// Pictures a second.
    pub(super) rate: usize,
    /// It came as a transport stream and is stored as it came.
    pub(super) is_stream: bool,
    /// It is two recordings, one behind the other.
    pub(super) is_joined: bool,
    /// Checksum of every decoded picture of the file, in order.
    pub(super) pictures: Vec<String>,
    /// The same of every decoded block of sound.
    pub(super) sounds: Vec<String>,
    pub(super) stored: Option<StoredTitle>,
    /// Its pictures at the lower bit rate, if it is available at two.
    pub(super) lower: Vec<String>,
}

/// A title of the store.
pub(super) struct StoredTitle {
    /// The last part of its URL.
    pub(super) title: String,
    /// The data file.
    pub(super) data: PathBuf,
    pub(super) bytes: u64,
    /// Checksum of every decoded block of sound, in order.
    pub(super) sounds: Vec<String>,
}

impl TestMedia {
    pub(super) fn stored(&self) -> Result<&StoredTitle, String> {
        self.stored.as_ref().ok_or_else(|| format!("the store has no title '{}'", self.name))
    }
}

/// How to make a film.
struct Recipe {
    name: &'static str,
    extension: &'static str,
    seconds: f64,
    size: &'static str,
    /// Pictures a second.
    rate: usize,
    /// Filter behind the test picture.
    filter: &'static str,
    /// Video encoder and stream selection arguments.
    video: &'static str,
    /// Samples a second of the tones.
    samples: usize,
    /// Sound encoder arguments.
    sound: &'static str,
    /// Container arguments.
    container: &'static str,
    /// Made only if a chosen check plays it.
    on_demand: bool,
}

/// What most films have in common: noise in the pictures, so that the bit rate is real and no two of them are equal.
const USUAL: Recipe = Recipe {
    name: "",
    extension: "ts",
    seconds: 12.0,
    size: "640x360",
    rate: FRAMES_PER_SECOND,
    filter: ",noise=alls=10:allf=t",
    video: "",
    samples: 48_000,
    sound: "-c:a aac -b:a 128k -ac 2",
    container: "-f mpegts",
    on_demand: false,
};

const RECIPES: &[Recipe] = &[
    Recipe {
        name: "cbr",
        video: "-b:v 1500k -minrate 1500k -maxrate 1500k -bufsize 1500k -x264-params nal-hrd=cbr:force-cfr=1 -bf 0",
        container: "-f mpegts -muxrate 2000k -pcr_period 20 -pat_period 0.1",
        ..USUAL
    },
    Recipe {
        name: "vbr",
        extension: "mp4",
        video: "-crf 26 -bf 0",
        container: "-movflags +faststart",
        ..USUAL
    },
    Recipe {
        name: "bframes",
        extension: "mkv",
        video: "-crf 28 -bf 3 -b_strategy 0 -x264-params b-pyramid=normal",
        container: "",
        ..USUAL
    },
    Recipe {
        name: "big",
        seconds: 60.0,
        size: "1280x720",
        video: "-b:v 3800k -minrate 3800k -maxrate 3800k -bufsize 3800k -x264-params nal-hrd=cbr:force-cfr=1 -bf 0",
        container: "-f mpegts -muxrate 4500k -pcr_period 20 -pat_period 0.1",
        on_demand: true,
        ..USUAL
    },
    with_odd_times("from-zero", ONE_PROGRAM, "-f mpegts -muxdelay 0 -muxpreload 0"),
    // As a recording of a broadcast that has been on the air for a while.
    with_odd_times("from-5000s", ONE_PROGRAM, "-f mpegts -output_ts_offset 5000"),
    // After 3.3 s: 33 bits at 90 kHz last 95,443.7 s, and the first picture is 1.4 s behind the offset.
    with_odd_times("wraps", ONE_PROGRAM, "-f mpegts -output_ts_offset 95439"),
    with_odd_times(
        "two-programs",
        "-map 0:v -map 1:a -map 0:v -map 1:a",
        "-program program_num=1:st=0:st=1 -program program_num=2:st=2:st=3 -f mpegts",
    ),
    with_odd_times(
        TWO_SOUNDS,
        "-map 0:v -map 1:a -map 1:a -metadata:s:a:0 language=eng -metadata:s:a:1 language=deu",
        "-f mpegts",
    ),
    with_odd_times(AC3_BESIDE_AAC, "-map 0:v -map 1:a -map 1:a", "-c:a:1 ac3 -f mpegts"),
    with_odd_times(AC3_ALONE, ONE_PROGRAM, "-c:a ac3 -f mpegts"),
    // 13 pictures.
    Recipe { seconds: 0.52, extension: "mp4", ..with_odd_times("half-second", ONE_PROGRAM, "") },
    // A film whose time stamps, read as positions, lie within it. Small pictures without noise, five a second: it is cheap to make.
    Recipe {
        name: TWO_HOURS,
        seconds: 7200.0,
        size: "160x90",
        rate: 5,
        filter: "",
        video: "-preset ultrafast -x264-params cabac=1 -crf 30 -bf 0",
        samples: 16_000,
        sound: "-c:a mp2 -b:a 32k -ac 1",
        container: "-f mpegts -pat_period 1 -output_ts_offset 1800",
        on_demand: true,
        ..USUAL
    },
];

pub(super) const TWO_HOURS: &str = "two-hours";
/// A film with sound in English, and in German, and subtitles.
pub(super) const TWO_SOUNDS: &str = "two-sounds";

/// Films with audio that browsers lack.
pub(super) const AC3_BESIDE_AAC: &str = "ac3-beside-aac";
pub(super) const AC3_ALONE: &str = "ac3-alone";

const ONE_PROGRAM: &str = "-map 0:v -map 1:a";

/// A transport stream as FFmpeg writes it by itself, but for the `container` arguments.
const fn with_odd_times(name: &'static str, streams: &'static str, container: &'static str) -> Recipe {
    Recipe { name, seconds: 9.0, size: "320x180", video: streams, container, on_demand: true, ..USUAL }
}

/// A recording that begins at 5,000 s, and behind it another one that begins at 100 s.
pub(super) const JOINED: &str = "joined";
/// Two recordings that both begin as FFmpeg's files do.
pub(super) const JOINED_ALIKE: &str = "joined-alike";
/// Two recordings with subtitles.
pub(super) const SUBTITLED: &str = "subtitled";
/// Length of each part.
pub(super) const PART_SECONDS: f64 = 8.0;
/// The joined films, and how the time stamps of their parts begin.
const JOINS: [(&str, [&str; 2]); 3] = [
    (JOINED, ["-f mpegts -output_ts_offset 5000", "-f mpegts -output_ts_offset 100"]),
    (JOINED_ALIKE, ["-f mpegts"; 2]),
    (SUBTITLED, ["-f mpegts", "-f mpegts -output_ts_offset 5000"]),
];

/// A film at two bit rates, with pictures of two sizes.
pub(super) const RUNGS: &str = "rungs";
const LADDER: &str = "360p:1800k,180p:600k";
const BEST: &str = "360p";
/// Draws one bit of a picture's number.
macro_rules! bit {
    ($x:literal, $period:literal, $half:literal) => {
        concat!(
            ",drawbox=x=",
            $x,
            ":y=300:w=64:h=60:t=fill:color=white:enable='gte(mod(n\\,",
            $period,
            ")\\,",
            $half,
            ")'"
        )
    };
}

/// The usual noise, and below it the number of the picture, its lowest bit on the left: a browser shows pictures, no checksums of them.
const NUMBERED: &str = concat!(
    ",noise=alls=10:allf=t,drawbox=x=0:y=300:w=640:h=60:t=fill:color=black",
    bit!(0, 2, 1),
    bit!(64, 4, 2),
    bit!(128, 8, 4),
    bit!(192, 16, 8),
    bit!(256, 32, 16),
    bit!(320, 64, 32),
    bit!(384, 128, 64),
    bit!(448, 256, 128),
    bit!(512, 512, 256),
    bit!(576, 1024, 512),
);
/// Name of the lower one.
pub(super) const LOWER: &str = "180p";
const RUNGS_SECONDS: f64 = 16.0;
/// The same, as files that were joined, with clock and time stamps that wrap within the first picture behind 8 s: it is sent before
/// the wrap and shown behind it.
pub(super) const WRAPPING_RUNGS: &str = "wrapping-ladder";
/// 33 bits at 90 kHz last 95,443.72 s; a ladder's clock begins at 1 s, and its pictures are shown 0.48 s behind it.
const TO_8_SECONDS: &str = "later=restamp:offset=95434500ms";
/// A film that is available at four times the speed, with time stamps that wrap after 9 s.
pub(super) const WRAPPING_FAST: &str = "wrapping-fast";
const FAST_RECIPE: Recipe = Recipe {
    seconds: 16.0,
    ..with_odd_times(WRAPPING_FAST, ONE_PROGRAM, "-f mpegts -output_ts_offset 95433.3")
};

/// The titles of `make demo`, and the extensions of their files.
const DEMO_FILMS: [(&str, &str); 2] = [(DEMO_CBR, "ts"), (DEMO_VBR, "mp4")];
pub(super) const DEMO_CBR: &str = "test-card-cbr";
pub(super) const DEMO_VBR: &str = "test-card-vbr";
const DEMO_SECONDS: f64 = 12.0;

/// Makes the films in `dir/films` and decodes each once; those that few checks play, and those of the demo, only if they are wanted.
pub(super) fn make(lab: &Lab, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<TestMedia>, String> {
    let dir = lab.dir.as_path();
    let folder = dir.join("films");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{} cannot be made: {e}", folder.display()))?;
    let recipes = RECIPES.iter().filter(|r| !r.on_demand || is_wanted(r.name));
    let mut films: Vec<TestMedia> =
        recipes.map(|recipe| cook(recipe, &folder, dir)).collect::<Result<_, String>>()?;
    for (name, parts) in JOINS.into_iter().filter(|(name, _)| is_wanted(name)) {
        films.push(make_joined(name, parts, &folder, dir)?);
    }
    if DEMO_FILMS.iter().any(|(name, _)| is_wanted(name)) {
        films.extend(make_demo(&folder, dir)?);
    }
    if is_wanted(RUNGS) || is_wanted(WRAPPING_RUNGS) {
        let ladder = make_ladder(lab)?;
        if is_wanted(WRAPPING_RUNGS) {
            films.push(make_wrapping_ladder(lab, &ladder)?);
        }
        films.push(ladder);
    }
    if is_wanted(WRAPPING_FAST) {
        films.push(make_fast(lab)?);
    }
    Ok(films)
}

/// Runs the program on its store.
fn millrace(lab: &Lab, command: &str, file: &Path, log: &Path) -> Result<(), String> {
    let program = ProgramSpec::new(&lab.millrace).args(command).arg("--store").arg(lab.store()).arg(file);
    program.run(log, 120.0)?.ok(&format!("millrace {command}"))
}

/// Creates a folder for the parts of a film.
fn parts_of(lab: &Lab, name: &str) -> Result<PathBuf, String> {
    let parts = lab.dir.join(format!("parts-of-{name}"));
    std::fs::create_dir_all(&parts).map_err(|e| format!("{} cannot be made: {e}", parts.display()))?;
    Ok(parts)
}

/// Returns the path of the stored data of a title.
fn data_of(lab: &Lab, titles: &serde_json::Value, name: &str) -> Result<PathBuf, String> {
    let id = title_id(titles, name).ok_or_else(|| format!("millrace ls --all shows no title '{name}'"))?;
    Ok(lab.store().join("titles").join(id).join("data.ts"))
}

/// A film that wraps, and what shows it faster.
fn make_fast(lab: &Lab) -> Result<TestMedia, String> {
    let parts = parts_of(lab, WRAPPING_FAST)?;
    let film = cook(&FAST_RECIPE, &parts, &parts)?;
    let file = parts.join(format!("{WRAPPING_FAST}.ts"));
    check_wraps(&file)?;
    millrace(lab, &format!("add --quiet --trick=4 --name {WRAPPING_FAST}"), &file, &parts.join("add"))?;
    Ok(TestMedia { is_stream: false, ..film })
}

/// The renditions of a ladder once more: as files whose time stamps wrap, added one by one. They show the same.
fn make_wrapping_ladder(lab: &Lab, ladder: &TestMedia) -> Result<TestMedia, String> {
    let parts = parts_of(lab, WRAPPING_RUNGS)?;
    let titles = listing(lab, &["--all"])?;
    let later = |name: &str| {
        let (from, to) = (data_of(lab, &titles, name)?, parts.join(format!("{name}.ts")));
        let command = format!("transform --quiet -o {} {} {TO_8_SECONDS}", to.display(), from.display());
        ProgramSpec::new(&lab.millrace)
            .args(&command)
            .run(&parts.join(format!("{name}-log")), 60.0)?
            .ok(&command)?;
        check_wraps(&to)?;
        Ok::<_, String>(to)
    };
    let (best, lower) = (later(RUNGS)?, later(&format!("{RUNGS}@{LOWER}"))?);
    millrace(lab, &format!("add --quiet --name {WRAPPING_RUNGS}"), &best, &parts.join("add"))?;
    let lower = PathBuf::from(format!("{LOWER}={}", lower.display()));
    millrace(lab, &format!("add --quiet --join {WRAPPING_RUNGS}={BEST}"), &lower, &parts.join("join"))?;
    Ok(TestMedia {
        name: WRAPPING_RUNGS,
        pictures: ladder.pictures.clone(),
        sounds: ladder.sounds.clone(),
        lower: ladder.lower.clone(),
        stored: None,
        ..*ladder
    })
}

/// A film that does not do what its check is for proves nothing.
fn check_wraps(file: &Path) -> Result<(), String> {
    let clocks: Vec<u64> = clocks(&read(file)?).collect();
    let back = clocks.windows(2).filter(|pair| pair[1] < pair[0]).count();
    if back == 1 {
        Ok(())
    } else {
        Err(format!("the clock of {} wraps {back} times, not once", file.display()))
    }
}

/// The bases of all clock references in a transport stream.
fn clocks(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let packets = bytes.as_chunks::<188>().0.iter();
    let with_clock = packets.filter(|packet| packet[3] & 0x20 != 0 && packet[4] > 0 && packet[5] & 0x10 != 0);
    with_clock.map(|packet| {
        let [a, b, c, d, e] = [6, 7, 8, 9, 10].map(|at| u64::from(packet[at]));
        a << 25 | b << 17 | c << 9 | d << 1 | e >> 7
    })
}

/// The same film with chapters at 0, 5 and 11 s.
fn with_chapters(film: &Path, parts: &Path) -> Result<PathBuf, String> {
    let (list, out) = (parts.join("chapters.txt"), film.with_extension("chapters.mp4"));
    let chapter = |start: u32, end: u32, name: &str| {
        format!("[CHAPTER]\nTIMEBASE=1/1\nSTART={start}\nEND={end}\ntitle={name}\n")
    };
    let all = [chapter(0, 5, "Opening"), chapter(5, 11, "A second"), chapter(11, 16, "The end")];
    std::fs::write(&list, format!(";FFMETADATA1\n{}", all.concat()))
        .map_err(|e| format!("{}: {e}", list.display()))?;
    let program = ProgramSpec::new("ffmpeg").args("-v error -nostdin -y -i").arg(film).arg("-i").arg(&list);
    let program = program.args("-map 0 -map_chapters 1 -c copy").arg(&out);
    program.run(&parts.join("chapters"), 30.0)?.ok("ffmpeg, with chapters")?;
    Ok(out)
}

/// A title with a rendition, made by the program in its store; both show its frames.
fn make_ladder(lab: &Lab) -> Result<TestMedia, String> {
    let parts = parts_of(lab, RUNGS)?;
    let recipe =
        Recipe { name: RUNGS, extension: "mp4", seconds: RUNGS_SECONDS, video: "-crf 20 -bf 0", ..USUAL };
    let recipe = Recipe { filter: NUMBERED, ..recipe };
    let recipe = Recipe { container: "-movflags +faststart", ..recipe };
    let file = with_chapters(&encode(&recipe, &parts, &parts)?, &parts)?;
    millrace(lab, &format!("add --quiet --ladder {LADDER} --name {RUNGS}"), &file, &parts.join("add"))?;
    let titles = listing(lab, &["--all"])?;
    let frames = |name: &str| {
        Frames::of_file(&data_of(lab, &titles, name)?, STREAMS, &parts.join(format!("decode-{name}")))
    };
    let Frames { pictures, sounds } = frames(RUNGS)?;
    let lower = frames(&format!("{RUNGS}@{LOWER}"))?.pictures;
    if lower.len() != pictures.len() || pictures.iter().any(|picture| lower.contains(picture)) {
        return Err(format!(
            "{} and {} pictures, or some equal, at two bit rates",
            pictures.len(),
            lower.len()
        ));
    }
    let film = TestMedia {
        name: RUNGS,
        seconds: RUNGS_SECONDS,
        rate: USUAL.rate,
        is_stream: false,
        is_joined: false,
        pictures,
        sounds,
        stored: None,
        lower,
    };
    distinct(film)
}

/// What `millrace ls --json` prints of the store.
fn listing(lab: &Lab, options: &[&str]) -> Result<serde_json::Value, String> {
    let ls = ProgramSpec::new(&lab.millrace).args("ls --json --store").arg(lab.store());
    let ended = options.iter().fold(ls, |ls, option| ls.arg(option)).run(&lab.dir.join("ls"), 10.0)?;
    ended.ok("millrace ls")?;
    serde_json::from_str(&ended.out).map_err(|e| format!("millrace ls --json printed no JSON: {e}"))
}

/// The films of the demo, shorter, by the demo's own script.
fn make_demo(folder: &Path, logs: &Path) -> Result<Vec<TestMedia>, String> {
    let script = workspace::root().join("scripts/demo.sh");
    let ended = ProgramSpec::new(&script)
        .arg("--films")
        .arg(folder)
        .args(&DEMO_SECONDS.to_string())
        .run(&logs.join("make-demo"), 120.0)?;
    ended.ok("scripts/demo.sh --films")?;
    let film = |(name, extension): (&'static str, &str)| {
        decoded(name, extension, DEMO_SECONDS, FRAMES_PER_SECOND, folder, logs)
    };
    DEMO_FILMS.into_iter().map(film).collect()
}

/// Two recordings in one file, as `cat` joins them. The pictures of the second differ from those of the first.
fn make_joined(
    name: &'static str,
    containers: [&'static str; 2],
    folder: &Path,
    logs: &Path,
) -> Result<TestMedia, String> {
    let parts = logs.join(format!("parts-of-{name}"));
    std::fs::create_dir_all(&parts).map_err(|e| format!("{} cannot be made: {e}", parts.display()))?;
    let mut bytes = Vec::new();
    let mut begins = 0.0;
    let filters = [USUAL.filter, ",noise=alls=14:allf=t"];
    for ((part, container), filter) in ["first", "second"].into_iter().zip(containers).zip(filters) {
        let recipe = with_odd_times(part, ONE_PROGRAM, container);
        let part = read(&encode(&Recipe { seconds: PART_SECONDS, filter, ..recipe }, &parts, &parts)?)?;
        match name == SUBTITLED {
            true => bytes.extend(subtitles::added(&part, begins, PART_SECONDS)?),
            false => bytes.extend(part),
        }
        begins += PART_SECONDS;
    }
    let file = folder.join(format!("{name}.ts"));
    std::fs::write(&file, bytes).map_err(|e| format!("{}: {e}", file.display()))?;
    let film = decoded(name, "ts", 2.0 * PART_SECONDS, FRAMES_PER_SECOND, folder, logs)?;
    distinct(TestMedia { is_joined: true, ..film })
}

/// Makes a film and decodes it.
fn cook(recipe: &Recipe, folder: &Path, logs: &Path) -> Result<TestMedia, String> {
    let file = encode(recipe, folder, logs)?;
    if recipe.name == TWO_SOUNDS {
        let bytes = subtitles::added(&read(&file)?, 0.0, recipe.seconds)?;
        std::fs::write(&file, bytes).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    distinct(decoded(recipe.name, recipe.extension, recipe.seconds, recipe.rate, folder, logs)?)
}

/// A moving test picture and two tones. Closed groups of pictures, as broadcasters use.
fn encode(recipe: &Recipe, folder: &Path, logs: &Path) -> Result<PathBuf, String> {
    let Recipe { name, extension, seconds, size, rate, filter, video, samples, sound, container, .. } =
        recipe;
    let file = folder.join(format!("{name}.{extension}"));
    let group = GROUP_SECONDS * rate;
    let ended = ProgramSpec::new("ffmpeg")
        .args("-v error -nostdin -y -f lavfi -i")
        .arg(format!("testsrc2=s={size}:r={rate}:d={seconds}{filter}"))
        .args("-f lavfi -i")
        .arg(format!(
            "sine=f=440:r={samples}:d={seconds}[l];sine=f=660:r={samples}:d={seconds}[r];[l][r]amerge=inputs=2"
        ))
        .args("-c:v libx264 -preset veryfast -pix_fmt yuv420p -sc_threshold 0 -flags +cgop")
        .args(&format!("-g {group} -keyint_min {group} {video} {sound} -t {seconds} {container}"))
        .arg(&file)
        .run(&logs.join(format!("make-{name}")), 120.0)?;
    ended.ok("ffmpeg, making a film")?;
    Ok(file)
}

/// The film, if its pictures tell where in it they are.
fn distinct(film: TestMedia) -> Result<TestMedia, String> {
    let distinct: HashSet<&String> = film.pictures.iter().collect();
    match film.pictures.len() - distinct.len() {
        0 => Ok(film),
        equal => Err(format!("{equal} pictures of '{}' are equal to others of it", film.name)),
    }
}

/// A film that has been made, with its decoded pictures.
fn decoded(
    name: &'static str,
    extension: &str,
    seconds: f64,
    rate: usize,
    folder: &Path,
    logs: &Path,
) -> Result<TestMedia, String> {
    let file = folder.join(format!("{name}.{extension}"));
    let frames = Frames::of_file(&file, STREAMS, &logs.join(format!("decode-{name}")))?;
    let Frames { pictures, sounds } = frames;
    let expected = (seconds * rate as f64).round() as usize;
    if pictures.len() != expected {
        return Err(format!("{} has {} pictures, not {expected}", file.display(), pictures.len()));
    }
    let is_stream = extension == "ts";
    Ok(TestMedia {
        name,
        seconds,
        rate,
        is_stream,
        is_joined: false,
        pictures,
        sounds,
        stored: None,
        lower: Vec::new(),
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// Asks the program for its stored titles and compares each of them with its film, each once.
pub(super) fn learn_stored(lab: &mut Lab) -> Result<String, String> {
    let store = lab.store();
    let titles = listing(lab, &[])?;
    let mut equal = 0;
    for film in &mut lab.films {
        let id = title_id(&titles, film.name)
            .ok_or_else(|| format!("millrace ls shows no title '{}'", film.name))?;
        let data = store.join("titles").join(id).join("data.ts");
        if film.stored.as_ref().is_some_and(|stored| stored.data == data) {
            equal += film.pictures.len();
            continue;
        }
        let bytes = std::fs::metadata(&data).map_err(|e| format!("{}: {e}", data.display()))?.len();
        let file = lab.dir.join(format!("films/{}.ts", film.name));
        let log = lab.dir.join(format!("decode-stored-{}", film.name));
        let frames = if film.is_stream && read(&file)? == read(&data)? {
            Frames { pictures: film.pictures.clone(), sounds: film.sounds.clone() }
        } else {
            Frames::of_file(&data, STREAMS, &log)?
        };
        if frames.pictures != film.pictures {
            return Err(format!("stored '{}' {}", film.name, difference(&film.pictures, &frames.pictures)));
        }
        equal += frames.pictures.len();
        film.stored = Some(StoredTitle { title: film.name.to_owned(), data, bytes, sounds: frames.sounds });
    }
    Ok(format!("{} titles, {equal} stored pictures equal those of the files", lab.films.len()))
}

/// The identity of a title in the output of `ls --json`.
fn title_id<'a>(listing: &'a serde_json::Value, name: &str) -> Option<&'a str> {
    listing.as_array()?.iter().find(|t| t["name"] == name)?["id"].as_str()
}

/// The streams to decode: of several programs the first, as players choose it.
const STREAMS: &str = "0:v:0 -map 0:a:0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read_from_packets_that_have_one() {
        let mut bytes = vec![0; 4 * 188];
        bytes.chunks_mut(188).for_each(|packet| packet[..6].copy_from_slice(&[0x47, 1, 0, 0x30, 7, 0x10]));
        bytes[6..11].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x80]);
        bytes[188 + 10] = 0x80;
        bytes[2 * 188 + 3] = 0x10; // no adaptation field
        bytes[3 * 188 + 5] = 0; // none with a clock
        assert_eq!(clocks(&bytes).collect::<Vec<_>>(), [(1 << 33) - 1, 1]);
    }

    #[test]
    fn titles_are_found_by_name() {
        let listing = serde_json::json!([{"name": "a", "id": "17"}, {"name": "b", "id": 4}]);
        assert_eq!(title_id(&listing, "a"), Some("17"));
        assert_eq!((title_id(&listing, "b"), title_id(&listing, "c")), (None, None));
    }
}
