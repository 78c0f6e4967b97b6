//! The rights to watch and to change things: the settings, and the gate that all front ends ask.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use millrace_core::counters::Registry;
use millrace_core::units::HumanDuration;
use millrace_rights::{
    Advised, Copies, FileError, Gate, Policy, RightsSnapshot, StartError, TrustHere, Watching,
};
use millrace_store::blocking::{Timeout, send_to};
use millrace_store::members::Members;
use millrace_web::Webhook;

use crate::limits::DEFAULT_ADVICE_TIME;

/// Settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Rights")]
pub(crate) struct RightsArgs {
    /// Viewing access: all (any client that can connect) or users (users with a grant, and signed
    /// links). See also: millrace help user
    #[arg(long, value_name = "WHO", default_value = "all")]
    watching: WatchingChoice,
    /// File with users and their rights [default: rights.sqlite in the store's directory, a copy on every member]
    #[arg(long, value_name = "FILE")]
    rights: Option<PathBuf>,
    /// Whether programs on this machine may change things and see the viewers without credentials:
    /// auto (until there is a user that manages), on (also then), or off (never: a relay on this
    /// machine that adds nothing to requests looks like one of them)
    #[arg(long, value_name = "WHETHER", default_value = "auto")]
    trust_loopback: TrustChoice,
    /// Address of a program that is asked, in addition to the rights, whether a viewer may watch a
    /// title: http://HOST:PORT/PATH or https://HOST:PORT/PATH. It gets a POST with JSON; 200 is
    /// yes, 403 is no [default: none]
    #[arg(long, value_name = "URL", value_parser = parse_webhook)]
    webhook: Option<String>,
    /// PEM file with the certificates of authorities to trust for a webhook at https://, or with the webhook's own [default: the system's]
    #[arg(long, value_name = "FILE")]
    webhook_ca: Option<PathBuf>,
    /// How long the webhook may take to answer
    #[arg(long, value_name = "TIME", default_value_t = HumanDuration(DEFAULT_ADVICE_TIME))]
    webhook_timeout: HumanDuration,
    /// Decision if the webhook does not answer: refuse, or allow
    #[arg(long, value_name = "WHAT", default_value = "refuse")]
    webhook_failure: FailureChoice,
}

impl RightsArgs {
    /// Whether only users, and holders of signed links, may watch.
    pub(super) fn is_for_users(&self) -> bool {
        self.watching == WatchingChoice::Users
    }

    /// The file of users, if it is not in the store.
    pub(super) fn file(&self) -> Option<&Path> {
        self.rights.as_deref()
    }

    /// Certificates for the webhook.
    pub(super) fn authority(&self) -> Option<&Path> {
        self.webhook_ca.as_deref()
    }

    /// Refuses settings that would do nothing: whoever sets one believes that it holds.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let is_by_tls = match &self.webhook {
            Some(webhook) => webhook.starts_with("https:"),
            None => {
                for (name, is_set) in [
                    ("--webhook-ca", self.webhook_ca.is_some()),
                    ("--webhook-timeout", self.webhook_timeout.0 != DEFAULT_ADVICE_TIME),
                    ("--webhook-failure", self.webhook_failure != FailureChoice::Refuse),
                ] {
                    ensure!(
                        !is_set,
                        "{name}: needs a webhook; give its address with --webhook, or omit {name}"
                    );
                }
                return Ok(());
            }
        };
        ensure!(
            is_by_tls || self.webhook_ca.is_none(),
            "--webhook-ca: has no effect with a webhook at http://; use an https:// address, or omit --webhook-ca"
        );
        Ok(())
    }
}

fn parse_webhook(text: &str) -> Result<String, String> {
    Webhook::check(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

/// What holds without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailureChoice {
    /// No new viewer is admitted.
    Refuse,
    /// As if there were no webhook.
    Allow,
}

/// Viewing access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WatchingChoice {
    /// Everybody.
    All,
    /// Users with a grant.
    Users,
}

