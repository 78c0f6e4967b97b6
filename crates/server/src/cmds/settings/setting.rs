//! The table of settings, made of the options of [`ServeArgs`].

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory};
use serde::Serialize;

use super::ranges;
use crate::cmds::Cli;
use crate::cmds::serve::ServeArgs;

/// The option that names the file, and so cannot stand in it.
pub(super) const CONFIG: &str = "config";

/// The options whose values may be tables in the file.
pub(super) const WITH_TABLES: [&str; 2] = ["channel", "record"];

/// Settings that stand for each other: where one is given, the other one in a layer below has no
/// meaning.
pub(super) const ALTERNATIVES: [[&str; 2]; 1] = [["store", "member"]];

/// Form of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SettingKind {
    /// `true` or `false`.
    Flag,
    /// One value.
    One,
    /// Any number of them.
    List {
        /// Between two in the environment.
        separator: char,
    },
}

/// A setting of `serve`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setting {
    /// In the file, and behind `--` on the command line. Only the folders stand there without a name.
    pub(crate) name: String,
    /// Environment variable.
    pub(crate) variable: String,
    /// Kind of value.
    pub(crate) kind: SettingKind,
    /// Name of the value: `SIZE`, `RATE`, `TIME`, `N`...
    pub(crate) value: String,
    /// Smallest and largest value, or the words to choose from.
    pub(crate) range: Option<String>,
    /// In words where it depends on the machine.
    pub(crate) default: Option<String>,
    /// Whether the default is a value that could be given, not words about one.
    #[serde(skip)]
    pub(crate) has_default_value: bool,
    /// When a change takes effect.
    pub(crate) takes_effect: TakesEffect,
    /// Its purpose.
    pub(crate) help: String,
    /// Clap's name for it.
    #[serde(skip)]
    pub(super) id: String,
    /// Whether it stands on the command line without its name.
    #[serde(skip)]
    pub(super) is_positional: bool,
}

/// When a change of a setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TakesEffect {
    /// When the server is started again.
    Restart,
    /// When a running server gets SIGHUP.
    Reload,
}

/// Settings that a running server can change: they are looked up whenever they are needed. The test below lists all others.
const RELOADED: [&str; 12] = [
    "max-streams",
    "max-rate",
    "max-busy",
    "link-rate",
    "overload",
    "pause-reservation",
    "share-per-address",
    "streams-per-address",
    "max-streams-per-title",
    "fast-start",
    "packet-sizes",
    "adapt",
];

impl Setting {
    fn of(arg: &Arg) -> Self {
        let id = arg.get_id().as_str().to_owned();
        let name = arg.get_long().map_or_else(|| id.clone(), str::to_owned);
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let (help, said) = split_default(&help);
        let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let words = arg.get_possible_values();
        let words: Vec<_> = words
            .iter()
            .filter(|word| !word.is_hide_set())
            .map(clap::builder::PossibleValue::get_name)
            .collect();
        let kind = SettingKind::of(arg);
        let listed = (kind != SettingKind::Flag && !words.is_empty()).then(|| words.join(", "));
        Self {
            variable: variable(&name),
            kind,
            value: arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default(),
            has_default_value: kind == SettingKind::Flag || default.is_some(),
            range: listed.or_else(|| ranges::of(&id).map(|range| range.text)),
            default: if kind == SettingKind::Flag { Some("false".to_owned()) } else { default.or(said) },
            takes_effect: match RELOADED.contains(&&*name) {
                true => TakesEffect::Reload,
                false => TakesEffect::Restart,
            },
            is_positional: arg.is_positional(),
            help,
            name,
            id,
        }
    }

    /// Its values in a command line that was parsed, as they were given.
    pub(crate) fn values_in(&self, serve: &ArgMatches) -> Vec<String> {
        let values = serve.get_raw(&self.id).into_iter().flatten();
        values.map(|value| value.to_string_lossy().into_owned()).collect()
    }
}

impl SettingKind {
    fn of(arg: &Arg) -> Self {
        match arg.get_action() {
            ArgAction::SetTrue => Self::Flag,
            // Between paths a comma may stand for itself.
            ArgAction::Append => Self::List { separator: arg.get_value_delimiter().unwrap_or(':') },
            _ => Self::One,
        }
    }
}

/// Help texts end with the default where it is no value: "(...) [default: ...]".
fn split_default(help: &str) -> (String, Option<String>) {
    let parts = help.strip_suffix(']').and_then(|help| help.rsplit_once(" [default: "));
    match parts {
        Some((help, default)) => (help.to_owned(), Some(default.to_owned())),
        None => (help.to_owned(), None),
    }
}

fn variable(name: &str) -> String {
    format!("MILLRACE_{}", name.to_uppercase().replace('-', "_"))
}

/// Returns whether an argument of `serve` is a setting; hidden ones are for tests.
fn is_setting(arg: &Arg) -> bool {
    !arg.is_hide_set() && arg.get_id() != CONFIG
}

/// All settings, in the order of the help text.
pub(crate) fn table() -> Vec<Setting> {
    let serve = ServeArgs::augment_args(Command::new("serve"));
    serve.get_arguments().filter(|arg| is_setting(arg)).map(Setting::of).collect()
}

