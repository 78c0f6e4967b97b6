//! `millrace volume`: volumes of several members, or with parity: make one, look at it, add and replace members.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use millrace_core::limits::{MAX_DATA_UNITS, MAX_PARITY_UNITS, MAX_UNIT_PACKETS};
use millrace_core::units::Count;
use millrace_store::blocking::Timeout;
use millrace_store::format::superblock::Geometry;
use millrace_store::members::{MemberState, Members, SlotReport};
use millrace_store::volume::{TITLES_DIR, Volume};
use serde_json::{Value, json};

use super::StoreArgs;
use super::repair::or_failed;

/// Create volumes of several disks, show their state, add and replace members
///
/// A volume spreads each title over its members with parity: it survives as many lost members as it was created for, and viewers
/// notice nothing. The same parity repairs packet loss on the network for viewers that request FEC.
#[derive(Args)]
pub(super) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand)]
enum VolumeCommand {
    Create(CreateArgs),
    Status(StatusArgs),
    Add(AddArgs),
    Replace(ReplaceArgs),
}

/// Create a volume from directories that are not stores yet
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace volume create /disk1/store /disk2/store /disk3/store   any one of three may be lost\n  \
                        millrace volume create /disk{1,2,3,4,5,6}/store --parity 2      any two of six may be lost\n  \
                        millrace volume create /srv/store --fec 2                       one disk, parity for the network\n\n\
                        Any member's directory then stands for the volume: millrace serve --store /disk1/store"
)]
struct CreateArgs {
    /// Directories, one per disk; created if missing
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// How many disk failures the volume must survive [default: 1, or 0 for a single directory]
    #[arg(long, value_name = "T")]
    parity: Option<usize>,
    /// Parity units per stripe of a single-directory volume, used only for FEC on the network: 1 repairs one lost packet in each
    /// column, more repair as many (for Millrace's own client)
    #[arg(long, value_name = "M")]
    fec: Option<usize>,
    /// Data units per stripe (k) [default: chosen for the number of members and for ST 2022-1 FEC]
    #[arg(long, value_name = "K")]
    data_units: Option<u16>,
    /// Packets per unit (U), 1 to 20: a burst of U lost packets can be repaired [default: chosen
    /// for K]
    #[arg(long, value_name = "U")]
    unit_packets: Option<u32>,
}

/// Show the members of a volume and how many more may fail
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace volume status /disk1/store\n  millrace volume status /disk1/store --json\n\nExit code: 0 all \
                        members are present and active; 1 some are not, and all titles can be played; 3 the state is unknown; \
                        4 too many members are missing."
)]
struct StatusArgs {
    /// Directory of any member [default: the store]
    #[arg(value_name = "DIR", conflicts_with = "members")]
    dir: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Add a disk: newly added titles use it too
#[derive(Args)]
#[command(
    after_help = "Example:\n  millrace volume add /disk1/store /disk4/store\n\nExisting titles stay on the members that they are \
                        on. To spread one over the new disk, too, remove it and add it again."
)]
struct AddArgs {
    /// Directory of any member
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Directory on the new disk; created if missing
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// How many disk failures newly added titles must survive [default: as before, at least 1]
    #[arg(long, value_name = "T")]
    parity: Option<usize>,
}

/// Replace a member by a new disk, which millrace repair then fills
#[derive(Args)]
#[command(
    after_help = "Example:\n  millrace volume replace /disk1/store --old 2 /disk9/store\n  millrace repair --store /disk1/store\n\n\
                        From then on the contents of the old disk count as stale, even if it comes back."
)]
struct ReplaceArgs {
    /// Directory of any other member
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Index or old directory of the member to replace, as shown by millrace volume status
    #[arg(long, alias = "member", value_name = "INDEX|DIR")]
    old: String,
    /// Directory on the new disk; created if missing
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

pub(super) fn run(args: &VolumeArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        VolumeCommand::Create(args) => create(args),
        VolumeCommand::Status(args) => Ok(or_failed(status(args))),
        VolumeCommand::Add(args) => add(args),
        VolumeCommand::Replace(args) => replace(args),
    }
}

/// The stripes that suit this many members.
pub(super) fn geometry(members: usize, parity: Option<usize>, fec: usize) -> anyhow::Result<Geometry> {
    Geometry::choose(members, parity.unwrap_or(usize::from(members > 1)), fec)
        .map_err(|what| super::usage(anyhow!("volume: {what}")))
}

