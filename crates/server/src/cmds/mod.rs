//! The subcommands: one file each, with its arguments and its `run`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use millrace_cli::exit::{complain, exit_code, print_json, usage, words};
use millrace_cli::signals::{cancel_on, cancel_on_signals, on_signals};
use millrace_cli::{percent, signals, terminal};
use millrace_client::ClientError;
use millrace_store::StoreError;
use millrace_store::blocking::Timeout;
use millrace_store::members::Members;
use millrace_store::volume::{VOLUME_FILE, Volume};

// First: these stand for those of the standard library in all modules that follow.
#[allow(unused_macros)]
macro_rules! print {
    ($($text:tt)*) => { ::millrace_cli::print!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! println {
    ($($text:tt)*) => { ::millrace_cli::println!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! eprint {
    ($($text:tt)*) => { ::millrace_cli::eprint!($($text)*) };
}
#[allow(unused_macros)]
macro_rules! eprintln {
    ($($text:tt)*) => { ::millrace_cli::eprintln!($($text)*) };
}

mod add;
mod add_remote;
mod add_subtitles;
mod cast;
mod config;
mod config_reload;
mod connection;
mod demo;
mod doctor;
mod egress;
pub(crate) mod engine;
mod fetch;
mod ffmpeg;
mod fsck;
mod init;
mod inspect;
mod lab;
mod ladder;
mod live;
mod ls;
pub(crate) mod memory;
mod nvod;
mod nvod_cast;
mod objects;
mod password;
mod play;
mod prepare;
pub(crate) mod progress;
mod publish;
mod record;
mod remote;
mod repair;
mod rm;
mod scrub;
pub(crate) mod serve;
mod settings;
mod stats_file;
mod title;
mod title_names;
mod top;
mod transform;
mod trick;
mod user;
mod volume;

/// A media-on-demand server: a folder of films, paced to many viewers from one copy in memory.
#[derive(Parser)]
#[command(name = "millrace", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Start here:\n  millrace demo               a test film and the page, in a minute\n  \
                        millrace serve ~/films      serve a folder; prints the page's address and what to paste into a player\n  \
                        millrace init               a configuration file and a systemd unit, by three questions\n  \
                        millrace help serve         all its settings, with examples"
)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    Serve(Box<serve::ServeArgs>),
    Demo(demo::DemoArgs),
    Init(Box<init::InitArgs>),
    Add(Box<add::AddArgs>),
    Prepare(prepare::PrepareArgs),
    Trick(trick::TrickArgs),
    Ls(ls::LsArgs),
    Rm(rm::RmArgs),
    Title(title::TitleArgs),
    Publish(publish::PublishArgs),
    Fetch(fetch::FetchArgs),
    Inspect(inspect::InspectArgs),
    Fsck(fsck::FsckArgs),
    Volume(volume::VolumeArgs),
    Repair(repair::RepairArgs),
    Scrub(scrub::ScrubArgs),
    Transform(transform::TransformArgs),
    Play(play::PlayArgs),
    Cast(cast::CastArgs),
    Nvod(nvod::NvodArgs),
    /// Load any server with many viewers, and measure received packets, lateness and loss (by millrace-lab)
    Load(lab::LabArgs),
    Live(live::LiveArgs),
    Record(record::RecordArgs),
    Top(top::TopArgs),
    Engine(Box<engine::EngineArgs>),
    Doctor(doctor::DoctorArgs),
    Config(config::ConfigArgs),
    User(user::UserArgs),
    /// Measure Millrace's performance targets; prints the machine, the commit and the spread (by millrace-lab)
    Bench(lab::LabArgs),
    #[command(hide = true)]
    BenchSender(lab::LabArgs),
    #[command(hide = true)]
    BenchStream(lab::LabArgs),
}

/// The variable that can hold the store for all commands.
const STORE: &str = "MILLRACE_STORE";

/// Where the titles are kept.
#[derive(Args, Clone, Debug)]
struct StoreArgs {
    /// Store directory: prebuilt titles and the catalogue. For a volume, the directory of any one member: it records where the
    /// others are [default: $XDG_DATA_HOME/millrace or ~/.local/share/millrace]
    #[arg(long, value_name = "DIR", env = STORE)]
    store: Option<PathBuf>,
    /// Directory of a volume member, instead of --store; repeat it for every member. Only these directories are used, wherever
    /// the members were before
    #[arg(long = "member", value_name = "DIR")]
    members: Vec<PathBuf>,
}

impl StoreArgs {
    /// Whether the command line names one; the variable is for all commands, those too that need none.
    fn is_typed(&self) -> bool {
        let variable = std::env::var_os(STORE).map(PathBuf::from);
        !self.members.is_empty() || self.store.is_some() && self.store != variable
    }

    /// Whether a store is named, on the command line or by the environment variable.
    fn is_named(&self) -> bool {
        !self.members.is_empty() || self.store.is_some()
    }

    /// The store of commands that name none.
    fn of_environment() -> Self {
        Self { store: std::env::var_os(STORE).map(PathBuf::from), members: Vec::new() }
    }

    /// The store directory; the first member, if several are named.
    fn dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(dir) = self.members.first().or(self.store.as_ref()) {
            return Ok(dir.clone());
        }
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        var("XDG_DATA_HOME")
            .or_else(|| var("HOME").map(|home| home.join(".local/share")))
            .map(|data| data.join("millrace"))
            .ok_or_else(|| {
                anyhow::anyhow!("store: neither $XDG_DATA_HOME nor $HOME is set; give --store DIR")
            })
    }

    /// The directories of `--member`. By name alone: a disk that hangs must not be asked for it.
    fn members(&self) -> anyhow::Result<&[PathBuf]> {
        let mut seen = HashSet::new();
        for dir in &self.members {
            if !seen.insert(std::path::absolute(dir).unwrap_or_else(|_| dir.clone())) {
                let dir = dir.display();
                return Err(usage(anyhow::anyhow!(
                    "--member {dir}: is named twice; name each member of the volume once"
                )));
            }
        }
        Ok(&self.members)
    }

    /// Opens the existing volume.
    fn open(&self) -> anyhow::Result<Volume> {
        Ok(warned(match self.members()? {
            [] => Volume::open(&self.dir()?)?,
            members => Volume::open_members(members)?,
        }))
    }

    /// Finds the members of the volume without opening it.
    fn find_members(&self) -> anyhow::Result<Members> {
        Ok(match self.members()? {
            [] => Members::find(&self.dir()?)?,
            dirs => Members::among(dirs)?,
        })
    }

    /// Opens the existing volume, with however few of its members.
    fn open_any(&self) -> anyhow::Result<Volume> {
        Ok(warned(match self.members()? {
            [] => Volume::open_any(&self.dir()?)?,
            members => Volume::open_any_members(members)?,
        }))
    }
}

/// The same for commands that make a store where there is none.
#[derive(Args, Clone, Debug)]
struct NewStoreArgs {
    #[command(flatten)]
    old: StoreArgs,
    /// How many disk failures a new volume made of the --member directories must survive; see also: millrace
    /// help volume create [default: 1 if there are several]
    #[arg(long, value_name = "T")]
    parity: Option<usize>,
}

impl NewStoreArgs {
    fn dir(&self) -> anyhow::Result<PathBuf> {
        self.old.dir()
    }

    /// Opens the existing volume, or creates one and reports this: an unmounted disk looks like a
    /// store that does not exist yet.
    fn open_or_create(&self) -> anyhow::Result<Volume> {
        self.open_or_create_by(Volume::open_or_create, Volume::open_members).map(warned)
    }

    /// The same, with however few members of a volume that is there.
    fn open_any_or_create(&self) -> anyhow::Result<Volume> {
        self.open_or_create_by(Volume::open_any_or_create, Volume::open_any_members).map(warned)
    }

    fn open_or_create_by(
        &self,
        by_one: fn(&Path) -> Result<Volume, StoreError>,
        by_all: fn(&[PathBuf]) -> Result<Volume, StoreError>,
    ) -> anyhow::Result<Volume> {
        let members = self.old.members()?;
        if members.is_empty() {
            if let Some(parity) = self.parity {
                return Err(usage(anyhow::anyhow!(
                    "--parity {parity}: is for volumes of several disks; name the directory on each of them with --member"
                )));
            }
            let dir = self.dir()?;
            let is_new = is_no_store(&dir);
            let volume = by_one(&dir)?;
            if is_new {
                eprintln!("millrace: created a new store of plain files in {}", dir.display());
            }
            return Ok(volume);
        }
        if members.iter().all(|dir| is_no_store(dir)) {
            let geometry = volume::geometry(members.len(), self.parity, 0)?;
            let volume = Volume::create(members, geometry)?;
            eprintln!("millrace: created a new volume of {}", volume::summary(&geometry));
            return Ok(volume);
        }
        let volume = by_all(members)?;
        let tolerance = usize::from(volume.members().geometry().tolerance());
        match self.parity {
            Some(parity) if parity != tolerance => Err(usage(anyhow::anyhow!(
                "--parity {parity}: this volume was created with {tolerance}; omit --parity, which is for new volumes only"
            ))),
            _ => Ok(volume),
        }
    }
}

/// Reports once an unusual condition of an opened volume that does not prevent its use.
fn warned(volume: Volume) -> Volume {
    if let Some(why) = volume.catalogue_in_memory() {
        eprintln!("millrace: {why}");
    }
    volume
}

/// Whether there is no store in a directory. Where the disk does not answer there may be one.
fn is_no_store(dir: &Path) -> bool {
    let look = |dir: &Path| !dir.join(VOLUME_FILE).exists();
    millrace_store::blocking::send_to(dir, Timeout::Call, look).unwrap_or(false)
}

/// The command line as a description, for man pages and completions.
pub fn command() -> clap::Command {
    settings::command()
}

/// Parses the command line, runs the command; 0 when all went well, 1 when not, 2 for a command line that is wrong.
pub fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    if let Some(result) = lab::help(&argv) {
        return exit_code(result);
    }
    let settings::Parsed { cli, origins, values } = match settings::parse(&argv) {
        Ok(parsed) => parsed,
        Err(faults) => return refuse(faults),
    };
    let result = match cli.command {
        CliCommand::Serve(args) => {
            let checked = args.check().map_err(|error| usage(origins.blame(error)));
            checked.and_then(|()| serve::run(&args, values))
        }
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::Init(args) => init::run(&args),
        CliCommand::Add(args) => add::run(&args),
        CliCommand::Prepare(args) => prepare::run(&args),
        CliCommand::Trick(args) => trick::run(&args),
        CliCommand::Ls(args) => ls::run(&args),
        CliCommand::Rm(args) => rm::run(&args),
        CliCommand::Title(args) => title::run(&args),
        CliCommand::Publish(args) => publish::run(&args),
        CliCommand::Fetch(args) => fetch::run(&args),
        CliCommand::Inspect(args) => inspect::run(&args),
        CliCommand::Fsck(args) => fsck::run(&args),
        CliCommand::Volume(args) => volume::run(&args),
        CliCommand::Repair(args) => repair::run(&args),
        CliCommand::Scrub(args) => scrub::run(&args),
        CliCommand::Transform(args) => transform::run(&args),
        CliCommand::Play(args) => play::run(&args),
        CliCommand::Cast(args) => cast::run(&args),
        CliCommand::Nvod(args) => nvod::run(&args),
        CliCommand::Load(args) => lab::run("load", &args),
        CliCommand::Live(args) => live::run(&args),
        CliCommand::Record(args) => record::run(&args),
        CliCommand::Top(args) => top::run(&args),
        CliCommand::Engine(args) => engine::run(&args),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Config(args) => config::run(&args),
        CliCommand::User(args) => user::run(&args),
        CliCommand::Bench(args) => lab::run("bench", &args),
        CliCommand::BenchSender(args) => lab::run("bench-sender", &args),
        CliCommand::BenchStream(args) => lab::run("bench-stream", &args),
    };
    exit_code(result)
}

/// Reports the faults in the settings.
fn refuse(faults: settings::Faults) -> ExitCode {
    match faults {
        settings::Faults::Line(error) => error.exit(),
        settings::Faults::Below(faults) => {
            faults.iter().for_each(|fault| eprintln!("millrace: {fault}"));
            ExitCode::from(2)
        }
    }
}

/// The same error, marked if another command line would have helped.
fn of_client(error: ClientError) -> anyhow::Error {
    if error.is_usage() { usage(error.into()) } else { error.into() }
}
