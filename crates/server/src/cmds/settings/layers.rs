//! The merged layers: the environment and the file fill in the settings that the command line
//! leaves open, and then the whole is parsed as if it had been typed. So a value means the same
//! wherever it comes from, and the same code checks it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use super::file::{self, Fault, FileSetting};
use super::setting::{ALTERNATIVES, CONFIG, Setting, SettingKind, command, table};
use crate::cmds::Cli;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Typed.
    CommandLine,
    /// A variable, by its name.
    Environment(String),
    /// The file of `--config`, and the line in it.
    File(PathBuf, usize),
    /// Ours.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Environment(variable) => f.write_str(variable),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Where the value of each setting comes from, by its name; those that are missing are defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Of one setting.
    pub(crate) fn of(&self, name: &str) -> Origin {
        self.0.get(name).cloned().unwrap_or(Origin::Default)
    }

    /// How many come from a file.
    pub(crate) fn of_files(&self) -> usize {
        self.0.values().filter(|origin| matches!(origin, Origin::File(..))).count()
    }

    /// An error that begins with an option (`--cache: ...`), with the place that it comes from if that is not the command line.
    pub(crate) fn blame(&self, error: anyhow::Error) -> anyhow::Error {
        let said = error.to_string();
        let name = said.strip_prefix("--").and_then(|said| said.split(':').next());
        match name.map(|name| self.of(name)) {
            Some(origin @ (Origin::Environment(_) | Origin::File(..))) => {
                error.context(format!("{origin}: {said}"))
            }
            _ => error,
        }
    }
}

/// The faults in the settings; at least one.
#[derive(Debug)]
pub(crate) enum Faults {
    /// As clap reports it.
    Line(Box<clap::Error>),
    /// In the file or in the environment.
    Below(Vec<String>),
}

impl From<clap::Error> for Faults {
    fn from(error: clap::Error) -> Self {
        Self::Line(Box::new(error))
    }
}

/// Values by the name of their setting, as they were given; of a setting without a value there is none.
pub(crate) type Values = BTreeMap<String, Vec<String>>;

/// The program's command line, converted to types.
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// Where the settings of `serve` come from.
    pub(crate) origins: Origins,
    /// The settings of `serve`.
    pub(crate) values: Values,
}

/// A command line with all that is below it.
#[derive(Debug)]
pub(crate) struct Layered {
    /// As clap has it.
    pub(crate) matches: ArgMatches,
    /// Where the settings of `serve` come from.
    pub(crate) origins: Origins,
}

/// Parses the program's command line; of `serve` with the layers below it.
///
/// # Errors
/// The faults; help and version are errors for clap too.
pub(crate) fn parse(argv: &[OsString]) -> Result<Parsed, Faults> {
    let Layered { matches, origins } = layered(argv)?;
    let values = matches.subcommand_matches("serve").map(values_in).unwrap_or_default();
    Ok(Parsed { cli: Cli::from_arg_matches(&matches)?, origins, values })
}

fn values_in(serve: &ArgMatches) -> Values {
    let values = table().into_iter().map(|setting| {
        let values = setting.values_in(serve);
        (setting.name, values)
    });
    values.filter(|(_, values)| !values.is_empty()).collect()
}

/// Returns the same before the conversion to types.
pub(crate) fn layered(argv: &[OsString]) -> Result<Layered, Faults> {
    let matches = command().try_get_matches_from(argv).map_err(|error| of_variable(error, argv))?;
    let Some(("serve", typed)) = matches.subcommand() else {
        return Ok(Layered { matches, origins: Origins::default() });
    };
    let table = table();
    let (below, faults) = below(typed, &table);
    let origins = Origins(origins(typed, &below, &table));
    let faults: Vec<_> = faults.iter().map(Fault::to_string).collect();
    if below.is_empty() && faults.is_empty() {
        return Ok(Layered { matches, origins });
    }
    fill(argv, below, faults).map(|matches| Layered { matches, origins })
}

/// Returns the settings of `serve` from a file when only the variables of settings that it does not
/// name stand above it.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn of_file(path: &Path) -> Result<Layered, Faults> {
    let table = table();
    let (entries, faults) = file::read(path, &table);
    let entry_of = |setting: &&Setting| entries.iter().position(|entry| entry.name == setting.name);
    let below = table.iter().filter_map(|setting| {
        let FileSetting { values, line, .. } = entries[entry_of(&setting)?].clone();
        Some(Given { setting, values, origin: Origin::File(path.to_owned(), line) })
    });
    let below: Vec<_> = below.collect();
    let origins = below.iter().map(|given| (given.setting.name.clone(), given.origin.clone())).collect();
    let matches =
        fill(&["millrace".into(), "serve".into()], below, faults.iter().map(Fault::to_string).collect())?;
    Ok(Layered { matches, origins: Origins(origins) })
}

/// A value that is not typed.
struct Given<'a> {
    setting: &'a Setting,
    values: Vec<String>,
    origin: Origin,
}

impl Given<'_> {
    /// As it would be typed in front of everything else; the folders stand behind it.
    fn options(&self) -> Vec<OsString> {
        let name = &self.setting.name;
        match self.setting.kind {
            SettingKind::Flag if self.values == ["true"] => vec![format!("--{name}").into()],
            SettingKind::Flag => Vec::new(),
            _ => self.values.iter().map(|value| format!("--{name}={value}").into()).collect(),
        }
    }
}