/// Returns the same, with the user's changes.
fn wanted(args: &CreateArgs) -> anyhow::Result<Geometry> {
    let members = args.dirs.len();
    let mut geometry = geometry(members, args.parity, args.fec.unwrap_or(0))?;
    if let Some(k) = args.data_units {
        let (own, t) = (usize::from(k), usize::from(geometry.tolerance()));
        let (units, m) = match members {
            1 if geometry.m == 0 => bail!("--data-units: a single directory has stripes only with --fec M"),
            1 => (1, usize::from(geometry.m)),
            _ => (members - t, t * (own / (members - t))),
        };
        // Each unit of data on a member comes with one of parity on each of those that may be lost.
        let each = MAX_PARITY_UNITS.checked_div(t).unwrap_or(MAX_DATA_UNITS).min(MAX_DATA_UNITS / units);
        if own == 0 || !own.is_multiple_of(units) || own > units * each {
            let most = units * each;
            bail!("--data-units: got {k}; this volume takes multiples of {units} from {units} to {most}");
        }
        // A unit as long as ST 2022-1 takes it, if these stripes are such that it can.
        let unit_packets = (100 / u32::from(k)).clamp(1, MAX_UNIT_PACKETS);
        geometry = Geometry { k, m: m as u16, unit_packets, ..geometry };
    }
    if let Some(unit_packets) = args.unit_packets {
        anyhow::ensure!(
            !geometry.is_single(),
            "--unit-packets: a single directory has stripes only with --fec M"
        );
        anyhow::ensure!(
            (1..=MAX_UNIT_PACKETS).contains(&unit_packets),
            "--unit-packets: got {unit_packets}, allowed 1 to {MAX_UNIT_PACKETS}"
        );
        geometry.unit_packets = unit_packets;
    }
    Ok(geometry)
}

fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let geometry = wanted(args).map_err(super::usage)?;
    let volume = Volume::create(&args.dirs, geometry)?;
    let mut out = super::terminal::stdout();
    writeln!(out, "created a volume of {}", summary(&geometry))?;
    if geometry.m > 0 && !geometry.is_st2022() {
        writeln!(
            out,
            "note: other players cannot use the parity of these stripes as FEC (ST 2022-1: 4 to 20 data units, at most 100 packets)"
        )?;
    }
    writeln!(out, "serve it with: millrace serve --store {}", volume.dir().display())?;
    Ok(ExitCode::SUCCESS)
}

fn add(args: &AddArgs) -> anyhow::Result<ExitCode> {
    let volume = Volume::open(&args.dir)?;
    let members = volume.members().len() + 1;
    let before = usize::from(volume.members().geometry().tolerance());
    let geometry = geometry(members, Some(args.parity.unwrap_or(before.max(1))), 0)?;
    volume.add_member(&args.new, geometry)?;
    println!("member {} is {}", members - 1, args.new.display());
    println!("newly added titles: {} on {}", in_words(&geometry), count(members));
    Ok(ExitCode::SUCCESS)
}

fn replace(args: &ReplaceArgs) -> anyhow::Result<ExitCode> {
    let volume = Volume::open(&args.dir)?;
    let slot = slot_of(volume.members(), &args.old)?;
    let replaced = volume.members().dir(slot);
    volume.replace_member(slot, &args.new)?;
    println!("member {slot} is {} now, in place of {}", args.new.display(), replaced.display());
    println!("it is empty; to fill it: millrace repair --store {}", args.new.display());
    Ok(ExitCode::SUCCESS)
}

/// The member that is meant. Whether there is one with this index is found out where it is used.
fn slot_of(members: &Members, text: &str) -> anyhow::Result<usize> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let whole = |dir: &Path| std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let dir = whole(Path::new(text));
    let slot = members.report().into_iter().find(|slot| whole(&slot.dir) == dir);
    slot.map(|slot| slot.index).ok_or_else(|| {
        super::usage(anyhow!(
            "--old: got \"{text}\"; give a member's index or directory, as millrace volume status shows them"
        ))
    })
}

fn count(members: usize) -> String {
    if members == 1 { "1 member".to_owned() } else { format!("{members} members") }
}

/// Returns the number of members, and the layout on them.
pub(super) fn summary(geometry: &Geometry) -> String {
    format!("{}: {}", count(usize::from(geometry.members)), in_words(geometry))
}

fn in_words(geometry: &Geometry) -> String {
    let Geometry { k, m, unit_packets, members } = geometry;
    match (members, m) {
        (1, 0) => "plain files, no parity".to_owned(),
        (1, m) => {
            format!("stripes of {k} + {m} units of {unit_packets} packets; the parity is for the network")
        }
        _ => format!(
            "stripes of {k} + {m} units of {unit_packets} packets; {} may be lost",
            count(usize::from(geometry.tolerance()))
        ),
    }
}

