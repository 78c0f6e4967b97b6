//! The settings are read again, at SIGHUP and for callers of the API. Those that can change while viewers are served do; the others
//! are reported as needing a restart. One mistake in the settings, and nothing changes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_core::seam::Clock;
use millrace_core::time::NS_PER_S;
use millrace_make::confine::explain;
use millrace_make::live::pull::without_secrets;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};
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
        let wall_s = (MonotonicClock.now().0 + wall_offset_ns()) / NS_PER_S;
        let report = self.reload(wall_s, apply);
        log(&report);
        self.requests.answer(requests, report);
        notify::ready();
    }

    fn reload(&mut self, at_unix_s: u64, apply: impl FnOnce(ServiceConfig) -> bool) -> ReloadReport {
        let (changes, faults) = match self.take_over(apply) {
            Ok(changes) => (changes, Vec::new()),
            Err(faults) => (Vec::new(), faults),
        };
        ReloadReport { at_unix_s: Some(at_unix_s), changes, faults }
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
        let is_bounded = service.max_streams > self.most_streams;
        if is_bounded {
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
        if is_bounded {
            self.running.insert(MAX_STREAMS.to_owned(), vec![self.most_streams.to_string()]);
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
    // Faults have values in them, and these may have passwords.
    read_with_values(command_line)
        .map_err(|faults| faults.iter().map(|fault| explain(without_secrets(fault))).collect())
}

fn read_with_values(command_line: &[OsString]) -> Result<(Box<ServeArgs>, Values), Vec<String>> {
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

    use super::*;

    /// Another value of a setting, as the file has it, and the settings without which it would be refused.
    struct OtherValue(&'static str, &'static str, &'static str);

    const LIBRARY: &str = "library = 's3://bucket/films'\n";
    const WEBHOOK: &str = "webhook = 'https://127.0.0.1/ask'\n";
    const TLS: &str = "tls-certificate = '/c.pem'\ntls-key = '/k.pem'\n";
    const ENGINE: &str = "tcp = 'engine'\ntcp-interface = 'eth0'\ntcp-address = ['10.0.0.5/24']\n";

    /// One for every setting. Beside those of the settings that it needs there are defaults.
    const OTHERS: &[OtherValue] = &[
        OtherValue("folders", "['/']", ""),
        OtherValue("store", "'/store'", ""),
        OtherValue("member", "['/a', '/b']", ""),
        OtherValue("parity", "1", ""),
        OtherValue("listen", "'127.0.0.1:554'", ""),
        OtherValue("http", "'off'", ""),
        OtherValue("host", "'tv.example'", ""),
        OtherValue("user", "'films'", ""),
        OtherValue("sandbox", "'off'", ""),
        OtherValue("cache", "'64MiB'", ""),
        OtherValue("web-memory", "'64MiB'", ""),
        OtherValue("engines", "2", ""),
        OtherValue("cpu", "[0]", ""),
        OtherValue("idle", "'busy'", ""),
        OtherValue("max-streams", "7", ""),
        OtherValue("max-rate", "'3Mb/s'", ""),
        OtherValue("admission", "'off'", ""),
        OtherValue("max-busy", "'50%'", ""),
        OtherValue("link-rate", "'2Gb/s'", ""),
        OtherValue("overload", "'share'", ""),
        OtherValue("session-timeout", "'70s'", ""),
        OtherValue("pause-reservation", "'7s'", ""),
        OtherValue("max-connections-per-address", "3", ""),
        OtherValue("share-per-address", "'10%'", ""),
        OtherValue("streams-per-address", "4", ""),
        OtherValue("trusted-proxy", "['10.0.0.0/8']", ""),
        OtherValue("max-streams-per-title", "3", ""),
        OtherValue("udp-ports", "'7000-7099'", ""),
        OtherValue("burst", "'5ms'", ""),
        OtherValue("busy-burst", "'5ms'", ""),
        OtherValue("fast-start", "'100ms'", ""),
        OtherValue("smooth", "true", ""),
        OtherValue("packet-sizes", "'auto'", ""),
        OtherValue("adapt", "'off'", ""),
        OtherValue("fec", "'off'", ""),
        OtherValue("transform", "['late=restamp:offset=1s']", ""),
        OtherValue("live", "['news=udp://239.1.1.1:5000']", ""),
        OtherValue("live-memory", "'16MiB'", ""),
        OtherValue("channel", "['one=/list.m3u']", ""),
        OtherValue("record", "['news=20:00/30m']", ""),
        OtherValue("multicast", "'239.192.0.0/16'", ""),
        OtherValue("sap", "true", ""),
        OtherValue("mdns", "true", ""),
        OtherValue("no-gso", "true", ""),
        OtherValue("backend", "'kernel'", ""),
        OtherValue("xdp-interface", "['eth0']", ""),
        OtherValue("measure", "'again'", ""),
        OtherValue("tcp", "'engine'\ntcp-interface = 'eth0'\ntcp-address = ['10.0.0.5/24']", ""),
        OtherValue("tcp-interface", "'eth1'", ENGINE),
        OtherValue("tcp-address", "['10.0.0.6/24']", ENGINE),
        OtherValue("tcp-port-only", "true", ENGINE),
        OtherValue("tcp-gateway", "['10.0.0.1']", ENGINE),
        OtherValue("tcp-socket", "'/run/tcp'", ENGINE),
        OtherValue("tls-certificate", "'/other.pem'", TLS),
        OtherValue("tls-key", "'/other.pem'", TLS),
        OtherValue("https", "'127.0.0.1:443'", TLS),
        OtherValue("rtsps", "'127.0.0.1:322'", TLS),
        OtherValue("watching", "'users'", ""),
        OtherValue("rights", "'/rights.sqlite'", ""),
        OtherValue("trust-loopback", "'off'", ""),
        OtherValue("webhook", "'http://127.0.0.1/ask'", ""),
        OtherValue("webhook-ca", "'/ca.pem'", WEBHOOK),
        OtherValue("webhook-timeout", "'3s'", WEBHOOK),
        OtherValue("webhook-failure", "'allow'", WEBHOOK),
        OtherValue("max-upload", "'1GiB'", ""),
        OtherValue("upload-rate", "'10Mb/s'", ""),
        OtherValue("library", "'s3://bucket/films'", ""),
        OtherValue("library-cache", "'1GiB'", LIBRARY),
        OtherValue("library-interval", "'60s'", LIBRARY),
        OtherValue("endpoint", "'http://127.0.0.1:9000'", LIBRARY),
        OtherValue("region", "'eu-west-1'", LIBRARY),
        OtherValue("addressing", "'path'", LIBRARY),
        OtherValue("endpoint-ca", "'/ca.pem'", LIBRARY),
        OtherValue("read", "'threads'", ""),
        OtherValue("max-damaged", "'1%'", ""),
        OtherValue("trick-space", "'1GiB'", ""),
        OtherValue("picture-space", "'2GiB'", ""),
        OtherValue("stats", "'/stats.json'", ""),
        OtherValue("follow-symlinks", "true", ""),
        OtherValue("settle", "'9s'", ""),
        OtherValue("deleted-files", "'remove'", ""),
        OtherValue("ffmpeg", "'/ffmpeg'", ""),
        OtherValue("ffmpeg-memory", "'1GiB'", ""),
        OtherValue("ffmpeg-output", "'1GiB'", ""),
        OtherValue("ffmpeg-time", "'60s'", ""),
        OtherValue("ffmpeg-sandbox", "'off'", ""),
        OtherValue("web-audio", "'always'", ""),
        OtherValue("log-format", "'json'", ""),
        OtherValue("quiet", "true", ""),
    ];

    /// Each setting is really changed in the file of a running server. The settings of the service are compared as a whole.
    #[test]
    fn reload_of_each_setting_changes_the_service_or_reports_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        for Setting { name, takes_effect, .. } in settings::table() {
            let OtherValue(_, value, needed) = OTHERS
                .iter()
                .find(|other| other.0 == name)
                .unwrap_or_else(|| panic!("{name}: a new setting; give it another value in OTHERS"));
            std::fs::write(&file, needed).unwrap();
            let mut reloader = reloader(&file);
            let mut running = read(&reloader.command_line).unwrap().0.server_config().service;
            let before = format!("{running:?}");
            let is_of_setting = |line: &&str| line.split(' ').next() == Some(&*name);
            let rest: String =
                needed.lines().filter(|line| !is_of_setting(line)).map(|line| format!("{line}\n")).collect();
            std::fs::write(&file, format!("{rest}{name} = {value}\n")).unwrap();
            let (service, report) = reload(&mut reloader);
            let change = report.changes.iter().find(|change| change.name == name);
            let change = change.unwrap_or_else(|| panic!("{name}: {report:?}"));
            running.set_limits(&service.unwrap());
            let is_changed = format!("{running:?}") != before;
            let (again, restart) =
                (reload(&mut reloader).1.changes.len(), change.effect == ChangeEffect::NeedsRestart);
            match takes_effect {
                TakesEffect::Reload => {
                    assert!(is_changed && !restart && again == 0, "{name}: is not taken over")
                }
                TakesEffect::Restart => assert!(
                    !is_changed && restart && change.until_restart.is_some() && again == report.changes.len(),
                    "{name}: needs a restart, and is not reported so: {report:?}"
                ),
            }
        }
    }

    fn reloader(file: &Path) -> Reloader {
        let line: Vec<OsString> = vec!["millrace".into(), "serve".into(), "--config".into(), file.into()];
        let (args, values) = read(&line).unwrap();
        Reloader::new(line, values, &args)
    }

    /// Reloads; returns the settings handed over to the service too.
    fn reload(reloader: &mut Reloader) -> (Option<ServiceConfig>, ReloadReport) {
        let mut taken = None;
        let report = reloader.reload(0, |service| {
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
    fn fault_in_a_source_is_reported_without_its_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("millrace.toml");
        std::fs::write(&file, "").unwrap();
        let mut reloader = reloader(&file);
        for source in ["a b=rtsp://boss:it's-secret@10.0.0.9/1", "a=ftpx://boss:secret@10.0.0.9/1?key=secret"]
        {
            std::fs::write(&file, format!("live = [\"{source}\"]\n")).unwrap();
            let faults = reload(&mut reloader).1.faults;
            assert!(faults.len() == 1 && faults[0].contains("10.0.0.9/1"), "{faults:?}");
            assert!(!faults[0].contains("secret"), "{faults:?}");
        }
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
        let report = reloader.reload(0, |_| false);
        assert!(report.changes.is_empty() && report.faults[0].contains("does not respond"), "{report:?}");
        assert_eq!(reload(&mut reloader).1.changes.len(), 1);
    }
}