/// Returns the values in the environment and the file of settings that were not typed.
fn below<'a>(typed: &ArgMatches, table: &'a [Setting]) -> (Vec<Given<'a>>, Vec<Fault>) {
    let path = typed.get_one::<PathBuf>(CONFIG);
    let (entries, faults) = path.map(|path| file::read(path, table)).unwrap_or_default();
    let mut given: Vec<Given<'a>> = Vec::new();
    let is_set = |name: &str| table.iter().any(|setting| setting.name == name && is_set(typed, setting));
    let open = |setting: &&Setting| !is_set(&setting.name) && !alternative(&setting.name).is_some_and(is_set);
    for setting in table.iter().filter(open) {
        let SettingKind::List { separator: ':' } = setting.kind else { continue };
        let Some(paths) = std::env::var_os(&setting.variable).filter(|paths| !paths.is_empty()) else {
            continue;
        };
        let values = std::env::split_paths(&paths).map(|path| path.to_string_lossy().into_owned()).collect();
        given.push(Given { setting, values, origin: Origin::Environment(setting.variable.clone()) });
    }
    let in_environment: Vec<_> = given.iter().map(|given| given.setting.name.clone()).collect();
    for setting in table.iter().filter(open) {
        let is_above = |name: &str| in_environment.iter().any(|above| above == name);
        if is_above(&setting.name) || alternative(&setting.name).is_some_and(is_above) {
            continue;
        }
        if let Some((path, entry)) = path.zip(entries.iter().find(|entry| entry.name == setting.name)) {
            let origin = Origin::File(path.clone(), entry.line);
            given.push(Given { setting, values: entry.values.clone(), origin });
        }
    }
    (given, faults)
}

/// Whether a setting was typed, or is in a variable that clap reads.
fn is_set(typed: &ArgMatches, setting: &Setting) -> bool {
    matches!(typed.value_source(&setting.id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

fn alternative(name: &str) -> Option<&'static str> {
    let [one, other] = ALTERNATIVES.into_iter().find(|pair| pair.contains(&name))?;
    Some(if one == name { other } else { one })
}

fn origins(typed: &ArgMatches, below: &[Given<'_>], table: &[Setting]) -> BTreeMap<String, Origin> {
    let above = table.iter().filter_map(|setting| {
        let origin = match typed.value_source(&setting.id)? {
            ValueSource::CommandLine => Origin::CommandLine,
            ValueSource::EnvVariable => Origin::Environment(setting.variable.clone()),
            _ => return None,
        };
        Some((setting.name.clone(), origin))
    });
    let below = below.iter().map(|given| (given.setting.name.clone(), given.origin.clone()));
    above.chain(below).collect()
}

/// Parses the command line with the layers below it filled in. Invalid values are left out and
/// named, so that all of them are named at once.
fn fill(argv: &[OsString], mut below: Vec<Given<'_>>, mut faults: Vec<String>) -> Result<ArgMatches, Faults> {
    loop {
        let error = match command().try_get_matches_from(filled(argv, &below)) {
            Ok(matches) if faults.is_empty() => return Ok(matches),
            Ok(_) => return Err(Faults::Below(faults)),
            Err(error) => error,
        };
        let Some(place) =
            option_of(&error).and_then(|name| below.iter().position(|given| given.setting.name == name))
        else {
            // Each was right by itself, but does not go with the typed settings.
            return Err(if faults.is_empty() { error.into() } else { Faults::Below(faults) });
        };
        let wrong = below.remove(place);
        faults.push(format!("{}: {}", wrong.origin, sentence(&error)));
    }
}

fn filled(argv: &[OsString], below: &[Given<'_>]) -> Vec<OsString> {
    let (program, typed) = argv.split_at(argv.len().min(2));
    let options = below.iter().filter(|given| !given.setting.is_positional).flat_map(Given::options);
    let mut line: Vec<_> = program.iter().cloned().chain(options).chain(typed.iter().cloned()).collect();
    let mut folders =
        below.iter().filter(|given| given.setting.is_positional).flat_map(|given| &given.values).peekable();
    if folders.peek().is_some() && !typed.iter().any(|word| word == "--") {
        line.push("--".into());
    }
    line.extend(folders.map(Into::into));
    line
}

/// The name of the option that an error is about.
fn option_of(error: &clap::Error) -> Option<String> {
    let ContextValue::String(shown) = error.get(ContextKind::InvalidArg)? else { return None };
    let name = shown.trim_start_matches(['-', '[']);
    let name = name.split([' ', '=', ']', '.']).next()?;
    // The folders are shown as their value.
    Some(if name == "DIR" { "folders".to_owned() } else { name.to_owned() })
}

/// An error of clap's in one line, without the usage behind it.
fn sentence(error: &clap::Error) -> String {
    let said = error.render().to_string();
    let said = said.strip_prefix("error: ").unwrap_or(&said);
    let lines = said.lines().take_while(|line| !line.starts_with("For more") && !line.starts_with("Usage"));
    lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Names the variable of a value that comes from one, because the user did not type it.
fn of_variable(error: clap::Error, argv: &[OsString]) -> Faults {
    let Some(name) = option_of(&error) else { return error.into() };
    let option = format!("--{name}");
    let is_typed = argv.iter().any(|word| word.to_string_lossy().split('=').next() == Some(&*option));
    let variable = table().into_iter().find(|setting| setting.name == name).map(|setting| setting.variable);
    match variable.filter(|variable| !is_typed && std::env::var_os(variable).is_some()) {
        Some(variable) => Faults::Below(vec![format!("{variable}: {}", sentence(&error))]),
        None => error.into(),
    }
}
