//! The settings are read again, at SIGHUP and for callers of the API. Those that can change while viewers are served do; the others
//! are reported as needing a restart. One mistake in the settings, and nothing changes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_make::live::pull::without_secrets;
use millrace_web::{ChangeEffect, ReloadReport, SettingChange};

use super::reload_requests::ReloadRequests;
use super::{ServeArgs, notify};
use crate::cmds::CliCommand;
use crate::cmds::settings::{self, Faults, Parsed, Setting, TakesEffect, Values};
use crate::service::ServiceConfig;

/// The setting that sizes tables, and can be changed below its value at the start.
const MAX_STREAMS: &str = "max-streams";

/// The settings that the server runs with.
pub(super) struct Reloader {
    requests: Arc<ReloadRequests>,
    command_line: Vec<OsString>,
    /// The configuration file.
    file: Option<PathBuf>,
    running: Values,
    /// Tables have the size that this number of viewers needed at the start.
    most_streams: usize,
}

impl Reloader {
    /// The server was started with `running`, the values that `args` were made of.
    pub(super) fn new(command_line: Vec<OsString>, running: Values, args: &ServeArgs) -> Self {
        let (requests, file) = (Arc::default(), args.config.clone());
        Self { requests, command_line, file, running, most_streams: args.max_streams }
    }

    /// Where a reload is requested.
    pub(super) fn requests(&self) -> Arc<ReloadRequests> {
        Arc::clone(&self.requests)
    }

    /// Reads the settings again if that was requested, and hands over those of the service. `apply` returns whether they count
    /// from now on.
    pub(super) fn look(&mut self, apply: impl FnOnce(ServiceConfig) -> bool) {
        let Some(requests) = self.requests.take() else { return };
        notify::reloading();
        let cause = if requests.by_signal { "SIGHUP" } else { "API" };
        tracing::info!("{cause}: reading the settings again");
        let report = self.reload(apply);
        log(&report);
        self.requests.answer(requests, report);
        notify::ready();
    }

    fn reload(&mut self, apply: impl FnOnce(ServiceConfig) -> bool) -> ReloadReport {
        let at_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs());
        let (changes, faults) = match self.take_over(apply) {
            Ok(changes) => (changes, Vec::new()),
            Err(faults) => (Vec::new(), faults),
        };
        ReloadReport { at_unix_s, changes, faults }
    }

    /// Returns every change since the last time, or the faults.
    fn take_over(
        &mut self,
        apply: impl FnOnce(ServiceConfig) -> bool,
    ) -> Result<Vec<SettingChange>, Vec<String>> {
        self.check_file()?;
        let (args, values) = read(&self.command_line)?;
        let mut service = args.server_config().service;
        let mut changes = changes(&self.running, &values);
        if service.max_streams > self.most_streams {
            service.max_streams = self.most_streams;
            for change in changes.iter_mut().filter(|change| change.name == MAX_STREAMS) {
                change.effect = ChangeEffect::NeedsRestart;
                change.until_restart = Some(self.most_streams.to_string());
            }
        }
        if !apply(service) {
            return Err(vec![
                "the control thread does not respond; the settings are read, see the log, and reload again"
                    .to_owned(),
            ]);
        }
        // A change that waits for a restart is reported at each reload.
        for change in changes.iter().filter(|change| change.effect == ChangeEffect::InEffect) {
            match values.get(&change.name) {
                Some(now) => self.running.insert(change.name.clone(), now.clone()),
                None => self.running.remove(&change.name),
            };
        }
        Ok(changes)
    }

    /// A pipe was read to its end at the start: now it would look like an empty file, or block this thread.
    fn check_file(&self) -> Result<(), Vec<String>> {
        let Some(path) = &self.file else { return Ok(()) };
        // A file that is gone is reported where it is read.
        let is_other = std::fs::metadata(path).is_ok_and(|meta| !meta.is_file());
        if is_other {
            let path = path.display();
            return Err(vec![format!(
                "{path}: not a regular file, which cannot be read again; start the server with --config FILE"
            )]);
        }
        Ok(())
    }
}

/// The settings as a new server would have them.
fn read(command_line: &[OsString]) -> Result<(Box<ServeArgs>, Values), Vec<String>> {
    let Parsed { cli, origins, values } = settings::parse(command_line).map_err(|faults| match faults {
        Faults::Below(faults) => faults,
        Faults::Line(error) => vec![error.to_string().lines().next().unwrap_or_default().to_owned()],
    })?;
    let CliCommand::Serve(args) = cli.command else {
        return Err(vec![
            "the server was not started by 'millrace serve'; start it so to change its settings".into(),
        ]);
    };
    args.check().map_err(|error| vec![format!("{:#}", origins.blame(error))])?;
    Ok((args, values))
}

fn changes(running: &Values, read: &Values) -> Vec<SettingChange> {
    let text = |values: Option<&Vec<String>>| {
        // URLs of sources may have passwords, which the log must not have.
        values.map_or_else(|| "the default".to_owned(), |values| without_secrets(&values.join(", ")))
    };
    let changed = settings::table().into_iter().filter_map(|Setting { name, takes_effect, .. }| {
        let (before, now) = (running.get(&name), read.get(&name));
        let is_changed = before != now;
        let (before, now) = (text(before), text(now));
        let (effect, until_restart) = match takes_effect {
            TakesEffect::Reload => (ChangeEffect::InEffect, None),
            TakesEffect::Restart => (ChangeEffect::NeedsRestart, Some(before.clone())),
        };
        is_changed.then_some(SettingChange { name, before, now, effect, until_restart })
    });
    changed.collect()
}

