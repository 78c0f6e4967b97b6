//! `millrace config reload`: a running server reads its settings again, and the command prints what became of each change.

use std::io::Write;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use millrace_web::{ChangeEffect, ReloadReport, SettingChange};

use super::remote::RemoteArgs;

/// The way that needs no API.
const BY_SIGNAL: &str = "a server without HTTP (--http off) reads them again at SIGHUP: systemctl reload millrace, or kill -HUP PID";

/// Have a running server read its configuration again, and print what became of each change
///
/// The server is the one of --server, or the one that answers on this machine at ports 8080 to 8089. Elsewhere than on the server's machine this needs
/// a user who manages. A server without HTTP (--http off) reads its configuration again at SIGHUP (systemctl reload millrace, or kill -HUP PID), and
/// logs the changes. The exit code is 1 if the configuration has a fault: then nothing was changed.
#[derive(Args)]
#[command(after_help = "Examples:\n  millrace config reload\n  \
                        millrace config reload --server http://boss@tv.example:8080/\n  \
                        millrace config reload --json | jq -r '.changes[] | select(.effect == \"needs-restart\").name'")]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ReloadArgs) -> anyhow::Result<ExitCode> {
    const PATH: &str = "api/v1/reload";
    let remote = match args.remote.server {
        Some(_) => args.remote.named_or_local()?,
        None => args.remote.named_or_local().map_err(with_signal)?,
    };
    remote.sign_in()?;
    let answer = remote.try_send("POST", PATH, None).map_err(with_signal)?;
    let head = answer.head.clone();
    let text = answer.text()?;
    if !matches!(head.status, 200 | 422) {
        let hint = if matches!(head.status, 404 | 405) { format!("; {BY_SIGNAL}") } else { String::new() };
        return Err(remote.refusal(PATH, &head, &text, &hint));
    }
    let report: ReloadReport = serde_json::from_slice(&text).map_err(|_| {
        anyhow!("{}{PATH}: cannot read the outcome; use the millrace of the server's version", remote.place())
    })?;
    if args.json {
        super::print_json(&report)?;
    } else {
        print(&report)?;
    }
    Ok(if report.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A server that is not found may be one without HTTP.
fn with_signal(error: anyhow::Error) -> anyhow::Error {
    anyhow!("{error:#}; {BY_SIGNAL}")
}

fn print(ReloadReport { changes, faults, .. }: &ReloadReport) -> anyhow::Result<()> {
    for fault in faults {
        eprintln!("millrace: no setting was changed: {fault}");
    }
    let mut out = super::terminal::stdout();
    if changes.is_empty() && faults.is_empty() {
        writeln!(out, "no setting has changed")?;
    }
    for change in changes {
        writeln!(out, "{}", line(change))?;
    }
    Ok(())
}

fn line(SettingChange { name, before, now, effect, until_restart }: &SettingChange) -> String {
    match effect {
        ChangeEffect::InEffect => format!("{name}: {now} now in effect, before {before}"),
        ChangeEffect::NeedsRestart => {
            let until = until_restart.as_ref().unwrap_or(before);
            format!("{name}: {now} needs a restart; until then {until}")
        }
    }
}
