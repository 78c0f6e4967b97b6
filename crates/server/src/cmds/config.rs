//! `millrace config`: the list of settings, the values in effect here, and whether a file is valid.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use millrace_core::units::Count;
use serde_json::{Value, json};

use super::config_reload::{self, ReloadArgs};
use super::serve::ServeArgs;
use super::settings::{self, Layered, Origin, Origins, Setting, SettingKind, TakesEffect, Values, table};

/// Show, check and list the settings of serve, and have a running server read them again
///
/// Each setting of serve can be given on the command line (--max-rate 900Mb/s), in a variable (MILLRACE_MAX_RATE=900Mb/s) or in a
/// TOML file that serve is given with --config (max-rate = "900Mb/s"). The command line comes before the variable, the variable
/// before the file, the file before the default. They are read when the server starts; at SIGHUP, and at millrace config reload, the file is read
/// again, and the settings that a reload can change do change.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace config list\n  millrace config show --origin --config /etc/millrace.toml\n  \
                  millrace config check /etc/millrace.toml\n  millrace config reload\n\nA file:\n  folders = [\"/srv/films\"]\n  listen = \"0.0.0.0:8554\"\n  \
                  cache = \"4GiB\"\n  max-rate = \"900Mb/s\"\n  no-gso = false"
)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    Show(ShowArgs),
    Check(CheckArgs),
    List(ListArgs),
    Reload(ReloadArgs),
}

/// Print the settings that serve would have here, as a configuration file
#[derive(Args)]
struct ShowArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "MILLRACE_CONFIG")]
    config: Option<PathBuf>,
    /// Say where each value comes from: a variable, a line of the file, or the default
    #[arg(long)]
    origin: bool,
    /// Print name, value and origin of each setting as one JSON array
    #[arg(long)]
    json: bool,
}

/// Check a configuration file: every key, every value, and whether they go together
#[derive(Args)]
struct CheckArgs {
    /// Configuration file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// List all settings: name, variable, allowed values, default, purpose
#[derive(Args)]
struct ListArgs {
    /// Print them as one JSON array
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print them as a Markdown table
    #[arg(long)]
    markdown: bool,
    /// Print them as a configuration file in which every setting is a comment with its default
    #[arg(long, conflicts_with_all = ["json", "markdown"])]
    toml: bool,
}

/// Runs the subcommand.
pub(super) fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Check(args) => check(&args.file),
        ConfigCommand::List(args) => list(args),
        ConfigCommand::Reload(args) => config_reload::run(args),
    }
}

fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let mut line: Vec<OsString> = vec!["millrace".into(), "serve".into()];
    if let Some(path) = &args.config {
        line.extend(["--config".into(), path.into()]);
    }
    let layered = match settings::layered(&line) {
        Ok(layered) => layered,
        Err(faults) => return Ok(super::refuse(faults)),
    };
    let table = table();
    let shown = table.iter().map(|setting| (setting, values(&layered, setting)));
    if args.json {
        let shown = shown.map(|(setting, values)| {
            json!({ "name": setting.name, "value": as_json(setting, &values),
                    "origin": layered.origins.of(&setting.name).to_string() })
        });
        super::print_json(&Value::Array(shown.collect()))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (setting, values) in shown {
        let text = match as_toml(setting, &values) {
            Some(value) => format!("{} = {value}", setting.name),
            None => format!("# {} (default: {})", setting.name, setting.default.as_deref().unwrap_or("none")),
        };
        let origin = layered.origins.of(&setting.name);
        match args.origin && (origin != Origin::Default || !text.starts_with('#')) {
            true => println!("{text:<40} # {origin}"),
            false => println!("{text}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The values of a setting in a command line of `serve`.
fn values(layered: &Layered, setting: &Setting) -> Vec<String> {
    let serve = layered.matches.subcommand_matches("serve");
    serve.map(|serve| setting.values_in(serve)).unwrap_or_default()
}

/// As it would stand in the file; `None` if there is neither a value nor a default that could be written down.
fn as_toml(setting: &Setting, values: &[String]) -> Option<String> {
    let one = |value: &String| match value.parse::<u64>() {
        Ok(_) => value.clone(),
        Err(_) => toml::Value::String(value.clone()).to_string(),
    };
    match setting.kind {
        SettingKind::Flag => values.first().cloned(),
        SettingKind::List { .. } if values.is_empty() => None,
        SettingKind::List { .. } => {
            Some(format!("[{}]", values.iter().map(one).collect::<Vec<_>>().join(", ")))
        }
        SettingKind::One => values.first().map(one),
    }
}

fn as_json(setting: &Setting, values: &[String]) -> Value {
    match setting.kind {
        SettingKind::Flag => json!(values.first().is_some_and(|value| value == "true")),
        SettingKind::List { .. } => json!(values),
        SettingKind::One => json!(values.first()),
    }
}

fn check(path: &Path) -> anyhow::Result<ExitCode> {
    let (matches, origins) = match settings::of_file(path) {
        Ok(Layered { matches, origins }) => (matches, origins),
        Err(faults) => return Ok(super::refuse(faults)),
    };
    let serve = matches.subcommand_matches("serve");
    let together = serve.map(|serve| go_together(serve, &origins)).transpose();
    together.map_err(super::usage)?;
    let count = origins.of_files();
    println!("{}: {}, nothing wrong", path.display(), Count(count as u64, "setting"));
    Ok(ExitCode::SUCCESS)
}

fn go_together(serve: &ArgMatches, origins: &Origins) -> anyhow::Result<()> {
    ServeArgs::from_arg_matches(serve)?.check().map_err(|error| origins.blame(error))
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let table = table();
    if args.json {
        super::print_json(&table)?;
    } else if args.markdown {
        print!("{}", markdown(&table));
    } else if args.toml {
        print!("{}", template_with(&table, &Values::new()));
    } else {
        for setting in &table {
            let Setting { name, value, variable, .. } = setting;
            println!("{name} {value}\n    {}\n    {}; {variable}", purpose(setting), limits(setting));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the purpose, and that a running server can change it.
fn purpose(setting: &Setting) -> String {
    let Setting { help, takes_effect, .. } = setting;
    match takes_effect {
        TakesEffect::Restart => help.clone(),
        TakesEffect::Reload => format!("{help}. A reload changes it"),
    }
}

/// Returns the allowed values and the default.
fn limits(setting: &Setting) -> String {
    let default = setting
        .default
        .as_deref()
        .map_or_else(|| "no default".to_owned(), |default| format!("default {default}"));
    setting.range.as_ref().map_or_else(|| default.clone(), |range| format!("{range}; {default}"))
}

fn markdown(table: &[Setting]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut text =
        "| setting | value | allowed | default | what it is for |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for setting in table {
        let value = match setting.kind {
            SettingKind::Flag => "`true`, `false`".to_owned(),
            SettingKind::One => setting.value.clone(),
            SettingKind::List { .. } => format!("list of {}", setting.value),
        };
        let range = setting.range.as_deref().unwrap_or_default();
        let default = setting.default.as_deref().unwrap_or_default();
        text += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            setting.name,
            cell(&value),
            cell(range),
            cell(default),
            cell(&purpose(setting))
        );
    }
    text
}

/// Column at which comments of the template end.
const WIDTH: usize = 100;

/// A configuration file to start from, in which some settings have values. Another takes effect once its comment sign is removed.
pub(super) fn template_with(table: &[Setting], set: &Values) -> String {
    let mut text = comment(
        "Settings of millrace serve, each with its default. To change one, remove the # in front of its name. Check the result: \
         millrace config check FILE. The command line and variables (MILLRACE_CACHE) take precedence.",
    );
    for setting in table {
        let Setting { name, value, default, .. } = setting;
        let is_words = default.is_some() && !setting.has_default_value;
        let form = match setting.kind {
            SettingKind::Flag => "true or false".to_owned(),
            SettingKind::One => value.clone(),
            SettingKind::List { .. } => format!("List of {value}"),
        };
        let range = setting.range.as_deref().map(|range| format!(": {range}")).unwrap_or_default();
        let default = default.as_deref().filter(|_| is_words);
        let default = default.map(|default| format!("; default: {default}")).unwrap_or_default();
        text += &format!("\n{}{}", comment(&purpose(setting)), comment(&format!("{form}{range}{default}")));
        if let Some(value) = set.get(name).and_then(|values| as_toml(setting, values)) {
            text += &format!("{name} = {value}\n");
            continue;
        }
        let value = default_value(setting).map(|value| format!(" {value}")).unwrap_or_default();
        text += &format!("#{name} ={value}\n");
    }
    text
}

/// The default as it would stand in the file, if it is a value.
fn default_value(setting: &Setting) -> Option<String> {
    let default = setting.default.as_ref().filter(|_| setting.has_default_value);
    match setting.kind {
        SettingKind::List { .. } if default.is_none() => Some("[]".to_owned()),
        _ => as_toml(setting, &Vec::from_iter(default.cloned())),
    }
}

/// A text in lines of comment.
fn comment(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), "#".to_owned());
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.len() > 1 {
            lines += &format!("{line}\n");
            "#".clone_into(&mut line);
        }
        line += &format!(" {word}");
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        let table = table();
        let setting = |name: &str| table.iter().find(|setting| setting.name == name).unwrap();
        let toml = |name: &str, values: &[&str]| {
            as_toml(setting(name), &values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(toml("cache", &["4GiB"]).as_deref(), Some("\"4GiB\""));
        assert_eq!(toml("max-streams", &["7"]).as_deref(), Some("7"));
        assert_eq!(toml("cpu", &["0", "1"]).as_deref(), Some("[0, 1]"));
        assert_eq!(toml("member", &["/a \"b\"", "c"]).as_deref(), Some("['/a \"b\"', \"c\"]"));
        assert_eq!(toml("smooth", &["false"]).as_deref(), Some("false"));
        assert_eq!((toml("host", &[]), toml("member", &[])), (None, None));
    }

    #[test]
    fn template_shows_default_values_and_words_about_defaults() {
        let text = template_with(&table(), &Values::new());
        assert!(text.contains("\n# SIZE: at least 16MiB; default: 256MiB, or a quarter"), "{text}");
        for line in ["#cache =", "#max-streams = 5000", "#fec = \"allow\"", "#smooth = false", "#cpu = []"] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(text.lines().all(|line| line.len() <= WIDTH || !line.contains("# ")), "{text}");
    }

    #[test]
    fn template_has_values_where_they_are_set_and_comments_elsewhere() {
        let set = Values::from([
            ("folders".to_owned(), vec!["/a \"b\"".to_owned()]),
            ("max-streams".to_owned(), vec!["7".to_owned()]),
        ]);
        let text = template_with(&table(), &set);
        let values: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        assert_eq!(values, ["folders = ['/a \"b\"']", "max-streams = 7"]);
        assert!(text.contains("\n#cache =") && !text.contains("#max-streams ="), "{text}");
    }

    #[test]
    fn markdown_of_settings_table_has_one_row_per_setting() {
        let table = table();
        let text = markdown(&table);
        assert_eq!(text.lines().count(), table.len() + 2);
        assert!(text.contains("| `max-rate` | RATE | at least 1b/s | no limit |"), "{text}");
        assert!(text.contains("| `fec` | WHETHER | allow, off | allow |"), "{text}");
    }
}
