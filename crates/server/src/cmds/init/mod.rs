//! `millrace init`: a first configuration file and a systemd unit, by three questions.
//!
//! | file | holds |
//! | --- | --- |
//! | `args` | the options |
//! | `service` | the service that is set up, and its places |
//! | `answers` | the questions, and whether an answer is one |
//! | `places` | whether the service can start from its places, and whether they can be made |
//! | `reader` | whether the service's user has access to a path |
//! | `unit` | the systemd unit |
//! | `words` | words of a shell, printed and typed |
//! | `write` | both files, complete or not at all |
//! | `changes` | the changes on the disk, which are undone unless all succeed |

mod answers;
mod args;
mod changes;
mod places;
mod reader;
mod service;
mod unit;
mod words;
mod write;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow, bail};

use self::answers::Answers;
pub(super) use self::args::InitArgs;
use self::args::WatchChoice;
use self::service::{SYSTEM, Service};
use self::unit::ServiceUnit;
use self::words::shell_line;
use self::write::{NewFile, Outcome};
use super::config::template_with;
use super::serve::access;
use super::settings::{Values, table};
use super::usage;

pub(super) fn run(args: &InitArgs) -> anyhow::Result<ExitCode> {
    let service = Service::of(args)?;
    // Before anything is asked in vain.
    write::refuse_existing(&service.config, args.force)?;
    service.check_places(args, args.boot)?;
    let answers = Answers::get(args, &service)?;
    service.check_places(args, answers.boot)?;
    let files = service.files(args, &answers)?;
    let outcome = Outcome {
        files: write::write(&files, &[&answers.folder, &service.store], service.user.as_ref(), args)?,
        folder: answers.folder.clone(),
        watch: answers.watch,
        boot: answers.boot,
        reachable: access::reach(&answers.watch.listeners(), None),
        access: access::rights(&answers.watch.policy()),
        started: false,
        next: service.next(&answers, &files, &args.user),
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

impl Service {
    /// The files that are written: the settings, and a unit where systemd can use it.
    fn files(&self, args: &InitArgs, answers: &Answers) -> anyhow::Result<Vec<NewFile>> {
        let mut set: Values =
            answers.watch.settings().into_iter().map(|(n, v)| (n.to_owned(), vec![v])).collect();
        set.insert("folders".to_owned(), vec![text_of(&answers.folder)?]);
        set.insert("store".to_owned(), vec![text_of(&self.store)?]);
        let config =
            NewFile { path: self.config.clone(), text: template_with(&table(), &set), is_config: true };
        let mut files = vec![config];
        if self.uses_unit(args, answers.boot) && !self.has_packaged_unit(args) {
            let unit = ServiceUnit {
                is_system: self.is_system,
                program: places::program()?,
                config: self.config.clone(),
                store: self.store.clone(),
                user: args.user.clone(),
            };
            files.push(NewFile { path: self.unit.clone(), text: unit.text()?, is_config: false });
        }
        Ok(files)
    }

    /// Whether systemd starts the service, here or on the machine that `--unit-dir` belongs to.
    fn uses_unit(&self, args: &InitArgs, boot: bool) -> bool {
        boot || args.unit_dir.is_some() || self.has_systemd()
    }

    /// Whether a package has installed a unit that serves these settings.
    fn has_packaged_unit(&self, args: &InitArgs) -> bool {
        let is_usual = args.unit_dir.is_none() && args.store.is_none() && args.user == "millrace";
        let is_its = |dir: &&str| Path::new(dir).join(unit::NAME).is_file();
        is_usual
            && self.is_system
            && self.config == Path::new(SYSTEM.config)
            && unit::PACKAGED.iter().any(is_its)
    }

    /// The next command.
    fn next(&self, answers: &Answers, files: &[NewFile], user: &str) -> Vec<String> {
        // A unit for another machine cannot be started by this one.
        let has_unit = self.has_systemd() && (files.len() > 1 || self.is_system);
        match answers.boot {
            true => self.systemctl(&["enable", "--now", "millrace"]),
            false if has_unit => self.systemctl(&["start", "millrace"]),
            false => {
                let config = self.config.display().to_string();
                self.by_user(user, &["serve", "--config", &config])
            }
        }
    }

    /// A command of `millrace` that the service's user runs.
    fn by_user(&self, user: &str, words: &[&str]) -> Vec<String> {
        // A small system has no sudo, and its root needs none.
        let by: &[&str] = match (self.is_system, service::variable("SUDO_USER")) {
            (false, _) => &[],
            (true, Some(_)) => &["sudo", "-u", user],
            (true, None) => &["runuser", "-u", user, "--"],
        };
        by.iter().chain(&["millrace"]).chain(words).map(|&word| word.to_owned()).collect()
    }

    /// The words of commands that are needed besides.
    fn then(&self, answers: &Answers, user: &str) -> Vec<Vec<String>> {
        let mut then = Vec::new();
        if answers.watch == WatchChoice::Users {
            let store = self.store.display().to_string();
            then.push(self.by_user(user, &["user", "add", "NAME", "--grant", "*", "--store", &store]));
        }
        if answers.boot && !self.is_system {
            // Otherwise the service begins with the user's first session.
            then.push(["loginctl", "enable-linger"].map(str::to_owned).to_vec());
        }
        then
    }

    /// Starts the service, now and at every boot.
    fn start(&self, mut outcome: Outcome) -> anyhow::Result<Outcome> {
        let reload = self.systemctl(&["daemon-reload"]);
        for line in [&reload, &outcome.next] {
            let [program, words @ ..] = line.as_slice() else { continue };
            // Its output is no answer to --json.
            let done = Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).status();
            let line = shell_line(line);
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

/// A path as the configuration file can have it.
fn text_of(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not UTF-8; choose another name", path.display()));
    text.map(str::to_owned).map_err(usage)
}
