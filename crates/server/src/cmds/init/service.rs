//! The service that is set up, and its places.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use rustix::process::geteuid;

use super::args::InitArgs;
use super::reader::ServiceReader;
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
        // Looked up only for places that are not given.
        let home = || {
            variable("HOME").context(
                "init: $HOME is not set, so there is no default place; set it, or give --config, --store, --folder and --unit-dir",
            )
        };
        let below = |name, usual: &str| xdg_dir(name).map_or_else(|| Ok(home()?.join(usual)), anyhow::Ok);
        let configs = || below("XDG_CONFIG_HOME", ".config");
        let data = || below("XDG_DATA_HOME", ".local/share");
        let or = |given: Option<PathBuf>, place: &dyn Fn() -> anyhow::Result<PathBuf>| {
            given.map_or_else(place, anyhow::Ok)
        };
        Ok(Self {
            is_system: false,
            config: or(config, &|| Ok(configs()?.join("millrace/millrace.toml")))?,
            store: or(store, &|| Ok(data()?.join("millrace")))?,
            default_folder: or(args.folder.clone(), &|| Ok(home()?.join("films")))?,
            unit: or(units, &|| Ok(configs()?.join("systemd/user")))?.join(unit::NAME),
            user: None,
        })
    }

    /// The user that reads and writes the places.
    pub(super) fn reader(&self) -> ServiceReader<'_> {
        ServiceReader(self.user.as_ref())
    }

    /// Whether systemd runs here, for this service.
    pub(super) fn has_systemd(&self) -> bool {
        match self.is_system {
            true => Path::new("/run/systemd/system").is_dir(),
            false => xdg_dir("XDG_RUNTIME_DIR").is_some_and(|dir| dir.join("systemd").is_dir()),
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

/// A directory of the XDG Base Directory Specification, which has relative ones ignored.
fn xdg_dir(name: &str) -> Option<PathBuf> {
    variable(name).filter(|dir| dir.is_absolute())
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path)
        .map_err(|error| usage(anyhow!("{}: {error}; name a file or a directory", path.display())))
}
