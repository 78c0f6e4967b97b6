//! `millrace init`: a first configuration file and a systemd unit, by three questions.
//!
//! | file | holds |
//! | --- | --- |
//! | `answers` | the questions, and whether an answer is one |
//! | `reader` | whether the server's user can read a folder |
//! | `unit` | the systemd unit |
//! | `write` | both files, complete or not at all |

mod answers;
mod reader;
mod unit;
mod write;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use millrace_rights::{Policy, Watching};
use rustix::process::geteuid;
use serde::Serialize;

use self::answers::Answers;
use self::reader::FolderReader;
use self::unit::ServiceUnit;
use self::write::{NewFile, Outcome};
use super::config::template_with;
use super::serve::access;
use super::serve::user::UserIdentity;
use super::settings::{Values, table};
use super::usage;

/// The service of root.
const SYSTEM: Places = Places {
    config: "/etc/millrace.toml",
    folder: "/var/lib/millrace/films",
    store: "/var/lib/millrace/store",
    units: "/etc/systemd/system",
};

/// Where RTSP and HTTP are on this machine alone, and where they are usually.
const HERE: [&str; 2] = ["127.0.0.1:8554", "127.0.0.1:8080"];
const EVERYWHERE: [&str; 2] = ["[::]:8554", "[::]:8080"];

/// Write a first configuration file and a systemd unit
///
/// Asks three questions: the folder of films, who may watch, and whether the server starts when this machine does. Each has a default, and
/// each can be answered on the command line instead, for scripts. As root it sets up the service of this machine, as another user one of that
/// user. No file is overwritten without --force.
#[derive(Args)]
#[command(after_help = "Examples:\n  sudo millrace init\n  millrace init --dry-run\n  \
                  sudo millrace init --folder /srv/films --watch users --boot\n  millrace init --folder ~/films --watch this-machine --no-boot --config ./millrace.toml")]
pub(super) struct InitArgs {
    /// Folder of films; it is made if it does not exist [default: /var/lib/millrace/films for root, else ~/films]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Who may watch: anyone (any client that can connect), this-machine (programs on this machine), or users (users with a
    /// grant, see: millrace help user) [default: anyone]
    #[arg(long, value_name = "WHO", hide_possible_values = true)]
    watch: Option<WatchChoice>,
    /// Start the server now and whenever this machine starts [default where systemd runs]
    #[arg(long, overrides_with = "no_boot")]
    boot: bool,
    /// Start it only by hand
    #[arg(long, overrides_with = "boot")]
    no_boot: bool,
    /// Take the default for each question that the command line does not answer
    #[arg(long, short)]
    yes: bool,
    /// Print what would be written and run, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace files that exist; the old ones are kept beside them, as .bak
    #[arg(long)]
    force: bool,
    /// Configuration file to write [default: /etc/millrace.toml for root, else $XDG_CONFIG_HOME/millrace/millrace.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of titles, users and rights [default: /var/lib/millrace/store for root, else $XDG_DATA_HOME/millrace]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Directory of the systemd unit [default: /etc/systemd/system for root, else $XDG_CONFIG_HOME/systemd/user]
    #[arg(long, value_name = "DIR")]
    unit_dir: Option<PathBuf>,
    /// User of the service that root sets up
    #[arg(long, value_name = "NAME", default_value = "millrace")]
    user: String,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Who may watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum WatchChoice {
    Anyone,
    ThisMachine,
    Users,
}

struct Places {
    config: &'static str,
    folder: &'static str,
    store: &'static str,
    units: &'static str,
}

/// The service that is set up.
struct Service {
    /// Of this machine; else of this user.
    is_system: bool,
    config: PathBuf,
    store: PathBuf,
    default_folder: PathBuf,
    unit: PathBuf,
    /// The user that it runs as, if that is another one.
    user: Option<UserIdentity>,
}

pub(super) fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let service = Service::of(args)?;
    // Before anything is asked in vain.
    write::refuse_existing(&service.config, args.force)?;
    let answers = Answers::get(args, &service)?;
    let files = service.files(args, &answers)?;
    let outcome = Outcome {
        files: write::write(&files, &service.new_dirs(&answers), service.user.as_ref(), args)?,
        folder: answers.folder.clone(),
        watch: answers.watch,
        boot: answers.boot,
        reachable: access::reach(&answers.watch.listeners(), None),
        access: access::rights(&answers.watch.policy()),
        started: false,
        next: service.next(&answers, &files),
        then: service.then(&answers, &args.user),
        is_dry_run: args.dry_run,
    };
    let outcome = match answers.boot && !args.dry_run && service.has_systemd() {
        true => service.start(outcome)?,
        false => outcome,
    };
    match args.json {
        true => super::print_json(&outcome)?,
        false => outcome.print(),
    }
    Ok(ExitCode::SUCCESS)
}

impl WatchChoice {
    /// Its settings.
    fn settings(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Anyone => Vec::new(),
            Self::ThisMachine => vec![("listen", HERE[0].to_owned()), ("http", HERE[1].to_owned())],
            Self::Users => vec![("watching", "users".to_owned())],
        }
    }

    /// Where the server will listen. Port 554 is left to servers that may open it.
    fn listeners(self) -> Vec<access::Listening> {
        let [rtsp, http] = if self == Self::ThisMachine { HERE } else { EVERYWHERE };
        let at = |protocol, address: &str| Some((protocol, address.parse().ok()?));
        [at("RTSP", rtsp), at("HTTP", http)].into_iter().flatten().collect()
    }

    fn policy(self) -> Policy {
        let watching = if self == Self::Users { Watching::ByRights } else { Watching::Open };
        Policy { watching, ..Policy::default() }
    }
}