/// Whether the own machine is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TrustChoice {
    /// Until there is another way to manage the server.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The gate of a server that is being started.
pub(super) fn start(args: &RightsArgs, members: &Arc<Members>) -> anyhow::Result<Arc<Gate>> {
    let gate = by_rights(args, members)?;
    let RightsArgs { webhook, webhook_ca, webhook_timeout, webhook_failure, .. } = args;
    if let Some(address) = webhook {
        let webhook = Webhook::start(address, webhook_timeout.0, webhook_ca.as_deref())?;
        gate.be_advised(Advised::new(Box::new(webhook), *webhook_failure == FailureChoice::Allow));
    }
    Ok(gate)
}

/// Rights with a copy on every present member of a volume.
pub(crate) fn on_members(members: Arc<Members>) -> Copies {
    Copies::on_members(move || {
        let there = (0..members.len()).filter(|&slot| members.is_present(slot));
        there.map(|slot| members.dir(slot)).collect()
    })
}

fn by_rights(args: &RightsArgs, members: &Arc<Members>) -> anyhow::Result<Arc<Gate>> {
    let RightsArgs { watching, rights, trust_loopback, .. } = args;
    let copies = match rights {
        Some(path) => Copies::one(path),
        None => on_members(Arc::clone(members)).reporting(|error| tracing::warn!("{error}")),
    };
    let watching = match watching {
        WatchingChoice::All => Watching::Open,
        WatchingChoice::Users => Watching::ByRights,
    };
    let trust_here = match trust_loopback {
        TrustChoice::Auto => TrustHere::UntilManaged,
        TrustChoice::On => TrustHere::Always,
        TrustChoice::Off => TrustHere::Never,
    };
    let policy = Policy { watching, trust_here, ..Policy::default() };
    // The disk may hang, while others of its volume serve.
    let first = rights.clone().or_else(|| members.usable().first().map(|&slot| members.dir(slot)));
    let first = first.unwrap_or_default();
    let started = send_to(&first, Timeout::Call, move |_| Gate::start(policy, &copies));
    let failed: anyhow::Error = match started {
        Ok(Ok(gate)) => {
            let has_none = watching == Watching::ByRights && gate.counters().users == 0;
            if has_none && rights.is_none() {
                no_member_may_have_them(members)?;
            }
            if has_none {
                tracing::warn!(
                    "--watching users: no user exists, so only signed links give access; add a user: millrace user add NAME"
                );
            }
            return Ok(gate);
        }
        // Without the lost rights the server would admit clients that they exclude.
        Ok(Err(error @ StartError::File(FileError::Lost(_)))) => return Err(error.into()),
        Ok(Err(error)) => error.into(),
        Err(error) => anyhow::anyhow!("rights: {}: {error}", first.display()),
    };
    if watching == Watching::ByRights || rights.is_some() {
        return Err(failed);
    }
    // If the operator has not requested rights, the server runs without them: then no user can sign
    // in.
    tracing::warn!("{failed:#}; no user can sign in");
    Ok(Arc::new(Gate::new(policy, RightsSnapshot::default())?))
}

/// Refuses to continue without users while a missing member may have them: earlier versions kept
/// them on one member only.
fn no_member_may_have_them(members: &Members) -> anyhow::Result<()> {
    let missing = (0..members.len()).find(|&slot| !members.is_present(slot));
    let Some(slot) = missing else { return Ok(()) };
    anyhow::bail!(
        "--watching users: the present members have no users and rights, but the missing {} may have them; bring it back, or add a user: millrace user add NAME",
        members.dir(slot).display()
    )
}

/// Adds its counters to the rest.
pub(super) fn register(registry: &mut Registry, gate: &Arc<Gate>) {
    let gate = Arc::clone(gate);
    registry.add("rights", None, move || gate.counters());
}
