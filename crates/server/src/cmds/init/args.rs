//! The options, and the meaning of the choice of viewers.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use millrace_rights::{Policy, Watching};
use serde::Serialize;

use crate::cmds::serve::access;

/// Addresses of RTSP and HTTP for this machine alone, and the usual ones.
const HERE: [&str; 2] = ["127.0.0.1:8554", "127.0.0.1:8080"];
const EVERYWHERE: [&str; 2] = ["[::]:8554", "[::]:8080"];

/// Write a first configuration file and a systemd unit
///
/// Asks three questions: the folder of films, the viewers allowed, and whether the server starts when this machine does. Each has a default,
/// and each can be answered on the command line instead, for scripts. As root it sets up the service of this machine, as another user a
/// service of their own. No file is overwritten without --force.
#[derive(Args)]
#[command(after_help = "Examples:\n  sudo millrace init\n  millrace init --dry-run\n  \
                  sudo millrace init --folder /srv/films --watch users --boot\n  millrace init --folder ~/films --watch this-machine --no-boot --config ./millrace.toml")]
pub(crate) struct InitArgs {
    /// Folder of films; it is made if it does not exist [default: /var/lib/millrace/films for root, else ~/films]
    #[arg(long, value_name = "DIR")]
    pub(super) folder: Option<PathBuf>,
    /// Viewers allowed: anyone (any client that can connect), this-machine (programs on this machine), or users (users with a
    /// grant, see: millrace help user) [default: anyone]
    #[arg(long, value_name = "WHO", hide_possible_values = true)]
    pub(super) watch: Option<WatchChoice>,
    /// Start the server now and whenever this machine starts [default where systemd runs]
    #[arg(long, overrides_with = "no_boot")]
    pub(super) boot: bool,
    /// Start it only by hand
    #[arg(long, overrides_with = "boot")]
    pub(super) no_boot: bool,
    /// Take the default for each question that the command line does not answer
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Print what would be written and run, and do nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace files that exist; the old ones are kept beside them, as .bak
    #[arg(long)]
    pub(super) force: bool,
    /// Configuration file to write [default: /etc/millrace.toml for root, else $XDG_CONFIG_HOME/millrace/millrace.toml]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Directory of titles, users and rights [default: /var/lib/millrace/store for root, else $XDG_DATA_HOME/millrace]
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,
    /// Directory of the systemd unit [default: /etc/systemd/system for root, else $XDG_CONFIG_HOME/systemd/user]
    #[arg(long, value_name = "DIR")]
    pub(super) unit_dir: Option<PathBuf>,
    /// User of the service that root sets up
    #[arg(long, value_name = "NAME", default_value = "millrace")]
    pub(super) user: String,
    /// Print the outcome as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The clients that may watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WatchChoice {
    Anyone,
    ThisMachine,
    Users,
}

impl WatchChoice {
    /// Its settings.
    pub(super) fn settings(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Anyone => Vec::new(),
            Self::ThisMachine => vec![("listen", HERE[0].to_owned()), ("http", HERE[1].to_owned())],
            Self::Users => vec![("watching", "users".to_owned())],
        }
    }

    /// Addresses of the server. Port 554 is left to servers that may open it.
    pub(super) fn listeners(self) -> Vec<access::Listening> {
        let [rtsp, http] = if self == Self::ThisMachine { HERE } else { EVERYWHERE };
        let at = |protocol, address: &str| Some((protocol, address.parse().ok()?));
        [at("RTSP", rtsp), at("HTTP", http)].into_iter().flatten().collect()
    }

    pub(super) fn policy(self) -> Policy {
        let watching = if self == Self::Users { Watching::ByRights } else { Watching::Open };
        Policy { watching, ..Policy::default() }
    }
}
