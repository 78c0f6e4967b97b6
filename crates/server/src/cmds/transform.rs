//! `millrace transform`: what viewers of a transformed title get, in a file.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_core::ids::{RunSerial, StreamId, TitleId};
use millrace_core::limits::transform::MAX_TABLE_LOOK_BYTES;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Clock, Doorbell, Want};
use millrace_core::time::Instant;
use millrace_core::units::Count;
use millrace_offload::clock::MonotonicClock;
use millrace_store::bell::EventBell;
use millrace_store::cache::{Cache, CacheConfig, CacheHandle, ReadyTitle};
use millrace_store::transform::{Derivation, NULL_PACKET, NamedTransform, PacketBlock, Transforms};
use millrace_store::volume::{TitleInfo, Volume};

use super::StoreArgs;
use super::settings::{Faults, of_file};
use crate::limits::EXTRACT_EXTENTS;

/// Write what viewers of a transformed title get into a file
///
/// A title of the store is read and transformed as for viewers of `rtsp://HOST/TITLE?transform=NAME`. Packets that cannot be read are null
/// packets in the file.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace transform my-film german=select:audio=deu,subtitles=none -o german.ts\n  \
                  millrace transform my-film german --config millrace.toml -o - | ffprobe -\n  \
                  millrace transform film.ts later=restamp:offset=1h -o later.ts\n  \
                  millrace transform --list --config millrace.toml\n\n\
                  Exit code: 0 everything was transformed; 1 something could not be read or was left as it is stored; 2 the command line is invalid"
)]
pub(super) struct TransformArgs {
    /// A title's name or id, or a file with a transport stream
    #[arg(value_name = "TITLE|FILE", required_unless_present = "list")]
    title: Option<String>,
    /// A transformation of those defined, or NAME=STEP; see also: docs/ref/transforms.md
    #[arg(value_name = "NAME", required_unless_present = "list")]
    name: Option<String>,
    /// File to write, or - for standard output
    #[arg(long, short, value_name = "FILE", required_unless_present = "list")]
    output: Option<String>,
    /// Define a transformation, as for serve; repeat it for each
    #[arg(long = "transform", value_name = "NAME=STEP", env = "MILLRACE_TRANSFORM", value_delimiter = ';')]
    transforms: Vec<String>,
    /// Configuration file of serve: the transformations that it defines
    #[arg(long, value_name = "FILE", env = "MILLRACE_CONFIG")]
    config: Option<PathBuf>,
    /// List the transformations
    #[arg(long)]
    list: bool,
    /// No progress bar, no summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// The result.
#[derive(Default)]
struct Written {
    bytes: u64,
    /// Packets that could not be read.
    missing: u64,
}

/// Writes the file.
pub(super) fn run(args: &TransformArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_deref().unwrap_or_default();
    let mut texts = Vec::new();
    if name.contains('=') {
        texts.push(name.to_owned());
    } else {
        texts.clone_from(&args.transforms);
        texts.extend(args.config.as_deref().map(of_config).transpose()?.into_iter().flatten());
    }
    let transforms = Transforms::parse(&texts).map_err(|error| super::usage(error.into()))?;
    if args.list {
        transforms.iter().for_each(|named| println!("{}", named.text()));
        return Ok(ExitCode::SUCCESS);
    }
    let name = name.split('=').next().unwrap_or_default();
    let named = transforms.find(name).ok_or_else(|| {
        let known = if texts.is_empty() { "none is defined" } else { "see: millrace transform --list" };
        super::usage(anyhow::anyhow!(
            "{name}: no such transformation ({known}); define it with --transform {name}=STEP"
        ))
    })?;
    let (title, output) =
        (args.title.as_deref().unwrap_or_default(), args.output.as_deref().unwrap_or_default());
    let path = Path::new(title);
    let source = path.is_file().then(|| File::open(path).with_context(|| title.to_owned())).transpose()?;
    let target = if args.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let cancel = super::cancel_on_signals()?;
    let written = match source {
        Some(source) => of_stream(source, path, named, output, &(bar.clone(), cancel)),
        None => {
            let volume = args.store.open()?;
            let info = volume.find(title)?;
            let info =
                info.ok_or_else(|| anyhow::anyhow!("{title}: no such title or file; see: millrace ls"))?;
            let derivation = Derivation::of_title(named, &volume, info.id)
                .with_context(|| format!("transformation {name} of {title}"))?;
            let mut out = open_output(output, None)?;
            of_title(&volume, &info, derivation, &mut out, &(bar.clone(), cancel))
        }
    };
    bar.finish_and_clear();
    Ok(sum_up(args, named, &written?))
}

/// The transformations in a configuration file.
fn of_config(path: &Path) -> anyhow::Result<Vec<String>> {
    let layered = of_file(path).map_err(|faults| {
        let said = match faults {
            Faults::Line(error) => error.to_string(),
            Faults::Below(faults) => faults.join("\n"),
        };
        super::usage(anyhow::anyhow!("{said}"))
    })?;
    let serve = layered.matches.subcommand_matches("serve");
    let texts = serve.and_then(|serve| serve.get_many::<String>("transforms"));
    Ok(texts.into_iter().flatten().cloned().collect())
}

/// Opens the output, which must not be the input.
fn open_output(output: &str, source: Option<&File>) -> anyhow::Result<Box<dyn Write>> {
    if output == "-" {
        return Ok(Box::new(super::terminal::media_stdout()));
    }
    let of = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
    if let Some(source) = source
        && let Ok(there) = File::open(output)
        && of(&there) == of(source)
    {
        return Err(super::usage(anyhow::anyhow!("-o {output}: is the input file; write to another file")));
    }
    Ok(Box::new(BufWriter::new(File::create(output).with_context(|| output.to_owned())?)))
}

type Bounds = (ProgressBar, Arc<AtomicBool>);

fn go_on((bar, cancel): &Bounds, bytes: u64) -> anyhow::Result<()> {
    bar.set_position(bytes);
    anyhow::ensure!(!cancel.load(Ordering::Relaxed), "interrupted; the output is incomplete");
    Ok(())
}

/// A title of a store: by way of a cache, as for viewers.
fn of_title(
    volume: &Volume,
    info: &TitleInfo,
    derivation: Derivation,
    out: &mut dyn Write,
    bounds: &Bounds,
) -> anyhow::Result<Written> {
    bounds.0.set_length(info.bytes);
    let files = volume.open_title(info.id, DEFAULT_PACKET_BYTES)?;
    let extents = files.extents();
    let bell = Arc::new(EventBell::new()?);
    let arena = ExtentArena::new(Box::new(HeapRegion::new(EXTRACT_EXTENTS)));
    let doorbells = vec![Arc::clone(&bell) as Arc<dyn Doorbell>];
    let (cache, mut handles) =
        Cache::start(CacheConfig::default(), arena, Arc::new(MonotonicClock), doorbells)?;
    let handle = handles.first_mut().context("the cache has no handle")?;
    let title = cache.open_ready(ReadyTitle::of_derived(files, derivation))?;
    let stream = StreamId { index: 0, generation: 0 };
    let mut written = Written::default();
    for extent in 0..extents {
        let by = MonotonicClock.now();
        let lease =
            fetch(handle, &bell, Want { stream, run: RunSerial(0), title, extent, place: 0, by, spare: 0 })?;
        write_extent(&lease, out, &mut written)?;
        go_on(bounds, written.bytes)?;
    }
    out.flush()?;
    cache.shutdown();
    Ok(written)
}

fn fetch(handle: &mut CacheHandle, bell: &EventBell, want: Want) -> anyhow::Result<Lease> {
    // Nothing else is asked for, so there is room.
    handle.want(&want);
    loop {
        bell.announce_sleep();
        if let Some(grant) = handle.poll() {
            bell.awake();
            return grant.lease.map_err(|failure| anyhow::anyhow!("extent {}: {failure}", want.extent));
        }
        bell.sleep(None);
    }
}

fn write_extent(lease: &Lease, out: &mut dyn Write, written: &mut Written) -> anyhow::Result<()> {
    let content = lease.content();
    for place in 0..content.packets {
        let payload = lease.wire(place, 1).get(content.layout.header_bytes()..).unwrap_or_default();
        if lease.meta(place).is_missing() {
            written.missing += 1;
            payload
                .chunks(TS_PACKET_BYTES)
                .try_for_each(|packet| out.write_all(&NULL_PACKET[..packet.len()]))?;
        } else {
            out.write_all(payload)?;
        }
        written.bytes += payload.len() as u64;
    }
    Ok(())
}

/// A file that is not in a store: the same blocks.
fn of_stream(
    mut source: File,
    path: &Path,
    named: &Arc<NamedTransform>,
    output: &str,
    bounds: &Bounds,
) -> anyhow::Result<Written> {
    bounds.0.set_length(source.metadata()?.len());
    let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("no layout")?;
    let mut head = Vec::new();
    (&mut source).take(MAX_TABLE_LOOK_BYTES as u64).read_to_end(&mut head)?;
    let (packets, _) = head.as_chunks::<TS_PACKET_BYTES>();
    let is_stream = packets.iter().take(5).all(|packet| packet[0] == NULL_PACKET[0]);
    anyhow::ensure!(
        is_stream && !packets.is_empty(),
        "{}: is no MPEG transport stream of 188-byte packets; add it to a store (millrace add), and transform the title",
        path.display()
    );
    // The id stands for no title of a store: failures are reported at the end, for one title.
    let derivation = Derivation::bind(named, TitleId([0; 16]), &head)
        .with_context(|| format!("transformation {} of {}", named.name(), path.display()))?;
    let mut out = open_output(output, Some(&source))?;
    let mut input = head.as_slice().chain(source);
    let mut block = vec![0; layout.packets_per_extent() as usize * DEFAULT_PACKET_BYTES];
    let (mut first, mut scratch, mut written) = (0, Vec::new(), Written::default());
    loop {
        let length = read_up_to(&mut input, &mut block)?;
        if length == 0 {
            break;
        }
        derivation.apply(
            &mut PacketBlock::of_bytes(first, DEFAULT_PACKET_BYTES, &mut block[..length]),
            &mut scratch,
        );
        out.write_all(&block[..length])?;
        first += layout.packets_per_extent();
        written.bytes += length as u64;
        go_on(bounds, written.bytes)?;
    }
    out.flush()?;
    Ok(written)
}

/// Fills `room` as far as there is something.
fn read_up_to(input: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < room.len() {
        match input.read(&mut room[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn sum_up(args: &TransformArgs, named: &NamedTransform, written: &Written) -> ExitCode {
    let counters = named.report().counters();
    while let Some(line) = named.take_line() {
        eprintln!("{} says: {line}", named.name());
    }
    if !args.quiet {
        let blocks = Count(counters.transformed_blocks, "block");
        eprintln!("wrote {} bytes; transformed {blocks}", written.bytes);
    }
    if counters.left_out_packets > 0 {
        let packets = Count(counters.left_out_packets, "TS packet");
        eprintln!("millrace: {packets} could not be changed and became null packets");
    }
    if written.missing > 0 {
        let packets = Count(written.missing, "packet");
        eprintln!("millrace: {packets} could not be read and became null packets; run: millrace scrub");
    }
    if let Some(failure) = named.report().take_failure(Instant(0)) {
        let blocks = Count(counters.failed_blocks, "block");
        eprintln!("millrace: {blocks} left as stored, the last because {}", failure.error);
    }
    let is_whole = counters.failed_blocks == 0 && written.missing == 0;
    if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
