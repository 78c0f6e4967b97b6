//! `millrace add`: films into the store.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant as StdInstant;

use clap::Args;
use millrace_core::ids::TitleId;
use millrace_core::scale::Scale;
use millrace_core::units::ByteLen;
use millrace_make::ingest::{self, IngestOptions};
use millrace_make::ladder::{Ladder, LadderOptions};
use millrace_store::packet_size::PacketSize;
use millrace_store::volume::{SourceMatch, TitleInfo, Volume, is_usable, names_of_file, slug};

use super::NewStoreArgs;
use super::add_remote::{self, Upload};
use super::add_subtitles;
use super::ffmpeg::FfmpegArgs;
use super::ladder;
use super::progress::{IngestBar, describe};
use super::remote::{Remote, RemoteArgs};
use super::trick::USUAL_SPEEDS;

/// Add films to the store: index them and build their packet metadata so that they are ready to serve
///
/// MPEG-TS files are stored unchanged; MP4, MOV, MKV and others are remuxed by the ffmpeg program without changing
/// video or audio. What MPEG-TS cannot carry is transcoded, and a note lists it.
///
/// A file whose content is in the store already is not added again. If another film has its name, it gets the name of its folder before it, or a
/// number; see --replace and --if-absent.
///
/// With --server, the files are uploaded to a running server, which converts them like its own. An
/// upload whose connection breaks continues by itself; an interrupted one continues if the same
/// command is given again within ten minutes and the file still begins with the data sent.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace add film.ts\n  millrace add --name lobby-loop lobby.mp4\n  millrace add --replace news.ts\n  \
                        millrace add --trick film.ts\n  millrace add --trick=2,8,-8 film.ts\n  \
                        millrace add film.mkv --ladder\n  millrace add --ladder 1080p:6M,720p:3M,480p:1.2M film.mkv\n  \
                        millrace add --subtitles film film.de.srt en.forced=signs.ass\n  \
                        millrace add --join my-film=1080p 720p=my-film-720.ts\n  \
                        millrace add *.mkv --json | jq .name\n  \
                        millrace add film.ts --server http://olga:PASSWORD@tv.example:8080/\n\n\
                        Exit code: 0 every file was added; 1 some were not, or a speed was not built, or the store cannot be used; 2 the command line is invalid"
)]
pub(super) struct AddArgs {
    /// Films to add
    #[arg(required = true, value_name = "FILE|LABEL=FILE")]
    files: Vec<PathBuf>,
    /// Name of the title in URLs [default: made from the file name]
    #[arg(long, value_parser = title_name)]
    name: Option<String>,
    /// Display name: what people see [default: NAME of --name, the title in the file's tags, or the file name]
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["join", "server"])]
    title: Option<String>,
    /// Replace the title with this name, or the title made from the same path: name and rights
    /// stay, viewers of the old one see it to its end
    #[arg(long, conflicts_with_all = ["if_absent", "ladder", "join", "server"])]
    replace: bool,
    /// Do nothing if a title with this name already exists
    #[arg(long, conflicts_with_all = ["join", "server"])]
    if_absent: bool,
    /// With --server: upload from the beginning, and discard the server's part of an interrupted
    /// upload with this name
    #[arg(long, requires = "server")]
    restart: bool,
    /// Also build metadata files for these packet sizes: bytes (multiples of 188), or 1k, 2k, 4k, 8k. 1316 is always built;
    /// other sizes can be served without a file of their own, at a higher cost
    #[arg(long, alias = "packet-size", value_name = "LIST", value_delimiter = ',')]
    packet_sizes: Vec<PacketSize>,
    /// Also build fast forward, rewind or slow motion: speeds from 0.25 to 32, or their negatives for backwards
    /// [default: 4,16,-4,-16]. See: millrace trick --help
    #[arg(long, value_name = "LIST", value_delimiter = ',', num_args = 0..=1, require_equals = true,
          default_missing_value = USUAL_SPEEDS)]
    trick: Vec<Scale>,
    /// Encode the film again as renditions that viewers can switch between without a gap:
    /// LABEL:RATE, the best first. A label begins with the picture height, and is the name of the
    /// rendition; a rate is the maximum of the whole rendition in any second. The best rendition is
    /// the title. All appear together; after an interruption, the same command continues after the
    /// part already encoded [default: 2160p:16M,1080p:6M,720p:3M,480p:1.2M,240p:500k, except those
    /// larger than the film]
    #[arg(long, value_name = "LIST", num_args = 0..=1, default_missing_value = ladder::USUAL, value_parser = ladder::parse)]
    ladder: Option<Ladder>,
    /// Add MPEG-TS files as renditions of this title: LABEL=FILE each, checked to have the same clock, counters, sound and pictures at the same access
    /// points. What does not fit is listed. A title without renditions gets its own label here too: TITLE=LABEL
    #[arg(long, value_name = "TITLE[=LABEL]", conflicts_with_all = ["ladder", "trick", "name"])]
    join: Option<String>,
    /// Add subtitles to this title: FILE each, SubRip, ASS/SSA or WebVTT, in place of those of the
    /// same language and kind. The file name determines both (film.de.srt, film.en.forced.srt,
    /// film.pt-BR.sdh.vtt), or LABEL=FILE does (de, en.forced, pt-BR.sdh). To remove them: millrace
    /// rm --subtitles
    #[arg(long, value_name = "TITLE", conflicts_with_all = ["ladder", "trick", "name", "join", "packet_sizes", "restart"])]
    subtitles: Option<String>,
    /// With --ladder: preset of the encoder x264, from ultrafast to veryslow: how much time it takes for better pictures
    #[arg(long, value_name = "NAME", default_value = "veryfast", requires = "ladder")]
    preset: String,
    #[command(flatten)]
    ffmpeg: FfmpegArgs,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    /// One JSON document per title on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: NewStoreArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Checks a name chosen by the user. Titles whose files have no usable name are called film; a
