//! The configuration file: TOML (1.0), one key for each setting.

use std::fmt;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use millrace_core::text::excerpt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::setting::{Setting, SettingKind, WITH_TABLES};
use crate::limits::MAX_CONFIG_FILE_BYTES;

/// A setting in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSetting {
    /// Name of the setting.
    pub(super) name: String,
    /// As on the command line; of a flag `true` or `false`.
    pub(super) values: Vec<String>,
    /// Where it stands, from 1.
    pub(super) line: usize,
}

/// Something in the file that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The file.
    pub(crate) path: PathBuf,
    /// The line, from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    /// The fault, and how to correct it.
    pub(crate) what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what } = self;
        match line {
            0 => write!(f, "{}: {what}", path.display()),
            _ => write!(f, "{}:{line}: {what}", path.display()),
        }
    }
}

/// Reads a file. Returns its valid settings beside its faults, in the order of the lines.
pub(crate) fn read(path: &Path, table: &[Setting]) -> (Vec<FileSetting>, Vec<Fault>) {
    match text_of(path) {
        Ok(text) => parse(path, &text, table),
        Err(error) => {
            let what = format!("the configuration cannot be read: {error}");
            (Vec::new(), vec![Fault { path: path.to_owned(), line: 0, what }])
        }
    }
}