fn log(ReloadReport { changes, faults, .. }: &ReloadReport) {
    for fault in faults {
        tracing::error!("reload: no setting was changed: {fault}");
    }
    if changes.is_empty() && faults.is_empty() {
        tracing::info!("reload: no setting has changed");
    }
    for SettingChange { name, before, now, until_restart, .. } in changes {
        match until_restart {
            Some(until) => tracing::warn!("reload: {name}: {now} needs a restart; until then {until}"),
            None => tracing::info!("reload: {name}: {now} from now on, before {before}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::cmds::Cli;

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
        let (args, values) = read(&line).unwrap();
        Reloader::new(line, values, &args)
    }

    /// Reloads; returns what was handed over to the service too.
    fn reload(reloader: &mut Reloader) -> (Option<ServiceConfig>, ReloadReport) {
        let mut taken = None;
        let report = reloader.reload(|service| {
            taken = Some(service);
            true
        });
        (taken, report)
    }

    #[test]
    fn reload_of_changed_file_reports_changes_in_effect_and_pending_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\ncache = \"1GiB\"\n").unwrap();
        let mut reloader = reloader(&file);
        assert_eq!(reload(&mut reloader).1.changes, []);
        std::fs::write(&file, "max-streams = 50\ncache = \"2GiB\"\nmax-rate = \"5Mb/s\"\n").unwrap();
        let (service, report) = reload(&mut reloader);
        let service = service.unwrap();
        assert_eq!((service.max_streams, service.max_rate.map(|rate| rate.0)), (50, Some(5_000_000)));
        let all: Vec<_> =
            report.changes.iter().map(|change| (&*change.name, &*change.before, &*change.now)).collect();
        let expected =
            [("cache", "1GiB", "2GiB"), ("max-streams", "100", "50"), ("max-rate", "the default", "5Mb/s")];
        assert_eq!(all, expected);
        assert_eq!(report.changes[0].until_restart.as_deref(), Some("1GiB"));
        // The cache still waits; the others run.
        let (_, report) = reload(&mut reloader);
        assert_eq!(report.changes.iter().map(|change| &*change.name).collect::<Vec<_>>(), ["cache"]);
    }

    #[test]
    fn first_reload_compares_with_the_values_that_the_server_was_started_with() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let line: Vec<OsString> = vec!["millrace".into(), "serve".into(), "--config".into(), (&file).into()];
        let (args, values) = read(&line).unwrap();
        // The file changes between the start and the first look.
        std::fs::write(&file, "max-streams = 50\n").unwrap();
        let mut reloader = Reloader::new(line, values, &args);
        let changes = reload(&mut reloader).1.changes;
        assert_eq!((&*changes[0].before, &*changes[0].now), ("100", "50"));
    }

    #[test]
    fn change_of_source_is_shown_without_its_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "live = [\"a=rtsp://boss:secret@10.0.0.9/1\"]\n").unwrap();
        let mut reloader = reloader(&file);
        std::fs::write(&file, "live = [\"a=rtsp://boss:hidden@10.0.0.9/2?key=hidden\"]\n").unwrap();
        let changes = reload(&mut reloader).1.changes;
        assert_eq!((&*changes[0].before, &*changes[0].now), ("a=rtsp://10.0.0.9/1", "a=rtsp://10.0.0.9/2"));
    }

    #[test]
    fn reload_of_more_streams_than_at_the_start_stays_at_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let mut reloader = reloader(&file);
        std::fs::write(&file, "max-streams = 101\n").unwrap();
        let (service, report) = reload(&mut reloader);
        assert_eq!(service.unwrap().max_streams, 100);
        let change = &report.changes[0];
        assert_eq!(
            (change.effect, change.until_restart.as_deref()),
            (ChangeEffect::NeedsRestart, Some("100"))
        );
    }

    #[test]
    fn reload_of_wrong_file_names_line_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let mut reloader = reloader(&file);
        let right = "max-streams = 50\nmax-rate = \"5Mb/s\"\nmax-busy = \"50%\"\nadapt = \"off\"\n\
                     fast-start = \"1s\"\noverload = \"share\"\nlink-rate = \"1Gb/s\"\n\
                     streams-per-address = 2\nmax-streams-per-title = 2\npause-reservation = \"9s\"\n";
        for (text, fault) in [
            (format!("{right}settle = \"soon\"\n"), "millrace.toml:11"),
            (format!("settle = \"soon\"\n{right}"), "millrace.toml:1"),
            ("max-streams = 50\nmax-stream = 3\n".to_owned(), "millrace.toml:2"),
            ("max-streams = \n".to_owned(), "millrace.toml:1"),
            ("tls-key = \"/key\"\n".to_owned(), "--tls-key: the certificate is missing"),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_refused(&mut reloader, fault);
        }
        std::fs::remove_file(&file).unwrap();
        assert_refused(&mut reloader, "millrace.toml: the configuration cannot be read: No such file");
        // A pipe without a writer would block for ever.
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert_refused(&mut reloader, "not a regular file");
    }

    fn assert_refused(reloader: &mut Reloader, fault: &str) {
        let (service, report) = reload(reloader);
        assert!(service.is_none() && report.changes.is_empty(), "{fault}");
        assert!(report.faults.iter().any(|found| found.contains(fault)), "{fault}: {:?}", report.faults);
        assert_eq!(reloader.running["max-streams"], ["100"]);
    }

    #[test]
    fn reload_without_response_of_the_service_is_a_fault_and_reported_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "max-streams = 100\n").unwrap();
        let mut reloader = reloader(&file);
        std::fs::write(&file, "max-streams = 50\n").unwrap();
        let report = reloader.reload(|_| false);
        assert!(report.changes.is_empty() && report.faults[0].contains("does not respond"), "{report:?}");
        assert_eq!(reload(&mut reloader).1.changes.len(), 1);
    }
}
