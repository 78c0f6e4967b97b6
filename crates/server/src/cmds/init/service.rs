//! The service that is set up, and its places.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::process::geteuid;

use super::args::InitArgs;
use super::reader::FolderReader;
use super::unit;
use crate::cmds::serve::user::UserIdentity;
use crate::cmds::usage;

/// The service of root.
pub(super) const SYSTEM: Places = Places {
    config: "/etc/millrace.toml",
    folder: "/var/lib/millrace/films",
    store: "/var/lib/millrace/store",
    units: "/etc/systemd/system",
};

pub(super) struct Places {
    pub(super) config: &'static str,
    folder: &'static str,
    store: &'static str,
    units: &'static str,
}

/// The service that is set up.
pub(super) struct Service {
    /// Of this machine; else of this user.
    pub(super) is_system: bool,
    pub(super) config: PathBuf,
    pub(super) store: PathBuf,
    pub(super) default_folder: PathBuf,
    pub(super) unit: PathBuf,
    /// The user that it runs as, if that is another one.
    pub(super) user: Option<UserIdentity>,
}

impl Service {
    pub(super) fn of(args: &InitArgs) -> anyhow::Result<Self> {
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
    pub(super) fn reader(&self) -> FolderReader<'_> {
        FolderReader(self.user.as_ref())
    }

    /// Whether systemd runs here, for this service.
    pub(super) fn has_systemd(&self) -> bool {
        match self.is_system {
            true => Path::new("/run/systemd/system").is_dir(),
            false => variable("XDG_RUNTIME_DIR").is_some_and(|dir| dir.join("systemd").is_dir()),
        }
    }

    pub(super) fn systemctl(&self, words: &[&str]) -> Vec<String> {
        let of_user = (!self.is_system).then_some("--user");
        ["systemctl"].into_iter().chain(of_user).chain(words.iter().copied()).map(str::to_owned).collect()
    }
}

pub(super) fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| usage(anyhow!("{}: {error}; name a file or a directory", path.display())))
}
