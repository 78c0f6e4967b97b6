//! `millrace add --ladder`: a film as renditions.

use std::path::Path;
use std::time::Instant as StdInstant;

use millrace_core::units::ByteLen;
use millrace_store::ingest::ladder::{self, Ladder, LadderMade, LadderOptions, LadderProgress};
use millrace_store::volume::{TitleInfo, Volume};

use super::progress::{bar, describe};

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
