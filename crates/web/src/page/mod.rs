//! The page at `/`: HTML, style and script of our own, inside the program. It asks no other host for anything, and its addresses are relative, so that it
//! can stand below any path of a proxy.

use crate::answer::Answer;

/// What the page may do: load from here, and nothing else. Titles and their names are put in as text by the script.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; media-src 'self' blob:; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn html() -> Answer {
    file("text/html; charset=utf-8", include_str!("page.html"))
        .with("Content-Security-Policy", POLICY)
        .with("Referrer-Policy", "no-referrer")
}

pub(crate) fn style() -> Answer {
    file("text/css; charset=utf-8", include_str!("page.css"))
}

pub(crate) fn script() -> Answer {
    file("text/javascript; charset=utf-8", include_str!("page.js"))
}

fn file(kind: &str, text: &'static str) -> Answer {
    Answer::new(200, kind, text).with("Cache-Control", "no-cache")
}

#[cfg(test)]
mod tests {
    const PARTS: [&str; 3] = [include_str!("page.html"), include_str!("page.css"), include_str!("page.js")];

    #[test]
    fn it_is_small_and_asks_nobody_else() {
        assert!(PARTS.iter().map(|part| part.len()).sum::<usize>() < 40_000);
        for part in PARTS {
            assert!(
                !part.contains("//") || part.split("//").skip(1).all(|rest| rest.starts_with(' ')),
                "an address"
            );
        }
        // The policy forbids both, so that they would do nothing.
        assert!(!PARTS[0].contains("style=") && !PARTS[0].contains("onclick"));
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!PARTS[2].contains(way), "{way}: names of titles are put in as text");
        }
    }
}