/// chosen name must be used as it is.
fn title_name(text: &str) -> Result<String, String> {
    match is_usable(text) {
        true => Ok(text.to_owned()),
        false => Err("a name needs a letter or a digit (a to z, 0 to 9; accents are allowed)".to_owned()),
    }
}

/// To a running server.
fn run_remote(args: &AddArgs, remote: &Remote) -> anyhow::Result<ExitCode> {
    let is_changed = args.ladder.is_some() || args.join.is_some() || !args.trick.is_empty();
    if is_changed || !args.packet_sizes.is_empty() || args.store.parity.is_some() {
        return Err(super::usage(anyhow::anyhow!(
            "--server: uploads files as they are; --packet-sizes, --trick, --ladder, --join and --parity are for a store"
        )));
    }
    let cancel = super::cancel_on_signals()?;
    let AddArgs { files, restart, quiet, json, .. } = args;
    let (name, restart, quiet, json) = (args.name.as_deref(), *restart, *quiet, *json);
    add_remote::run(&Upload { files, name, restart, quiet, json, cancel: &cancel }, remote)
}

/// Adds every file; one that fails does not stop the others. A store is made only if there is a file for it.
pub(super) fn run(args: &AddArgs) -> anyhow::Result<ExitCode> {
    if args.name.is_some() && args.files.len() > 1 {
        return Err(super::usage(anyhow::anyhow!("--name: give it with one FILE only")));
    }
    let remote = args.remote.named_or_store(&args.store.old)?;
    if let Some(title) = &args.subtitles {
        let to = add_subtitles::To { title, files: &args.files, quiet: args.quiet, json: args.json };
        return match &remote {
            Some(remote) => add_subtitles::to_server(&to, remote),
            None => add_subtitles::to_store(&to, &args.store.open_or_create()?),
        };
    }
    if let Some(remote) = &remote {
        return run_remote(args, remote);
    }
    const ALWAYS: u16 = millrace_core::limits::DEFAULT_PACKET_BYTES as u16;
    let others = args.packet_sizes.iter().map(|size| size.0).filter(|&size| size != ALWAYS);
    let packet_sizes = std::iter::once(ALWAYS).chain(others).collect();
    let options = IngestOptions {
        name: args.name.clone(),
        title: args.title.clone().or_else(|| args.name.clone()),
        packet_sizes,
        ..args.ffmpeg.ingest_options(&super::cancel_on_signals()?)
    };
    if let Some(title) = &args.join {
        return ladder::join(
            &args.store.open_or_create()?,
            title,
            &args.files,
            &options,
            args.quiet,
            args.json,
        );
    }
    let mut failed = 0;
    let mut complain = |error: anyhow::Error| {
        failed += 1;
        super::complain(&error);
    };
    let check = |file: &&PathBuf| ingest::check_file(file).map_err(|error| complain(error.into())).is_ok();
    let files: Vec<_> = args.files.iter().filter(check).collect();
    if files.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let volume = args.store.open_or_create()?;
    let mut not_built = 0;
    for file in files {
        if options.cancel.load(Ordering::Relaxed) {
            anyhow::bail!("interrupted; titles already added are kept, nothing incomplete is left");
        }
        match add_one(&volume, file, &options, args) {
            Ok(titles) => {
                if args.json {
                    titles.iter().try_for_each(super::print_json)?;
                }
                let Some(title) = titles.into_iter().next() else { continue };
                if !args.trick.is_empty() {
                    let quiet = args.quiet || args.json;
                    not_built += super::trick::build(&volume, &title, &args.trick, &options.cancel, quiet);
                }
            }
            Err(error) => complain(error),
        }
    }
    Ok(if failed + not_built == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Result of looking a file up in the store before it is added.
enum StoreLookup {
    /// This title exists already; nothing is added.
    Title(Box<TitleInfo>),
    /// The file becomes a new title, which replaces this one if there is one.
    Replaces(Option<TitleId>),
}

/// Looks a file up in the store by its content and its name; the options decide which match counts.
fn already_there(
    volume: &Volume,
    file: &Path,
    options: &IngestOptions,
    args: &AddArgs,
) -> anyhow::Result<StoreLookup> {
    let read = |error| anyhow::Error::new(error).context(format!("{}: cannot read", file.display()));
    let wish = match &args.name {
        Some(name) => name.clone(),
        None => names_of_file(&std::path::absolute(file).map_err(read)?, None).name,
    };
    let of_name = volume.find(&slug(&wish))?.filter(|title| title.derived.is_none());
    if let Some(title) = of_name.as_ref().filter(|_| args.if_absent) {
        return Ok(StoreLookup::Title(Box::new(title.clone())));
    }
    let identity = ingest::identify(file).map_err(read)?;
    let mut hash = || ingest::blake3_of_file(file, &options.cancel);
    let sources = volume.sources_near(&identity)?;
    let (same, changed) = match sources.look_up(&identity, &mut hash).map_err(read)? {
        SourceMatch::New => (None, None),
        SourceMatch::Changed(known) => (None, Some(known.id)),
        SourceMatch::Same(known) | SourceMatch::Touched(known, _) | SourceMatch::Elsewhere(known, _) => {
            (Some(known.id), None)
        }
    };
    // A different --name requests another title, and --ladder requests a new encoding.
    let is_wanted = |title: &TitleInfo| {
        args.ladder.is_none() && args.name.as_ref().is_none_or(|name| slug(name) == title.name)
    };
    if let Some(id) = same
        && let Some(title) = volume.find(&id.to_string())?.filter(is_wanted)
    {
        return Ok(StoreLookup::Title(Box::new(title)));
    }
    let replaced = of_name.map(|title| title.id).or(changed.filter(|_| args.name.is_none()));
    Ok(StoreLookup::Replaces(replaced.filter(|_| args.replace)))
}

/// The title; with renditions, those behind it.
fn add_one(
    volume: &Volume,
    file: &Path,
    options: &IngestOptions,
    args: &AddArgs,
) -> anyhow::Result<Vec<TitleInfo>> {
    let options = &match already_there(volume, file, options, args)? {
        StoreLookup::Title(title) => {
            if !args.quiet && !args.json {
                println!("already there: {}", describe(&title));
            }
            return Ok(vec![*title]);
        }
        StoreLookup::Replaces(replaces) => IngestOptions { replaces, ..options.clone() },
    };
    if let Some(wanted) = &args.ladder {
        let preset = args.preset.clone();
        let options = LadderOptions { preset, ..LadderOptions::new(options.clone(), wanted.clone()) };
        return ladder::add(volume, file, &options, args.quiet || args.json);
    }
    let start = StdInstant::now();
    let shown = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    let bar = IngestBar::new(&shown, args.quiet || args.json);
    let result = ingest::ingest(volume, file, options, &mut |progress| bar.show(progress));
    bar.finish();
    let title = result?;
    if !args.quiet && !args.json {
        let secs = start.elapsed().as_secs_f64();
        let rate = ByteLen((title.bytes as f64 / secs.max(1e-6)) as u64);
        println!("added {}  in {secs:.1}s ({rate}/s)", describe(&title));
        title.notes.iter().for_each(|note| println!("  note: {note}"));
    }
    Ok(vec![title])
}
