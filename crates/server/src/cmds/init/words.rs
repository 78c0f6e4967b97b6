//! Words of a command line: quoted for a shell, and read as a person types them where no shell reads them first.

use std::path::{Path, PathBuf};

/// A word as a POSIX shell has to read it. Plain words stay as they are.
pub(super) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,%=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        // Nothing is special between single quotes but their end.
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A command that can be pasted into a shell.
pub(super) fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

/// A path as it is typed at a prompt: paired quotes are removed and `~` is replaced by `home`, as a shell would do.
///
/// # Errors
/// If it begins with an expansion that only a shell has: taken literally, it would name a directory below this one.
pub(super) fn typed_path(text: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    let is_paired = |quote: &char| text.len() > 1 && text.starts_with(*quote) && text.ends_with(*quote);
    let text = match ['"', '\''].iter().any(is_paired) {
        true => &text[1..text.len() - 1],
        false => text,
    };
    if text.starts_with('$') {
        return Err(format!("{text}: variables are not replaced here; type the whole path, from /"));
    }
    let Some(rest) = text.strip_prefix('~') else { return Ok(PathBuf::from(text)) };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err(format!(
            "{text}: home directories of other users are not known here; type the whole path, from /"
        ));
    }
    let home = home.ok_or_else(|| format!("{text}: $HOME is not set; type the whole path, from /"))?;
    // `join` of a path that begins with a slash would drop the home directory.
    let rest = rest.trim_start_matches('/');
    Ok(if rest.is_empty() { home.to_path_buf() } else { home.join(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_read_back_by_the_shell() {
        for word in ["", "/a b", "it's", "$HOME", "a\"b", "*", "~", "a\\b", "`x`", "two\nlines", "é", "-x=1"]
        {
            let script = format!("printf %s {}", shell_word(word));
            let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(done.stdout).unwrap(), word, "{script}");
        }
        assert_eq!(shell_word("/etc/millrace.toml"), "/etc/millrace.toml");
    }

    #[test]
    fn typed_path_has_tilde_and_quotes_replaced() {
        let home = Some(Path::new("/home/anna"));
        for (text, path) in [
            ("~", "/home/anna"),
            ("~/", "/home/anna"),
            ("~/films", "/home/anna/films"),
            ("~//films", "/home/anna/films"),
            ("\"/a b\"", "/a b"),
            ("'/a b'", "/a b"),
            ("\"~/a b\"", "/home/anna/a b"),
            ("/a/~/b", "/a/~/b"),
            ("\"", "\""),
            ("/a'", "/a'"),
        ] {
            assert_eq!(typed_path(text, home), Ok(PathBuf::from(path)), "{text}");
        }
    }

    #[test]
    fn typed_path_with_other_expansions_is_refused() {
        for text in ["$HOME/films", "\"$HOME/films\"", "~other/x", "~other"] {
            let error = typed_path(text, Some(Path::new("/home/anna"))).unwrap_err();
            assert!(error.ends_with("type the whole path, from /"), "{error}");
        }
        assert!(typed_path("~/x", None).unwrap_err().contains("$HOME is not set"));
    }
}