fn text_of(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    // A device or a pipe may have no end.
    File::open(path)?.take(MAX_CONFIG_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_CONFIG_FILE_BYTES {
        return Err(Error::new(
            ErrorKind::FileTooLarge,
            format!("it is longer than {MAX_CONFIG_FILE_BYTES} bytes"),
        ));
    }
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads the text of a file.
pub(crate) fn parse(path: &Path, text: &str, table: &[Setting]) -> (Vec<FileSetting>, Vec<Fault>) {
    let line_of =
        |at: usize| 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
    let fault = |at: usize, what: String| Fault { path: path.to_owned(), line: line_of(at), what };
    let (parsed, errors) = DeTable::parse_recoverable(text);
    let mut faults: Vec<_> = errors
        .into_iter()
        .map(|error| {
            fault(error.span().map_or(0, |span| span.start), format!("this is not TOML: {}", error.message()))
        })
        .collect();
    let mut entries = Vec::new();
    // The text behind a mistake may have been read otherwise than it was meant.
    let parsed = if faults.is_empty() { parsed.into_inner() } else { DeTable::new() };
    for (key, value) in &parsed {
        let (at, name) = (key.span().start, key.get_ref());
        let Some(setting) = table.iter().find(|setting| setting.name == *name) else {
            faults.push(fault(at, unknown(name, table)));
            continue;
        };
        match values_of(setting, value) {
            Ok(values) => entries.push(FileSetting { name: setting.name.clone(), values, line: line_of(at) }),
            Err(what) => faults.push(fault(at, what)),
        }
    }
    entries.sort_by_key(|entry| entry.line);
    faults.sort_by_key(|fault| fault.line);
    (entries, faults)
}

fn unknown(name: &str, table: &[Setting]) -> String {
    let given = excerpt(name, 60);
    if name == super::setting::CONFIG {
        return "config: a file cannot name another; give --config or MILLRACE_CONFIG".to_owned();
    }
    let likeness = |setting: &&Setting| (strsim::jaro_winkler(name, &setting.name) * 1000.0) as u32;
    match table.iter().max_by_key(likeness).filter(|nearest| likeness(nearest) > 700) {
        Some(nearest) => format!("{given}: there is no such setting; did you mean {}?", nearest.name),
        None => format!("{given}: there is no such setting; see: millrace config list"),
    }
}

fn values_of(setting: &Setting, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let name = &setting.name;
    match (setting.kind, value.get_ref()) {
        (SettingKind::Flag, DeValue::Boolean(value)) => Ok(vec![value.to_string()]),
        (SettingKind::Flag, _) => Err(format!("{name}: write true or false, without quotes")),
        (SettingKind::List { .. }, DeValue::Array(values)) if WITH_TABLES.contains(&&**name) => {
            values.iter().map(|value| table_or_one(name, value.get_ref())).collect()
        }
        (SettingKind::List { .. }, DeValue::Array(values)) => {
            values.iter().map(|value| one(name, value.get_ref())).collect()
        }
        (SettingKind::One, DeValue::Array(_)) => Err(format!("{name}: takes one value, not a list")),
        (_, value) => one(name, value).map(|value| vec![value]),
    }
}

/// A value as on the command line, or a table (`[[channel]]`), which becomes the JSON that the option takes too.
fn table_or_one(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    let DeValue::Table(table) = value else { return one(name, value) };
    // A semicolon would end the value: it separates values in the environment.
    Ok(table_json(name, table)?.to_string().replace(';', "\\u003b"))
}

/// Texts, lists of texts, and lists of tables of them (`[[channel.show]]`).
fn table_json(name: &str, table: &DeTable<'_>) -> Result<serde_json::Value, String> {
    let mut json = serde_json::Map::new();
    for (key, value) in table {
        let key = key.get_ref();
        let name = format!("{name}.{key}");
        let of_list = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::Table(table) => table_json(&name, table),
            value => one(&name, value).map(Into::into),
        };
        let value = match value.get_ref() {
            DeValue::Array(values) => values.iter().map(of_list).collect::<Result<Vec<_>, _>>()?.into(),
            value => one(&name, value)?.into(),
        };
        json.insert(key.clone().into_owned(), value);
    }
    Ok(json.into())
}

fn one(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        other => Err(format!("{name}: takes a text in quotes or a number, not a {}", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmds::settings::table;

    fn read(text: &str) -> (Vec<FileSetting>, Vec<Fault>) {
        parse(Path::new("m.toml"), text, &table())
    }

    fn faults(text: &str) -> Vec<String> {
        read(text).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_are_those_of_the_command_line() {
        let text = "# ours\ncache = \"4GiB\"\nengines = 2\ncpu = [0, 1]\nsmooth = true\nmax-damaged = '1%'\nfolders = \"/films\"\n";
        let (entries, faults) = read(text);
        assert_eq!(faults, []);
        let found: Vec<_> = entries.iter().map(|e| (&*e.name, e.values.join("|"), e.line)).collect();
        let expected = [
            ("cache", "4GiB", 2),
            ("engines", "2", 3),
            ("cpu", "0|1", 4),
            ("smooth", "true", 5),
            ("max-damaged", "1%", 6),
            ("folders", "/films", 7),
        ];
        assert_eq!(found, expected.map(|(name, values, line)| (name, values.to_owned(), line)));
    }

    #[test]
    fn table_of_channel_becomes_the_value_of_its_option() {
        let text = "[[channel]]\nname = \"a\"\nitems = [\"x; y\", 'z']\n\n[[channel]]\nname = \"b\"\nplaylist = \"b.m3u\"\n";
        let (entries, found) = read(text);
        assert_eq!((found.len(), entries.len(), entries[0].values.len()), (0, 1, 2));
        let value: serde_json::Value = serde_json::from_str(&entries[0].values[0]).unwrap();
        assert_eq!(value, serde_json::json!({"name": "a", "items": ["x; y", "z"]}));
        assert!(!entries[0].values[0].contains(';'), "it separates values");
        let show = "[[channel]]\nname = \"a\"\n[[channel.show]]\nat = \"20:15\"\nitems = [\"x;\"]\n";
        let value: serde_json::Value = serde_json::from_str(&read(show).0[0].values[0]).unwrap();
        assert_eq!(value["show"], serde_json::json!([{"at": "20:15", "items": ["x;"]}]));
        let (entries, _) = read("channel = [\"a=b.m3u\"]");
        assert_eq!(entries[0].values, ["a=b.m3u"]);
        let nested = faults("[[channel]]\nname = {}\n");
        assert!(nested[0].starts_with("m.toml:1: channel.name: takes a text"), "{nested:?}");
        let local = faults("[[channel]]\n[[channel.show]]\nat = 20:15:00\n");
        assert!(local[0].starts_with("m.toml:1: channel.show.at: takes a text"), "{local:?}");
    }

    #[test]
    fn parse_of_unknown_key_suggests_nearest_setting() {
        let found = faults("cache = \"1GiB\"\n\nmax_streams = 7\nsmoth = true\nqwxyz = 1\nconfig = \"x\"\n");
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found[0], "m.toml:3: max_streams: there is no such setting; did you mean max-streams?");
        assert_eq!(found[1], "m.toml:4: smoth: there is no such setting; did you mean smooth?");
        assert_eq!(found[2], "m.toml:5: qwxyz: there is no such setting; see: millrace config list");
        assert!(found[3].contains("cannot name another"), "{}", found[3]);
    }

    #[test]
    fn parse_of_wrong_value_type_returns_fault() {
        for (text, expected) in [
            ("smooth = \"yes\"", "m.toml:1: smooth: write true or false"),
            ("smooth = 1", "m.toml:1: smooth: write true or false"),
            ("cache = [\"1GiB\"]", "m.toml:1: cache: takes one value"),
            ("cache = true", "m.toml:1: cache: takes a text in quotes or a number, not a boolean"),
            ("engines = 0x2", "m.toml:1: engines: takes a text"),
            ("[cache]\nsize = 1", "m.toml:1: cache: takes a text in quotes or a number, not a table"),
            ("member = [[1]]", "m.toml:1: member: takes a text"),
            ("cache = 1979-05-27", "m.toml:1: cache: takes a text"),
            ("cache = \"1GiB\"\ncache = \"2GiB\"", "m.toml:2: this is not TOML: duplicate key"),
            ("a b", "m.toml:1: this is not TOML"),
        ] {
            let found = faults(text);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn parse_of_arbitrary_text_reports_valid_line_numbers() {
        const PIECES: [&str; 16] = [
            "cache", "smooth", "cpu", " = ", "\n", "\r\n", "\"4GiB\"", "[", "]", "true", "7", ",", "#", "'",
            "\"\"\"", ".",
        ];
        let table = table();
        bolero::check!().with_type::<Vec<(u8, char)>>().for_each(|words| {
            let piece = |(piece, letter): &(u8, char)| match PIECES.get(usize::from(*piece % 20)) {
                Some(piece) => (*piece).to_owned(),
                None => letter.to_string(),
            };
            let text: String = words.iter().map(piece).collect();
            let lines = text.lines().count().max(1);
            let (entries, faults) = parse(Path::new("m.toml"), &text, &table);
            assert!(entries.iter().all(|entry| (1..=lines).contains(&entry.line)));
            assert!(faults.iter().all(|fault| fault.line <= lines + 1));
        });
    }

    #[test]
    fn read_of_endless_file_stops_with_one_fault() {
        let (_, faults) = super::read(Path::new("/dev/zero"), &table());
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].to_string().starts_with("/dev/zero: the configuration cannot be read: it is longer")
        );
    }
}
