//! A JSON value as text: one line per field, a table for a list of like objects.

use std::fmt;

use serde_json::{Map, Value};

/// Prints `value` below `depth` levels.
pub(super) fn render(f: &mut fmt::Formatter<'_>, value: &Value, depth: usize) -> fmt::Result {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| field(f, key, value, depth)),
        Value::Array(entries) => entries.iter().try_for_each(|entry| {
            render(f, entry, depth)?;
            writeln!(f)
        }),
        scalar => writeln!(f, "{}{}", indent(depth), plain(scalar)),
    }
}

fn field(f: &mut fmt::Formatter<'_>, key: &str, value: &Value, depth: usize) -> fmt::Result {
    let indent = indent(depth);
    match value {
        Value::Array(entries) if entries.iter().all(|e| !e.is_object() && !e.is_array()) => {
            let entries: Vec<String> = entries.iter().map(plain).collect();
            writeln!(f, "{indent}{key}: {}", entries.join(", "))
        }
        Value::Array(entries) => {
            writeln!(f, "{indent}{key}:")?;
            match flat_rows(entries) {
                Some(rows) => table(f, &rows, depth + 1),
                None => render(f, value, depth + 1),
            }
        }
        Value::Object(_) => {
            writeln!(f, "{indent}{key}:")?;
            render(f, value, depth + 1)
        }
        scalar => writeln!(f, "{indent}{key}: {}", plain(scalar)),
    }
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

/// A scalar without JSON's quotes; control characters stay escaped, so that no file's name can move the cursor.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if !text.chars().any(char::is_control) => text.clone(),
        other => other.to_string(),
    }
}

/// The entries, if all are objects of scalars only.
fn flat_rows(entries: &[Value]) -> Option<Vec<&Map<String, Value>>> {
    let flat = |row: &Map<String, Value>| row.values().all(|v| !v.is_object() && !v.is_array());
    entries.iter().map(|entry| entry.as_object().filter(|row| flat(row))).collect()
}

fn table(f: &mut fmt::Formatter<'_>, rows: &[&Map<String, Value>], depth: usize) -> fmt::Result {
    let mut columns: Vec<(&str, usize)> = Vec::new();
    for (key, value) in rows.iter().flat_map(|row| row.iter()) {
        let width = plain(value).chars().count();
        match columns.iter_mut().find(|(name, _)| name == key) {
            Some((_, widest)) => *widest = (*widest).max(width),
            None => columns.push((key, width.max(key.chars().count()))),
        }
    }
    let line = |f: &mut fmt::Formatter<'_>, cells: Vec<String>| {
        let cells: Vec<String> =
            cells.iter().zip(&columns).map(|(cell, (_, width))| format!("{cell:>width$}")).collect();
        writeln!(f, "{}{}", indent(depth), cells.join("  ").trim_end())
    };
    line(f, columns.iter().map(|(name, _)| (*name).to_owned()).collect())?;
    for row in rows {
        line(f, columns.iter().map(|(name, _)| row.get(*name).map(plain).unwrap_or_default()).collect())?;
    }
    Ok(())
}
