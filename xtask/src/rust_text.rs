//! Just enough of Rust's lexical grammar to examine source text by rule: which parts are code and
//! which are comments, where tests and functions begin and end. It assumes that the text compiles
//! and is formatted by rustfmt.

use std::ops::Range;

/// Source text taken apart. Every string and comment is blanked out of `code`, everything but comments out of
/// `comments`; both keep the length and the line breaks of the original, so offsets and lines agree.
pub(crate) struct RustText {
    pub(crate) code: String,
    pub(crate) comments: String,
    line_starts: Vec<usize>,
    tests: Vec<Range<usize>>,
}

/// One function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// From the word `fn` to the closing brace.
    pub(crate) span: Range<usize>,
}

impl RustText {
    pub(crate) fn new(text: &str) -> Self {
        let (code, comments) = split(text);
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let tests = test_spans(&code);
        Self { code, comments, line_starts, tests }
    }

    /// Line of an offset, from 1.
    pub(crate) fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }

    /// Whether an offset lies in an item that only tests compile.
    pub(crate) fn in_test(&self, offset: usize) -> bool {
        self.tests.iter().any(|span| span.contains(&offset))
    }

    /// Lines that do not belong to tests.
    pub(crate) fn lines_without_tests(&self) -> usize {
        self.code.lines().zip(&self.line_starts).filter(|(_, start)| !self.in_test(**start)).count()
    }

    /// Offsets where `word` stands in code, not as a part of a longer identifier.
    pub(crate) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        words(&self.code, word)
    }

    /// All functions with a body, in order; nested ones too.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        for at in self.words("fn") {
            let rest = self.code[at + 2..].trim_start();
            let name: String = rest.chars().take_while(|&c| is_ident(c)).collect();
            // A type such as `fn(u8)` has no name.
            if name.is_empty() {
                continue;
            }
            if let Some(end) = body_end(&self.code, at) {
                found.push(Function { name, span: at..end });
            }
        }
        found
    }
}

fn is_ident(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Offsets of `word` in `text`, bounded on both sides by something that is not part of an identifier.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let starts = word.starts_with(is_ident);
        let ends = word.ends_with(is_ident);
        !(starts && before.is_some_and(is_ident) || ends && after.is_some_and(is_ident))
    })
}

/// Offset behind the brace that closes the item starting at `from`; `None` if it ends in a semicolon.
fn body_end(code: &str, from: usize) -> Option<usize> {
    let mut nesting = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => nesting += 1,
            b')' | b']' => nesting = nesting.saturating_sub(1),
            b';' if nesting == 0 => return None,
            b'{' if nesting == 0 => return matching_brace(code, at),
            _ => {}
        }
    }
    None
}

/// Offset behind the brace that closes the one at `open`.
pub(crate) fn matching_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// Items under `#[cfg(test)]` (alone or within `all`, `any`) or `#[test]`.
fn test_spans(code: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[") {
        if spans.last().is_some_and(|span| span.contains(&at)) {
            continue;
        }
        let Some(length) = code[at..].find(']') else { continue };
        let attribute = &code[at + 2..at + length];
        let is_cfg = attribute.starts_with("cfg(") && !attribute.contains("not(");
        if attribute != "test" && !(is_cfg && words(attribute, "test").next().is_some()) {
            continue;
        }
        let mut item = at + length + 1;
        // Further attributes belong to the item; their brackets must not be taken for its body.
        while code[item..].trim_start().starts_with("#[") {
            item += code[item..].find(']').map_or(0, |end| end + 1);
        }
        let semicolon = |from: usize| code[from..].find(';').map(|at| from + at + 1);
        let end = match body_end(code, item) {
            // `use a::{b, c};` goes on behind its brace.
            Some(brace) if code[brace..].trim_start().starts_with(';') => semicolon(brace),
            Some(brace) => Some(brace),
            None => semicolon(item),
        };
        spans.push(at..end.unwrap_or(code.len()));
    }
    spans
}

/// The token that the lexer is inside of.
enum Token {
    Code,
    Comment,
    Text,
}

/// Splits text into code and comments.
fn split(text: &str) -> (String, String) {
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (token, length) = next_token(text, at);
        let piece = &text[at..at + length];
        match token {
            Token::Code => {
                code += piece;
                blank(piece, &mut comments);
            }
            Token::Comment => {
                comments += piece;
                blank(piece, &mut code);
            }
            Token::Text => {
                blank(piece, &mut code);
                blank(piece, &mut comments);
            }
        }
        at += length;
    }
    (code, comments)
}

/// As many spaces as `piece` has bytes; line breaks stay.
fn blank(piece: &str, out: &mut String) {
    out.extend(piece.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
}

/// Kind and length in bytes of what begins at `at`.
fn next_token(text: &str, at: usize) -> (Token, usize) {
    let rest = &text[at..];
    if rest.starts_with("//") {
        return (Token::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Token::Comment, block_comment(rest));
    }
    if rest.starts_with('"') {
        return (Token::Text, quoted(rest, 0, '"'));
    }
    if let Some(length) = char_literal(rest) {
        return (Token::Text, length);
    }
    let behind_ident = text[..at].ends_with(is_ident);
    if !behind_ident && let Some(length) = prefixed_string(rest) {
        return (Token::Text, length);
    }
    (Token::Code, rest.chars().next().map_or(1, char::len_utf8))
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0usize, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

/// Length up to and with the closing `quote`, of a literal that opens at `open`.
fn quoted(rest: &str, open: usize, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip_while(|&(at, _)| at <= open) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// `'x'` and `'\n'` but not the lifetime `'x`.
fn char_literal(rest: &str) -> Option<usize> {
    let mut chars = rest.strip_prefix('\'')?.chars();
    let first = chars.next()?;
    if first == '\\' {
        return Some(quoted(rest, 0, '\''));
    }
    (chars.next()? == '\'').then(|| 2 + first.len_utf8())
}

/// `b".."`, `c".."`, `b'x'`, `r".."`, `br#".."#` and the like.
fn prefixed_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"].into_iter().find(|p| rest.starts_with(p))?;
    let behind = &rest[prefix.len()..];
    if !prefix.ends_with('r') {
        return match behind.chars().next()? {
            '"' => Some(quoted(rest, prefix.len(), '"')),
            '\'' => char_literal(behind).map(|length| prefix.len() + length),
            _ => None,
        };
    }
    let hashes = behind.bytes().take_while(|&b| b == b'#').count();
    let body = behind[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(body.len(), |at| at + close.len());
    Some(prefix.len() + hashes + 1 + end)
}

#[cfg(test)]
#[path = "rust_text_tests.rs"]
mod tests;
