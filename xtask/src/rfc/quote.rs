//! Quotes in source text.

/// The kind of code that a quote stands beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuoteKind {
    Implemented,
    Tested,
    LeftOut,
}

/// A sentence, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quote {
    pub(super) rfc: u32,
    /// `3.10.7.4`
    pub(super) section: String,
    pub(super) kind: QuoteKind,
    /// Why it is left out.
    pub(super) reason: Option<String>,
    /// Without white space.
    pub(super) text: String,
    /// File and line.
    pub(super) place: String,
}

/// Whether a file is a packetdrill script.
pub(super) fn is_script(path: &str) -> bool {
    path.ends_with(".pkt")
}

/// Reads the quotes of a file; reports faults in their form.
pub(super) fn read(path: &str, text: &str, quotes: &mut Vec<Quote>, findings: &mut Vec<String>) {
    let mut open: Option<Quote> = None;
    for (number, line) in text.lines().map(str::trim_start).enumerate() {
        let place = format!("{path}:{}", number + 1);
        if let Some(quoted) = line.strip_prefix("//#") {
            match &mut open {
                Some(quote) => quote.text.extend(quoted.chars().filter(|c| !c.is_whitespace())),
                None => findings
                    .push(format!("{place}: a quote without a source; put //= RFC n section m above it")),
            }
            continue;
        }
        let Some(rest) = line.strip_prefix("//=").map(str::trim) else {
            close(open.take(), quotes, findings);
            continue;
        };
        if rest.starts_with("RFC") {
            close(open.take(), quotes, findings);
            match source(rest) {
                Some((rfc, section)) => {
                    let kind = if is_script(path) { QuoteKind::Tested } else { QuoteKind::Implemented };
                    let text = String::new();
                    open = Some(Quote { rfc, section, kind, reason: None, text, place });
                }
                None => findings.push(format!("{place}: '{rest}' is not of the form RFC n section m")),
            }
            continue;
        }
        let Some(quote) = open.as_mut().filter(|quote| quote.text.is_empty()) else {
            findings.push(format!("{place}: '{rest}' does not stand between a source and its quote"));
            continue;
        };
        match rest.split_once('=') {
            Some(("type", "test")) => quote.kind = QuoteKind::Tested,
            Some(("type", "exception")) => quote.kind = QuoteKind::LeftOut,
            Some(("reason", reason)) => quote.reason = Some(reason.to_owned()),
            _ => findings
                .push(format!("{place}: '{rest}' is neither type=test, type=exception nor reason=...")),
        }
    }
    close(open, quotes, findings);
}

/// RFC and section.
fn source(text: &str) -> Option<(u32, String)> {
    let (number, section) = text.strip_prefix("RFC")?.split_once("section")?;
    let section = section.trim();
    let is_section = !section.is_empty() && section.chars().all(|c| c.is_ascii_alphanumeric() || c == '.');
    is_section.then_some((number.trim().parse().ok()?, section.trim_end_matches('.').to_owned()))
}

fn close(quote: Option<Quote>, quotes: &mut Vec<Quote>, findings: &mut Vec<String>) {
    let Some(quote) = quote else { return };
    if quote.text.is_empty() {
        findings.push(format!(
            "{}: a source without a quote; add //# lines, or make it a plain comment",
            quote.place
        ));
    } else if quote.kind == QuoteKind::LeftOut && quote.reason.is_none() {
        findings.push(format!("{}: left out without a reason; add //= reason=...", quote.place));
    } else {
        quotes.push(quote);
    }
}
