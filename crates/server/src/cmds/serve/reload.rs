//! SIGHUP: the settings are read again. Those that can change while viewers are served do; the others are logged as needing a
//! restart. One mistake in the settings, and nothing changes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::FromArgMatches;
use millrace_make::live::pull::without_secrets;

use super::{ServeArgs, notify};
use crate::cmds::settings::{self, Faults, Layered, TakesEffect};
use crate::cmds::{Cli, CliCommand};
use crate::service::ServiceConfig;

/// Values by the name of their setting, as they were given; of a setting without a value there is none.
type Values = BTreeMap<String, Vec<String>>;

/// The settings that the server runs with.
pub(super) struct Reloader {
    asked: Arc<AtomicBool>,
    command_line: Vec<OsString>,
    running: Values,
    /// Tables have the size that this number of viewers needed at the start.
    most_streams: usize,
}

impl Reloader {
    /// Reads again whenever `asked` is set. The server was started with `args`.
    pub(super) fn new(asked: Arc<AtomicBool>, args: &ServeArgs) -> Self {
        Self::of(std::env::args_os().collect(), asked, args)
    }

    fn of(command_line: Vec<OsString>, asked: Arc<AtomicBool>, args: &ServeArgs) -> Self {
        // The file may have changed since it was read for `args`, a moment ago; the next signal finds that change.
        let running = read(&command_line).map(|(_, values)| values).unwrap_or_default();
        Self { asked, command_line, running, most_streams: args.max_streams }
    }

    /// Reads the settings again after a signal, and hands over those of the service.
    pub(super) fn look(&mut self, apply: impl FnOnce(ServiceConfig)) {
        if !self.asked.swap(false, Ordering::Relaxed) {
            return;
        }
        notify::reloading();
        match self.reload() {
            Ok((service, changes)) => {
                apply(service);
                if changes.is_empty() {
                    tracing::info!("SIGHUP: no setting has changed");
                }
                changes.iter().for_each(SettingChange::log);
            }
            Err(faults) => {
                for fault in faults {
                    tracing::error!("SIGHUP: no setting was changed: {fault}");
                }
            }
        }
        notify::ready();
    }

    /// Returns the settings of the service, and every change since the last time.
    fn reload(&mut self) -> Result<(ServiceConfig, Vec<SettingChange>), Vec<String>> {
        let (args, values) = read(&self.command_line)?;
        let mut service = args.server_config().service;
        let mut changes = changes(&self.running, &values);
        if service.max_streams > self.most_streams {
            service.max_streams = self.most_streams;
            for change in changes.iter_mut().filter(|change| change.name == "max-streams") {
                change.bound = Some(self.most_streams);
            }
        }
        // A change that waits for a restart is reported at each signal.
        for change in changes.iter().filter(|change| change.is_in_effect()) {
            match values.get(&change.name) {
                Some(now) => self.running.insert(change.name.clone(), now.clone()),
                None => self.running.remove(&change.name),
            };
        }
        Ok((service, changes))
    }
}

/// The settings as a new server would have them.
fn read(command_line: &[OsString]) -> Result<(Box<ServeArgs>, Values), Vec<String>> {
    let faults = |faults| match faults {
        Faults::Below(faults) => faults,
        Faults::Line(error) => vec![error.to_string().lines().next().unwrap_or_default().to_owned()],
    };
    let layered = settings::layered(command_line).map_err(faults)?;
    let Layered { matches, origins } = layered;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| faults(error.into()))?;
    let (CliCommand::Serve(args), Some(serve)) = (cli.command, matches.subcommand_matches("serve")) else {
        return Err(vec![
            "the server was not started by 'millrace serve'; start it so to change its settings".into(),
        ]);
    };
    args.check().map_err(|error| vec![format!("{:#}", origins.blame(error))])?;
    let values = settings::table().into_iter().map(|setting| {
        let values = setting.values_in(serve);
        (setting.name, values)
    });
    Ok((args, values.filter(|(_, values)| !values.is_empty()).collect()))
}

/// A setting that has another value than the one that the server runs with.
#[derive(Debug, PartialEq, Eq)]
struct SettingChange {
    name: String,
    before: String,
    now: String,
    takes_effect: TakesEffect,
    /// Highest value until the next restart, if the new one is beyond it.
    bound: Option<usize>,
}

impl SettingChange {
    fn is_in_effect(&self) -> bool {
        self.takes_effect == TakesEffect::Reload && self.bound.is_none()
    }

    fn log(&self) {
        let Self { name, before, now, .. } = self;
        match (self.takes_effect, self.bound) {
            (TakesEffect::Restart, _) => {
                tracing::warn!("SIGHUP: {name}: {now} needs a restart; until then {before}")
            }
            (TakesEffect::Reload, None) => {
                tracing::info!("SIGHUP: {name}: {now} from now on, before {before}")
            }
            (TakesEffect::Reload, Some(bound)) => tracing::warn!(
                "SIGHUP: {name}: {now} needs a restart, because the tables have the size of the start; until then {bound}"
            ),
        }
    }
}

