//! Sentences of RFCs that stand beside the code that implements them: whether they are in the text, and which requirements of RFC 9293
//! are implemented, tested or left out.
//!
//! A quote is a comment directly above its subject:
//!
//! ```text
//! //= RFC 9293 section 3.10.7.4
//! //= type=test                     (or type=exception and reason=...; neither: an implementation)
//! //# If the RCV.WND is zero, no segments will be acceptable
//! ```
//!
//! A packetdrill script (`.pkt`) is a test: its quotes are of tests without saying so.
//!
//! White space does not count. The texts are read from the folder that `MILLRACE_RFC_DIR` names, `rfc9293.txt` and so on.

mod quote;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use quote::{Quote, QuoteKind};
use text::Rfc;

use crate::tidy::Tree;

/// Where the texts are.
const DIR: &str = "MILLRACE_RFC_DIR";

/// The RFC whose requirements are listed one by one.
const LISTED: u32 = 9293;

/// Those of its requirements that have a number in its table and none in its text: sentences, without white space, that state them.
const UNMARKED: [(u32, &str); 1] = [(22, "SYNretransmissionsMUSTbehandledinthegeneralwayjustdescribed")];

/// The page that lists the requirements left out, for people: a table with rows that begin with
/// `| MUST-n`.
const LEFT_OUT_PAGE: &str = "docs/design/0033-tcp.md";

/// `cargo xtask rfc [--list]`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.iter().find(|arg| *arg != "--list") {
        return Err(format!("unknown option '{unknown}'; usage: rfc [--list]"));
    }
    let Some(dir) = std::env::var_os(DIR) else {
        println!("rfc: skipped: {DIR} does not name a folder with the texts (rfc{LISTED}.txt and others)");
        return Ok(());
    };
    let tree = Tree::of_workspace()?;
    let mut quotes = Vec::new();
    let mut findings = Vec::new();
    let may_quote =
        |path: &str| path.starts_with("crates/") && (path.ends_with(".rs") || quote::is_script(path));
    for file in tree.files.iter().filter(|file| may_quote(&file.path)) {
        quote::read(&file.path, &file.text, &mut quotes, &mut findings);
    }
    let texts = texts(Path::new(&dir), &quotes, &mut findings);
    let covered = compare(&quotes, &texts, &mut findings);
    print!("{}", sections(&quotes, !args.is_empty()));
    if let Some(listed) = texts.get(&LISTED).filter(|text| !text.is_empty()) {
        print!("{}", requirements(listed, &covered));
        let page = tree.files.iter().find(|file| file.path == LEFT_OUT_PAGE);
        check_page(page.map_or("", |page| &page.text), &covered, &mut findings);
    }
    if findings.is_empty() {
        println!("rfc: {} quotes, all in the texts", quotes.len());
        return Ok(());
    }
    Err(format!("{} findings\n{}", findings.len(), findings.join("\n")))
}

/// The texts that are quoted, and the one that is listed.
fn texts(dir: &Path, quotes: &[Quote], findings: &mut Vec<String>) -> BTreeMap<u32, Rfc> {
    let mut texts = BTreeMap::new();
    for number in quotes.iter().map(|quote| quote.rfc).chain([LISTED]) {
        if texts.contains_key(&number) {
            continue;
        }
        let path = dir.join(format!("rfc{number}.txt"));
        match std::fs::read_to_string(&path) {
            Ok(text) => drop(texts.insert(number, Rfc::new(&text))),
            Err(e) => {
                findings.push(format!("{}: {e}; put the text there, or quote without //#", path.display()));
                texts.insert(number, Rfc::new(""));
            }
        }
    }
    texts
}

/// Where each requirement is quoted, by its number.
type Covered<'a> = BTreeMap<u32, Vec<&'a Quote>>;