/// Prints the state of the members, even if too few of them are there to open the volume.
fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let members = match (&args.dir, args.store.members()?) {
        (Some(dir), _) => Members::find(dir)?,
        (None, []) => Members::find(&args.store.dir()?)?,
        (None, named) => Members::among(named)?,
    };
    let report = members.report();
    let geometry = members.geometry();
    let lost = report.iter().filter(|slot| !is_whole(slot)).count();
    let may = usize::from(geometry.tolerance());
    let (health, code) = match lost {
        0 => ("whole", 0),
        lost if lost <= may => ("degraded", 1),
        _ => ("lost", super::repair::LOST),
    };
    if args.json {
        super::print_json(&as_json(&members, &report, health, lost))?;
    } else {
        print(&members, &report, health, lost)?;
    }
    Ok(ExitCode::from(code))
}

fn is_whole(slot: &SlotReport) -> bool {
    slot.absent.is_none() && slot.state == MemberState::Active
}

/// Titles on a member, as far as it can be looked at.
fn titles_on(members: &Members, slot: &SlotReport) -> Option<usize> {
    let count = |dir: &Path| std::fs::read_dir(dir.join(TITLES_DIR)).ok().map(Iterator::count);
    slot.absent.is_none().then(|| members.ask(slot.index, Timeout::Work, count).ok().flatten())?
}

fn as_json(members: &Members, report: &[SlotReport], health: &str, lost: usize) -> Value {
    let geometry = members.geometry();
    let slot = |slot: &SlotReport| {
        json!({
            "index": slot.index,
            "dir": slot.dir.display().to_string(),
            "member": slot.member.to_string(),
            "state": slot.state,
            "present": slot.absent.is_none(),
            "absent": slot.absent,
            "titles": titles_on(members, slot),
        })
    };
    json!({
        "volume": members.volume().to_string(),
        "generation": members.generation(),
        "health": health,
        "members_lost": lost,
        "members_may_be_lost": geometry.tolerance(),
        "k": geometry.k,
        "m": geometry.m,
        "unit_packets": geometry.unit_packets,
        "is_st2022_fec": geometry.is_st2022(),
        "members": report.iter().map(slot).collect::<Vec<_>>(),
    })
}

fn print(members: &Members, report: &[SlotReport], health: &str, lost: usize) -> anyhow::Result<()> {
    let mut out = super::terminal::stdout();
    let geometry = members.geometry();
    writeln!(
        out,
        "volume {}  {}  generation {}",
        members.volume(),
        count(report.len()),
        members.generation()
    )?;
    writeln!(out, "{}", in_words(&geometry))?;
    for slot in report {
        let titles = titles_on(members, slot);
        let what = match (&slot.absent, titles) {
            (Some(absent), _) => format!("MISSING: {absent}"),
            (None, Some(titles)) => Count(titles as u64, "title").to_string(),
            (None, None) => "titles cannot be listed".to_owned(),
        };
        writeln!(out, "  {:>2}  {:10}  {}  {what}", slot.index, slot.state, slot.dir.display())?;
    }
    match health {
        "whole" => writeln!(out, "all members are present")?,
        "degraded" => {
            writeln!(
                out,
                "{lost} of {} missing or incomplete, the volume tolerates {}; titles can be played, none can be added",
                count(report.len()),
                geometry.tolerance()
            )?;
            advise(&mut out, report)?;
        }
        _ => writeln!(
            out,
            "{lost} of {} missing or incomplete, the volume tolerates {}: bring some of them back, or name all of them with --member \
             if their paths have changed",
            count(report.len()),
            geometry.tolerance(),
        )?,
    }
    Ok(())
}

/// What to do about members that are missing or incomplete.
fn advise(out: &mut impl Write, report: &[SlotReport]) -> std::io::Result<()> {
    let good = report.iter().find(|slot| is_whole(slot));
    let dir = good.map_or_else(|| "DIR".to_owned(), |slot| slot.dir.display().to_string());
    let absent: Vec<usize> =
        report.iter().filter(|slot| slot.absent.is_some()).map(|slot| slot.index).collect();
    if absent.is_empty() {
        return writeln!(out, "rebuild what they lack: millrace repair --store {dir}");
    }
    for index in absent {
        writeln!(
            out,
            "member {index}: mount its disk again; or replace it by a new one: millrace volume replace {dir} --old {index} NEW"
        )?;
    }
    writeln!(out, "then: millrace repair --store {dir}")?;
    writeln!(
        out,
        "(if members are mounted elsewhere now, name all of them once: millrace ls --member DIR --member DIR ...)"
    )
}
