//! Text into events.

use super::script::{Action, Call, Event, Expr, Script, When};
use super::segment;
use super::text::{Fault, Text};

/// Reads a script.
pub(crate) fn parse(text: &str) -> Result<Script, Fault> {
    let mut script = Script::default();
    let text = &mut Text::new(text);
    while text.take("--") {
        let name = text.word().to_owned();
        text.expect("=")?;
        script.options.push((name, text.take_while(|c| !c.is_whitespace()).to_owned()));
    }
    while text.take("`") {
        let line = text.line();
        script.init.push((line, text.take_until("`")?.to_owned()));
    }
    while !text.is_at_end()? {
        // A command behind the last event has no time of its own.
        let when = if text.rest().starts_with('`') { When::After(0) } else { when(text)? };
        let until = if text.take("...") { Some(text.seconds()?) } else { None };
        text.skip()?;
        let line = text.line();
        let action = action(text, until)?;
        if until.is_some() && !matches!(action, Action::Call(_)) {
            return Err(Fault { line, what: "only a system call can block (...)".into() });
        }
        script.events.push(Event { line, when, action });
    }
    Ok(script)
}

fn when(text: &mut Text<'_>) -> Result<When, Fault> {
    if text.take("*") {
        return Ok(When::Any);
    }
    let is_relative = text.take("+");
    let from = text.seconds()?;
    if !text.take("~") {
        return Ok(if is_relative { When::After(from) } else { When::At(from) });
    }
    if text.take("+") != is_relative {
        return Err(text.fault("both ends of a range have a '+', or none"));
    }
    let to = text.seconds()?;
    if to < from {
        return Err(text.fault("a range ends before it begins"));
    }
    Ok(if is_relative { When::AfterWithin(from, to) } else { When::Within(from, to) })
}

fn action(text: &mut Text<'_>, until: Option<i64>) -> Result<Action, Fault> {
    if text.take("<") {
        return Ok(Action::Arrives(segment::parse(text, true)?));
    }
    if text.take(">") {
        return Ok(Action::Leaves(segment::parse(text, false)?));
    }
    if text.take("`") {
        return Ok(Action::Shell(text.take_until("`")?.to_owned()));
    }
    if text.take("%{") {
        return Ok(Action::Python(text.take_until("}%")?.trim().to_owned()));
    }
    call(text, until).map(Action::Call)
}

fn call(text: &mut Text<'_>, until: Option<i64>) -> Result<Call, Fault> {
    let name = text.word().to_owned();
    if name.is_empty() {
        return Err(text.fault("neither a segment (< or >) nor a system call, a `command` or a %{ block }%"));
    }
    text.expect("(")?;
    let args = list(text, ")")?;
    text.expect("=")?;
    let result = if text.take("...") { 0 } else { text.number()? };
    let mut errno = None;
    text.skip()?;
    if text.rest().starts_with('E') {
        errno = Some(text.word().to_owned());
    }
    // Its meaning, for people.
    if text.take("(") {
        text.take_until(")")?;
    }
    Ok(Call { name, args, result, errno, until })
}

/// Expressions with commas between them, up to `end`.
fn list(text: &mut Text<'_>, end: &str) -> Result<Vec<Expr>, Fault> {
    let mut items = Vec::new();
    while !text.take(end) {
        if !items.is_empty() {
            text.expect(",")?;
        }
        items.push(expr(text)?);
    }
    Ok(items)
}

fn expr(text: &mut Text<'_>) -> Result<Expr, Fault> {
    if text.take("...") {
        return Ok(Expr::Anything);
    }
    if text.take("[") {
        return list(text, "]").map(Expr::List);
    }
    if text.take("{") {
        return fields(text);
    }
    if text.take("\"") {
        return Ok(Expr::Text(text.take_until("\"")?.to_owned()));
    }
    text.skip()?;
    if text.rest().starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return text.number().map(Expr::Number);
    }
    let name = text.word().to_owned();
    if name.is_empty() {
        return Err(text.fault("an argument is missing"));
    }
    if text.take("(") {
        return Ok(Expr::Function(name, list(text, ")")?));
    }
    let mut names = vec![name];
    while text.take("|") {
        names.push(text.word().to_owned());
    }
    Ok(Expr::Names(names))
}

/// Behind a `{`: items, or items with names.
fn fields(text: &mut Text<'_>) -> Result<Expr, Fault> {
    let (mut items, mut named) = (Vec::new(), Vec::new());
    while !text.take("}") {
        if !items.is_empty() || !named.is_empty() {
            text.expect(",")?;
        }
        let key = expr(text)?;
        if !text.take("=") {
            items.push(key);
            continue;
        }
        match key {
            Expr::Names(mut names) if names.len() == 1 => named.push((names.remove(0), expr(text)?)),
            Expr::Function(name, _) => named.push((name, expr(text)?)),
            other => return Err(text.fault(format!("{other:?} is no name of a field"))),
        }
    }
    match (items.is_empty(), named.is_empty()) {
        (_, true) => Ok(Expr::List(items)),
        (true, false) => Ok(Expr::Fields(named)),
        (false, false) => Err(text.fault("fields with and without names")),
    }
}