/// The program's command line, with the variables and ranges of the settings.
pub(crate) fn command() -> Command {
    Cli::command().mut_subcommand("serve", |serve| serve.mut_args(complete))
}

/// Gives an argument of `serve` what follows from its name.
fn complete(arg: Arg) -> Arg {
    let arg = match ranges::of(arg.get_id().as_str()) {
        Some(range) => arg.value_parser(range.parser),
        None => arg,
    };
    if !is_setting(&arg) {
        return arg;
    }
    let setting = Setting::of(&arg);
    match setting.kind {
        // Set by us: clap cannot separate paths in a variable.
        SettingKind::List { separator: ':' } => arg,
        // The names are few and are made once.
        SettingKind::Flag => arg.env(&*setting.variable.leak()).value_parser(BoolishValueParser::new()),
        _ if arg.get_env().is_some() => arg,
        _ => arg.env(&*setting.variable.leak()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn settings_table_lists_each_setting_once_with_help() {
        let table = table();
        assert!(table.len() > 30, "{} settings", table.len());
        let names: HashSet<_> = table.iter().map(|setting| &setting.name).collect();
        assert_eq!(names.len(), table.len());
        for setting in &table {
            assert!(!setting.help.is_empty(), "{}: no help", setting.name);
            assert!(
                setting.kind == SettingKind::Flag || !setting.value.is_empty(),
                "{}: no name for its value",
                setting.name
            );
        }
        for name in ["folders", "cache", "member", "smooth", "max-streams"] {
            assert!(table.iter().any(|setting| setting.name == name), "{name}");
        }
        assert!(!names.contains(&"config".to_owned()) && !names.contains(&"inject".to_owned()));
    }

    /// Settings that need a restart, by the reason. Each setting stands here or in [`RELOADED`]; a new one has to be entered.
    const RESTARTED: [(&str, &[&str]); 6] = [
        (
            "it chooses files and directories that are open",
            &[
                "folders",
                "store",
                "member",
                "parity",
                "rights",
                "stats",
                "library",
                "library-cache",
                "endpoint",
                "region",
                "addressing",
                "endpoint-ca",
                "tls-certificate",
                "tls-key",
            ],
        ),
        (
            "it opens sockets or devices",
            &[
                "listen",
                "http",
                "https",
                "rtsps",
                "host",
                "udp-ports",
                "no-gso",
                "backend",
                "xdp-interface",
                "measure",
                "tcp",
                "tcp-interface",
                "tcp-address",
                "tcp-port-only",
                "tcp-gateway",
                "tcp-socket",
                "multicast",
                "sap",
                "mdns",
            ],
        ),
        (
            "it sizes memory or tables",
            &["cache", "web-memory", "live-memory", "fec", "max-connections-per-address"],
        ),
        (
            "it starts threads or belongs to running ones",
            &[
                "user",
                "engines",
                "cpu",
                "idle",
                "burst",
                "busy-burst",
                "smooth",
                "sandbox",
                "read",
                "max-damaged",
                "admission",
                "trick-space",
                "picture-space",
                "library-interval",
                "follow-symlinks",
                "settle",
                "deleted-files",
                "quiet",
                "log-format",
                "live",
                "channel",
                "record",
                "transform",
                "ffmpeg",
                "ffmpeg-memory",
                "ffmpeg-output",
                "ffmpeg-time",
                "ffmpeg-sandbox",
                "web-audio",
            ],
        ),
        ("players were given the old value", &["session-timeout"]),
        (
            "the web side and the rights have a copy",
            &[
                "trusted-proxy",
                "watching",
                "trust-loopback",
                "webhook",
                "webhook-ca",
                "webhook-timeout",
                "webhook-failure",
                "max-upload",
                "upload-rate",
            ],
        ),
    ];

    #[test]
    fn each_setting_is_listed_as_reloaded_or_restarted_and_not_as_both() {
        let restarted = RESTARTED.iter().flat_map(|(_, names)| *names);
        let listed: Vec<_> = RELOADED.iter().chain(restarted).copied().collect();
        for Setting { name, .. } in table() {
            let count = listed.iter().filter(|listed| **listed == name).count();
            assert_eq!(count, 1, "{name}: stands {count} times in RELOADED and RESTARTED");
        }
        for name in listed {
            assert!(table().iter().any(|setting| setting.name == name), "{name}: no such setting");
        }
    }

    #[test]
    fn setting_variable_equals_env_name_of_its_option() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments().filter(|arg| is_setting(arg)) {
            let setting = Setting::of(arg);
            let is_by_us = setting.kind == SettingKind::List { separator: ':' };
            let named = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            assert_eq!(named, (!is_by_us).then_some(setting.variable), "{}", setting.name);
        }
    }

    #[test]
    fn split_default_separates_textual_default_from_help() {
        let (help, default) = split_default("Name in URLs [default: this machine's]");
        assert_eq!((&*help, default.as_deref()), ("Name in URLs", Some("this machine's")));
        assert_eq!(split_default("All [of them]"), ("All [of them]".to_owned(), None));
    }

    #[test]
    fn ranges_belong_to_settings() {
        let table = table();
        for id in ranges::IDS {
            assert!(table.iter().any(|setting| setting.id == id), "{id}: no such setting");
            assert!(ranges::of(id).is_some(), "{id}");
        }
    }
}