fn compare<'a>(quotes: &'a [Quote], texts: &BTreeMap<u32, Rfc>, findings: &mut Vec<String>) -> Covered<'a> {
    let mut covered = Covered::new();
    for quote in quotes {
        let Some(text) = texts.get(&quote.rfc).filter(|text| !text.is_empty()) else { continue };
        match text.find(&quote.section, &quote.text) {
            Ok(musts) if quote.rfc == LISTED => {
                let unmarked = UNMARKED.into_iter().filter(|(_, sentence)| quote.text.contains(sentence));
                let musts = musts.into_iter().chain(unmarked.map(|(must, _)| must));
                musts.for_each(|must| covered.entry(must).or_default().push(quote));
            }
            Ok(_) => {}
            Err(fault) => {
                findings
                    .push(format!("{}: {fault} (RFC {} section {})", quote.place, quote.rfc, quote.section));
            }
        }
    }
    covered
}

/// Checks that the page for people lists everything left out, and nothing else.
fn check_page(page: &str, covered: &Covered<'_>, findings: &mut Vec<String>) {
    let row = |line: &str| {
        let rest = line.strip_prefix("| MUST-")?;
        rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
    };
    let rows: Vec<u32> = page.lines().filter_map(row).collect();
    let is_left_out = |must: &u32| {
        let quotes = covered.get(must).map_or(&[][..], Vec::as_slice);
        !quotes.is_empty() && quotes.iter().all(|quote| quote.kind == QuoteKind::LeftOut)
    };
    for must in covered.keys().filter(|must| is_left_out(must) && !rows.contains(must)) {
        findings.push(format!(
            "{LEFT_OUT_PAGE}: MUST-{must} is left out; add a row '| MUST-{must}: ...' that says why"
        ));
    }
    for must in rows.iter().filter(|must| !is_left_out(must)) {
        findings.push(format!(
            "{LEFT_OUT_PAGE}: MUST-{must} has a row, but no quote of type=exception alone; remove one"
        ));
    }
}

/// How many quotes there are, by RFC; with their sections if `all` is wanted.
fn sections(quotes: &[Quote], all: bool) -> String {
    let mut counts: BTreeMap<(u32, &str), [usize; 3]> = BTreeMap::new();
    for quote in quotes {
        let section = if all { quote.section.as_str() } else { "" };
        counts.entry((quote.rfc, section)).or_default()[quote.kind as usize] += 1;
    }
    let line = |((rfc, section), [implemented, tested, left_out]): (&(u32, &str), &[usize; 3])| {
        let section = if section.is_empty() { String::new() } else { format!(" section {section}") };
        format!("RFC {rfc}{section}: {implemented} implemented, {tested} tested, {left_out} left out\n")
    };
    counts.iter().map(line).collect()
}

/// Returns each requirement of the listed RFC with its status, and the counts.
fn requirements(text: &Rfc, covered: &Covered<'_>) -> String {
    let mut out = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, feature) in text.musts() {
        let quotes = covered.get(&number).map_or(&[][..], Vec::as_slice);
        let places = |kind| {
            let of_kind = quotes.iter().filter(move |quote| quote.kind == kind);
            of_kind.map(|quote| quote.place.as_str()).collect::<Vec<_>>().join(", ")
        };
        let [implemented, tested, left_out] =
            [QuoteKind::Implemented, QuoteKind::Tested, QuoteKind::LeftOut].map(places);
        let state = match (implemented.is_empty(), tested.is_empty(), left_out.is_empty()) {
            (false, false, _) => "implemented and tested",
            (false, true, _) => "implemented, not tested",
            (true, _, false) => "left out",
            (true, false, true) => "tested only",
            (true, true, true) => "not quoted",
        };
        *counts.entry(state).or_default() += 1;
        let reasons = quotes.iter().filter_map(|quote| quote.reason.clone());
        let notes: Vec<String> = [implemented, tested, left_out]
            .into_iter()
            .filter(|places| !places.is_empty())
            .chain(reasons)
            .collect();
        out += format!("  MUST-{number:<3} {feature:<60} {state}: {}", notes.join("; "))
            .trim_end_matches([' ', ':']);
        out.push('\n');
    }
    let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    out + &format!("RFC {LISTED} appendix B: {}\n", counts.join(", "))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