fn changes(running: &Values, read: &Values) -> Vec<SettingChange> {
    let text = |values: Option<&Vec<String>>| {
        // URLs of sources may have passwords, which the log must not have.
        values.map_or_else(|| "the default".to_owned(), |values| without_secrets(&values.join(", ")))
    };
    let changed = settings::table().into_iter().filter_map(|setting| {
        let (before, now) = (running.get(&setting.name), read.get(&setting.name));
        (before != now).then(|| SettingChange {
            before: text(before),
            now: text(now),
            takes_effect: setting.takes_effect,
            bound: None,
            name: setting.name,
        })
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;

    /// Another value than the default for each setting that can change while viewers are served.
    const OTHERS: &[(&str, &str)] = &[
        ("max-streams", "7"),
        ("max-rate", "3Mb/s"),
        ("max-busy", "50%"),
        ("link-rate", "2Gb/s"),
        ("overload", "share"),
        ("pause-reservation", "7s"),
        ("share-per-address", "10%"),
        ("streams-per-address", "4"),
        ("max-streams-per-title", "3"),
        ("fast-start", "100ms"),
        ("adapt", "off"),
    ];

    fn serve(line: &[&str]) -> Box<ServeArgs> {
        match Cli::parse_from([&["millrace", "serve"], line].concat()).command {
            CliCommand::Serve(args) => args,
            _ => unreachable!("the line has the subcommand"),
        }
    }

    #[test]
    fn set_limits_takes_every_setting_that_reloads() {
        let table = settings::table();
        let reloads = table.iter().filter(|setting| setting.takes_effect == TakesEffect::Reload);
        let mut names: Vec<_> = reloads.map(|setting| &*setting.name).collect();
        names.sort_unstable();
        let mut others: Vec<_> = OTHERS.iter().map(|(name, _)| *name).collect();
        others.sort_unstable();
        assert_eq!(names, others);
        let default = serve(&[]).server_config().service;
        for (name, value) in OTHERS {
            let new = serve(&[&format!("--{name}"), value]).server_config().service;
            let mut running = default.clone();
            running.set_limits(&new);
            assert_ne!(format!("{running:?}"), format!("{default:?}"), "{name}: is not taken");
        }
    }

    fn reloader(file: &Path) -> Reloader {
        let line: Vec<OsString> = vec!["millrace".into(), "serve".into(), "--config".into(), file.into()];
        let (args, _) = read(&line).unwrap();
        Reloader::of(line, Arc::default(), &args)
    }

    #[test]
    fn reload_of_changed_file_tells_what_is_in_effect_and_what_waits() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\ncache = \"1GiB\"\n").unwrap();
        let mut reloader = reloader(&file);
        assert_eq!(reloader.reload().unwrap().1, []);
        std::fs::write(&file, "max-streams = 50\ncache = \"2GiB\"\nmax-rate = \"5Mb/s\"\n").unwrap();
        let (service, changes) = reloader.reload().unwrap();
        assert_eq!((service.max_streams, service.max_rate.map(|rate| rate.0)), (50, Some(5_000_000)));
        let all: Vec<_> =
            changes.iter().map(|change| (&*change.name, &*change.before, &*change.now)).collect();
        let expected =
            [("cache", "1GiB", "2GiB"), ("max-streams", "100", "50"), ("max-rate", "the default", "5Mb/s")];
        assert_eq!(all, expected);
        // The cache still waits; the others run.
        let (_, changes) = reloader.reload().unwrap();
        assert_eq!(changes.iter().map(|change| &*change.name).collect::<Vec<_>>(), ["cache"]);
    }

    #[test]
    fn change_of_source_is_shown_without_its_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "live = [\"a=rtsp://boss:secret@10.0.0.9/1\"]\n").unwrap();
        let mut reloader = reloader(&file);
        std::fs::write(&file, "live = [\"a=rtsp://boss:hidden@10.0.0.9/2?key=hidden\"]\n").unwrap();
        let changes = reloader.reload().unwrap().1;
        assert_eq!((&*changes[0].before, &*changes[0].now), ("a=rtsp://10.0.0.9/1", "a=rtsp://10.0.0.9/2"));
    }

    #[test]
    fn reload_of_more_streams_than_at_the_start_stays_at_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let mut reloader = reloader(&file);
        std::fs::write(&file, "max-streams = 101\n").unwrap();
        let (service, changes) = reloader.reload().unwrap();
        assert_eq!((service.max_streams, changes[0].bound), (100, Some(100)));
        assert!(!changes[0].is_in_effect());
    }

    #[test]
    fn reload_of_wrong_file_names_line_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let mut reloader = reloader(&file);
        for (text, fault) in [
            ("max-streams = 50\nmax-rate = \"fast\"\n", "millrace.toml:2"),
            ("max-streams = 50\nmax-stream = 3\n", "millrace.toml:2"),
            ("max-streams = \n", "millrace.toml:1"),
        ] {
            std::fs::write(&file, text).unwrap();
            let faults = reloader.reload().unwrap_err();
            assert!(faults.iter().any(|said| said.contains(fault)), "{faults:?}");
            assert_eq!(reloader.running["max-streams"], ["100"]);
        }
    }
}
