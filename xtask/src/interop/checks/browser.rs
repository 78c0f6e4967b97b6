//! Browsers on the page of the server, with real clicks and keys
//! (`scripts/interop/browser/check.mjs`): each picture carries its number, so the picture shown at
//! a time can be compared with the film's picture there.

use std::path::Path;

use super::{Check, CheckOutcome};
use crate::interop::Lab;
use crate::interop::films::{AC3_ALONE, AC3_BESIDE_AAC, RUNGS, SUBTITLED, TWO_SOUNDS};
use crate::interop::process::ProgramSpec;
use crate::interop::server::Server;
use crate::workspace;

const NEEDS: &[&str] = &["node", "setpriv"];

/// Returns the prerequisite that a check lacks, if any.
type Missing = fn() -> Option<String>;

/// Programs, which are packages of Debian too.
const BROWSERS: [(&str, Missing); 2] = [(CHROMIUM, || missing(CHROMIUM)), (FIREFOX, || missing(FIREFOX))];
const CHROMIUM: &str = "chromium";
const FIREFOX: &str = "firefox-esr";

/// The parts with their films, and the browsers used for each in the short form: all parts with
/// both would take too long.
const PARTS: [(&str, &str, &[&str]); 11] = [
    ("page", RUNGS, &[CHROMIUM, FIREFOX]),
    ("sounds", TWO_SOUNDS, &[CHROMIUM, FIREFOX]),
    ("codecs", AC3_BESIDE_AAC, &[CHROMIUM, FIREFOX]),
    ("codecs", AC3_ALONE, &[CHROMIUM]),
    ("subtitles", TWO_SOUNDS, &[CHROMIUM]),
    ("subtitles", SUBTITLED, &[CHROMIUM]),
    ("joined", SUBTITLED, &[CHROMIUM]),
    ("folders", RUNGS, &[CHROMIUM]),
    ("troubles", RUNGS, &[CHROMIUM]),
    ("live", RUNGS, &[CHROMIUM]),
    ("levels", RUNGS, &[]),
];

/// Where `scripts/npm.sh` puts the library that drives them, and the one that the page plays with.
const PLAYWRIGHT: &str = "target/npm/browser/node_modules/playwright-core";
const HLS_JS: &str = "target/npm/hls.js.gz";

/// For a part: the longest plays a film of 16 s twice.
const SECONDS_AT_MOST: f64 = 240.0;

/// The pictures for the documents, and how many colours they need: a hundred kilobytes are enough for one.
const PICTURES: [&str; 2] = ["page.png", "page-narrow.png"];
const FEW_COLOURS: &str = "split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none";

pub(super) fn add(checks: &mut Vec<Check>) {
    for (browser, impossible) in BROWSERS {
        for (part, film, short) in PARTS {
            let name = format!("browser/{browser}/{part}/{film}");
            let log = name.clone();
            let run = move |lab: &Lab, server: &Server| browse(lab, server, (browser, part, film), &log);
            let long = !short.contains(&browser);
            // It decodes and draws as fast as it can: others would be short of a processor beside it.
            checks.push(Check { long, alone: true, impossible, ..Check::new(name, NEEDS, run) });
        }
    }
}

/// Returns the part that is missing of a browser's package or of the packages from the npm
/// registry.
fn missing(browser: &str) -> Option<String> {
    if !workspace::has_program(browser) {
        return Some(format!(
            "{browser} not installed; `make deps` installs it, as does apt-get install {browser}"
        ));
    }
    let root = workspace::root();
    let is_there = |path: &str| std::fs::metadata(root.join(path)).is_ok_and(|meta| meta.len() > 0);
    let lacks = [("playwright-core", PLAYWRIGHT), ("hls.js", HLS_JS)]
        .into_iter()
        .find(|(_, path)| !is_there(path))?;
    Some(format!("there is no {}; scripts/npm.sh page browser brings it, then build again", lacks.0))
}

fn browse(lab: &Lab, server: &Server, (browser, part, film): (&str, &str, &str), log: &str) -> CheckOutcome {
    let root = workspace::root();
    let program = server
        .client("node")
        .arg(root.join("scripts/interop/browser/check.mjs"))
        .arg(root.join(PLAYWRIGHT))
        .arg(browser)
        .arg(server.page()?)
        .arg(lab.film(film)?.name)
        .arg(part);
    let pictures = lab.pictures.as_deref().filter(|_| part == "page" && browser == CHROMIUM);
    let program = pictures.into_iter().fold(program, |program, folder| program.arg(folder));
    let ended = program.run(&server.log(log), SECONDS_AT_MOST)?;
    ended.ok(browser)?;
    for picture in pictures.into_iter().flat_map(|folder| PICTURES.map(|name| folder.join(name))) {
        shrink(&picture, &server.log(&format!("{log}-shrink")))?;
    }
    Ok(ended.out.trim().replace('\n', ", "))
}

/// Leaves a picture few colours.
fn shrink(picture: &Path, log: &Path) -> Result<(), String> {
    let small = picture.with_extension("small.png");
    let program = ProgramSpec::new("ffmpeg").args("-v error -nostdin -y -i").arg(picture);
    program
        .arg("-vf")
        .arg(FEW_COLOURS)
        .arg(&small)
        .run(log, 30.0)?
        .ok("ffmpeg, with a picture of the page")?;
    std::fs::rename(&small, picture).map_err(|e| format!("{}: {e}", picture.display()))
}
