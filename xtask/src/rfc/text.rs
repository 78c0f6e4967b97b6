//! The text of an RFC, without white space and page breaks, and where its sections begin.

/// How far behind a quote its sentence may go on: until there, the mark of a requirement belongs to it.
const LONGEST_REST: usize = 200;

/// One text.
pub(super) struct Rfc {
    text: String,
    headings: Vec<Heading>,
    /// Number and feature of each MUST in the table of requirements.
    musts: Vec<(u32, String)>,
}

struct Heading {
    /// `3.10.7.4`, or a letter for an appendix.
    number: String,
    /// Where it stands in the text.
    at: usize,
    is_at_margin: bool,
}

impl Rfc {
    pub(super) fn new(original: &str) -> Self {
        let (mut text, mut headings) = (String::new(), Vec::new());
        for line in original.lines().filter(|line| !is_page_break(line)) {
            if let Some(number) = heading(line) {
                headings.push(Heading { number, at: text.len(), is_at_margin: !line.starts_with(' ') });
            }
            text.extend(line.chars().filter(|c| !c.is_whitespace()));
        }
        Self { text, headings, musts: table(original) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// All MUSTs of the table of requirements, by number.
    pub(super) fn musts(&self) -> impl Iterator<Item = (u32, &str)> {
        self.musts.iter().map(|(number, feature)| (*number, feature.as_str()))
    }

    /// The numbers of the requirements that a quote is of; or why it cannot be.
    pub(super) fn find(&self, section: &str, quote: &str) -> Result<Vec<u32>, String> {
        let ranges = self.ranges(section);
        if ranges.is_empty() {
            return Err("there is no such section".into());
        }
        for (from, to) in ranges {
            if let Some(at) = self.text[from..to].find(quote) {
                let end = from + at + quote.len();
                // A dash begins a remark, which may name other requirements.
                let rest = self.text[end..].split("--").next().unwrap_or_default();
                let is_whole = quote.ends_with(['.', ':']);
                let rest =
                    if is_whole { 0 } else { rest.find('.').filter(|&at| at < LONGEST_REST).unwrap_or(0) };
                return Ok(marks(&self.text[from + at..end + rest]));
            }
        }
        Err("the quote is not in that section; copy it from the text".into())
    }

    /// Returns where a section and its content may be: a table of contents looks like headings too.
    fn ranges(&self, section: &str) -> Vec<(usize, usize)> {
        let is_section = |heading: &&Heading| heading.number == section;
        let at_margin = self.headings.iter().filter(is_section).any(|heading| heading.is_at_margin);
        // Headings are indented in old texts only.
        let counts = |heading: &&Heading| heading.is_at_margin || !at_margin;
        let inside = |number: &str| {
            number.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let end = |from: usize| {
            let mut behind = self.headings.iter().filter(counts).filter(|heading| heading.at > from);
            behind.find(|heading| !inside(&heading.number)).map_or(self.text.len(), |heading| heading.at)
        };
        let found = self.headings.iter().filter(counts).filter(is_section);
        found.map(|heading| (heading.at, end(heading.at))).collect()
    }
}

/// The header or the footer of a page.
fn is_page_break(line: &str) -> bool {
    let line = line.trim_end().trim_start_matches('\u{c}');
    let is_footer = line.ends_with(']') && line.contains("[Page ");
    // Names of authors need not be ASCII.
    let last = line.len().saturating_sub(4);
    let ends_in_year = line.len() > 40 && line.bytes().skip(last).all(|byte| byte.is_ascii_digit());
    is_footer || line.starts_with("RFC") && ends_in_year
}

/// The number of the section that a line is the heading of.
fn heading(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(rest) = line.strip_prefix("Appendix ") {
        let (letter, _) = rest.split_once(['.', ':'])?;
        return (letter.len() == 1).then(|| letter.to_owned());
    }
    let (number, title) = line.split_once(' ')?;
    let number = number.trim_end_matches('.');
    let is_number =
        number.split('.').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()));
    let is_title = title.trim_start().starts_with(char::is_alphabetic)
        && !title.contains("...")
        && !title.contains(". .");
    (is_number && is_title).then(|| number.to_owned())
}

/// The numbers of all `MUST-n` in a text.
fn marks(text: &str) -> Vec<u32> {
    let number = |(at, mark): (usize, &str)| {
        let digits = &text[at + mark.len()..];
        digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
    };
    text.match_indices("MUST-").filter_map(number).collect()
}

/// The rows of the table of requirements whose number is that of a MUST. A feature may go over several lines.
fn table(text: &str) -> Vec<(u32, String)> {
    let mut rows: Vec<(u32, String)> = Vec::new();
    let mut is_open = false;
    let lines = text.lines().skip_while(|line| !line.starts_with("Appendix B."));
    for line in lines.take_while(|line| !line.starts_with("Acknowledgments")) {
        let cells: Vec<&str> = line.trim().split('|').map(str::trim).collect();
        let [_, feature, id, _, ..] = cells[..] else {
            is_open = false;
            continue;
        };
        if id.is_empty() {
            if let Some((_, name)) = rows.last_mut().filter(|_| is_open) {
                name.push(' ');
                name.push_str(feature);
            }
            continue;
        }
        let number = id.strip_prefix("MUST-").and_then(|number| number.parse().ok());
        is_open = false;
        if let Some(number) = number.filter(|number| rows.iter().all(|(known, _)| known != number)) {
            rows.push((number, feature.trim_start_matches(['*', ' ']).to_owned()));
            is_open = true;
        }
    }
    rows.sort();
    rows
}