impl Service {
    fn of(args: &InitArgs) -> anyhow::Result<Self> {
        let given = |path: &Option<PathBuf>| path.as_ref().map(|path| absolute(path)).transpose();
        let (config, store, units) = (given(&args.config)?, given(&args.store)?, given(&args.unit_dir)?);
        if geteuid().is_root() {
            let user = UserIdentity::of_machine(&args.user)?;
            return Ok(Self {
                is_system: true,
                config: config.unwrap_or_else(|| SYSTEM.config.into()),
                store: store.unwrap_or_else(|| SYSTEM.store.into()),
                default_folder: SYSTEM.folder.into(),
                unit: units.unwrap_or_else(|| SYSTEM.units.into()).join(unit::NAME),
                user: Some(user),
            });
        }
        let home = variable("HOME").context(
            "init: $HOME is not set, so there is no default place; set it, or run millrace init as root",
        )?;
        let configs = variable("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let data = variable("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share"));
        Ok(Self {
            is_system: false,
            config: config.unwrap_or_else(|| configs.join("millrace/millrace.toml")),
            store: store.unwrap_or_else(|| data.join("millrace")),
            default_folder: home.join("films"),
            unit: units.unwrap_or_else(|| configs.join("systemd/user")).join(unit::NAME),
            user: None,
        })
    }

    /// Whether the folder can be read by the server.
    fn reader(&self) -> FolderReader<'_> {
        FolderReader(self.user.as_ref())
    }

    /// Whether systemd runs here, for this service.
    fn has_systemd(&self) -> bool {
        match self.is_system {
            true => Path::new("/run/systemd/system").is_dir(),
            false => variable("XDG_RUNTIME_DIR").is_some_and(|dir| dir.join("systemd").is_dir()),
        }
    }

    /// The files that are written: the settings, and a unit where systemd can use it.
    fn files(&self, args: &InitArgs, answers: &Answers) -> anyhow::Result<Vec<NewFile>> {
        let mut set: Values =
            answers.watch.settings().into_iter().map(|(n, v)| (n.to_owned(), vec![v])).collect();
        set.insert("folders".to_owned(), vec![text_of(&answers.folder)?]);
        set.insert("store".to_owned(), vec![text_of(&self.store)?]);
        let config =
            NewFile { path: self.config.clone(), text: template_with(&table(), &set), is_config: true };
        let mut files = vec![config];
        if (answers.boot || self.has_systemd()) && !self.has_packaged_unit(args) {
            let unit = ServiceUnit {
                is_system: self.is_system,
                program: std::env::current_exe().context("path of this program")?,
                config: self.config.clone(),
                store: self.store.clone(),
                user: args.user.clone(),
            };
            files.push(NewFile { path: self.unit.clone(), text: unit.text()?, is_config: false });
        }
        Ok(files)
    }

    /// Whether a package has installed a unit that serves these settings.
    fn has_packaged_unit(&self, args: &InitArgs) -> bool {
        let is_usual = args.unit_dir.is_none() && args.store.is_none() && args.user == "millrace";
        let is_its = |dir: &&str| Path::new(dir).join(unit::NAME).is_file();
        is_usual
            && self.is_system
            && self.config == Path::new(SYSTEM.config)
            && unit::PACKAGED.iter().any(|dir| is_its(&dir))
    }

    /// Directories that do not exist yet: the folder, and for root the one above the store.
    fn new_dirs(&self, answers: &Answers) -> Vec<PathBuf> {
        [&answers.folder, &self.store].into_iter().filter(|dir| !dir.exists()).cloned().collect()
    }

    fn systemctl(&self, words: &[&str]) -> Vec<String> {
        let of_user = (!self.is_system).then_some("--user");
        ["systemctl"].into_iter().chain(of_user).chain(words.iter().copied()).map(str::to_owned).collect()
    }

    /// The next command.
    fn next(&self, answers: &Answers, files: &[NewFile]) -> Vec<String> {
        let has_unit = files.len() > 1 || self.is_system && self.has_systemd();
        match answers.boot {
            true => self.systemctl(&["enable", "--now", "millrace"]),
            false if has_unit => self.systemctl(&["start", "millrace"]),
            false => vec!["millrace serve --config".to_owned(), self.config.display().to_string()],
        }
    }

    /// What has to be done besides.
    fn then(&self, answers: &Answers, user: &str) -> Vec<String> {
        let mut then = Vec::new();
        if answers.watch == WatchChoice::Users {
            let by = if self.is_system { format!("sudo -u {user} ") } else { String::new() };
            then.push(format!("{by}millrace user add NAME --grant '*' --store {}", self.store.display()));
        }
        if answers.boot && !self.is_system {
            // Otherwise the service begins with the user's first session.
            then.push("loginctl enable-linger".to_owned());
        }
        then
    }

    /// Starts the service, now and at every boot.
    fn start(&self, mut outcome: Outcome) -> anyhow::Result<Outcome> {
        let reload = self.systemctl(&["daemon-reload"]);
        for line in [&reload, &outcome.next] {
            let [program, words @ ..] = line.as_slice() else { continue };
            // What it prints is no answer to --json.
            let done = Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).status();
            let line = line.join(" ");
            match done {
                Ok(status) if status.success() => {}
                Ok(status) => bail!(
                    "{line}: {status}; the files are written, see: {} millrace",
                    self.systemctl(&["status"]).join(" ")
                ),
                Err(error) => return Err(anyhow!("{line}: {error}; the files are written, run it yourself")),
            }
        }
        outcome.started = true;
        Ok(outcome)
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| usage(anyhow!("{}: {error}; name a file or a directory", path.display())))
}

/// A path as the configuration file can have it.
fn text_of(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not UTF-8; choose another name", path.display()));
    text.map(str::to_owned).map_err(usage)
}
