//! `millrace add --ladder`: a film as renditions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant as StdInstant;

use millrace_core::rendition::{RenditionName, RenditionNameError};
use millrace_core::units::ByteLen;
use millrace_make::ingest::IngestOptions;
use millrace_make::ladder::{self, Joining, Ladder, LadderMade, LadderOptions, LadderProgress};
use millrace_store::volume::{TitleInfo, Volume};

use super::progress::{IngestBar, bar, describe};

/// What stands for no list.
pub(super) const USUAL: &str = "usual";

/// A list, or [`USUAL`].
pub(super) fn parse(text: &str) -> Result<Ladder, String> {
    if text == USUAL {
        return Ok(Ladder::usual());
    }
    text.parse().map_err(|error: ladder::LadderListError| error.to_string())
}

/// Makes a title and its renditions; returns all of them, the best first.
pub(super) fn add(
    volume: &Volume,
    file: &Path,
    options: &LadderOptions,
    quiet: bool,
) -> anyhow::Result<Vec<TitleInfo>> {
    let start = StdInstant::now();
    let shown = super::terminal::name(&file.file_name().unwrap_or(file.as_os_str()).to_string_lossy());
    let bar = bar("{msg} [{bar:30}] {percent:>3} %  {eta} left", quiet);
    let made = ladder::make(volume, file, options, &mut |progress| {
        let LadderProgress { name, is_writing, done, total } = progress;
        let name = name.map_or_else(|| "sound".to_owned(), |name| name.to_string());
        let verb = if *is_writing { "writing" } else { "encoding" };
        bar.set_length((*total).max(1));
        bar.set_position(*done);
        bar.set_message(format!("{verb} {shown} as {name}"));
    });
    bar.finish_and_clear();
    let LadderMade { title, renditions, notes, reused } = made?;
    let all: Vec<TitleInfo> = std::iter::once(title).chain(renditions).collect();
    if !quiet {
        if reused > 0 {
            println!("{shown}: went on with {reused} of {} encodings of an interrupted try", all.len() + 1);
        }
        for title in &all {
            let name = title.rendition_name().map(|name| name.to_string()).unwrap_or_default();
            println!("added {}  as {name}", describe(title));
        }
        notes.iter().for_each(|note| println!("  note: {note}"));
        let bytes = all.iter().map(|title| title.bytes).sum();
        println!("  {} in {:.1}s", ByteLen(bytes), start.elapsed().as_secs_f64());
    }
    Ok(all)
}

/// `add --join`: files that fit become renditions of a title.
pub(super) fn join(
    volume: &Volume,
    title: &str,
    files: &[PathBuf],
    options: &IngestOptions,
    quiet: bool,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (title, own) = match title.split_once('=') {
        Some((title, own)) => {
            (title, Some(own.parse::<RenditionName>().map_err(|error| super::usage(error.into()))?))
        }
        None => (title, None),
    };
    let files: Vec<Joining> = files.iter().map(|file| joining(file)).collect::<anyhow::Result<_>>()?;
    let found = volume.find(title)?;
    let title = found.ok_or_else(|| anyhow::anyhow!("{title}: there is no such title; see: millrace ls"))?;
    let bar = IngestBar::new(&title.name, quiet || json);
    let added = ladder::join(volume, &title, own, &files, options, &mut |progress| bar.show(progress));
    bar.finish();
    for title in &added? {
        if json {
            super::print_json(title)?;
        } else if !quiet {
            println!("added {}", describe(title));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// LABEL=FILE.
fn joining(given: &Path) -> anyhow::Result<Joining> {
    let bytes = given.as_os_str().as_bytes();
    let wrong =
        |why: &str| super::usage(anyhow::anyhow!("{}: {why}; with --join write LABEL=FILE", given.display()));
    let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(|| wrong("it has no label"))?;
    let label = std::str::from_utf8(&bytes[..at]).unwrap_or_default();
    let label = label.parse().map_err(|error: RenditionNameError| wrong(&error.to_string()))?;
    Ok((label, PathBuf::from(OsStr::from_bytes(&bytes[at + 1..]))))
}
