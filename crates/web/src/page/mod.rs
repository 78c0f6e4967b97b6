//! The page at `/`: HTML, style and script of our own, inside the program. It asks no other host for anything, and its addresses are relative, so that it
//! can stand below any path of a proxy. Browsers without HLS of their own play with hls.js, which is inside the program too where it was built with it.

mod qr;

use hyper::body::Bytes;

use crate::answer::Answer;
use crate::conditions;
use crate::request::Request;

/// Permissions of the page: it may load from this server, and nothing else; `data:` is an empty
/// list that hls.js begins subtitles with. The script inserts titles and their names as text.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; media-src 'self' blob: data:; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// hls.js, compressed; empty in a program that was built without it (`scripts/npm.sh page`).
const HLS_JS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hls.js.gz"));

/// Whether this program was built with hls.js.
pub const HAS_HLS_JS: bool = !HLS_JS.is_empty();

/// The script: the player, its controls, pictures, chapters, the list of titles, folders, uploads.
const SCRIPT: &str = concat!(
    include_str!("page.js"),
    include_str!("controls.js"),
    include_str!("pictures.js"),
    include_str!("chapters.js"),
    include_str!("recording.js"),
    include_str!("remote.js"),
    include_str!("list.js"),
    include_str!("folders.js"),
    include_str!("upload.js")
);

pub(crate) use self::qr::answer as qr_code;

pub(crate) fn html() -> Answer {
    part("text/html; charset=utf-8", include_str!("page.html"))
        .with("Content-Security-Policy", POLICY)
        .with("Referrer-Policy", "no-referrer")
}

pub(crate) fn style() -> Answer {
    part("text/css; charset=utf-8", include_str!("page.css"))
}

pub(crate) fn script() -> Answer {
    part("text/javascript; charset=utf-8", SCRIPT)
}

pub(crate) fn icon() -> Answer {
    part("image/svg+xml", include_str!("icon.svg"))
}

/// hls.js: always compressed, because every program that could run it takes it so (RFC 9110 section 12.5.3 leaves that to the server).
pub(crate) fn player(request: &Request) -> Answer {
    // A gzip file ends with the CRC and the length of its content (RFC 1952 section 2.3).
    let Some((_, [a, b, c, d, ..])) = HLS_JS.split_last_chunk::<8>() else {
        return Answer::error(
            404,
            "this build of the server lacks hls.js; scripts/npm.sh page brings it, then build again",
        );
    };
    let tag = format!("\"hls-{:08x}-{}\"", u32::from_le_bytes([*a, *b, *c, *d]), HLS_JS.len());
    conditions::tagged(request, tag, || {
        Answer::kept("text/javascript; charset=utf-8", Bytes::from_static(HLS_JS))
            .with("Content-Encoding", "gzip")
    })
}

fn part(kind: &str, text: &'static str) -> Answer {
    Answer::kept(kind, Bytes::from_static(text.as_bytes())).with("Cache-Control", "no-cache")
}

#[cfg(test)]
mod tests {
    use super::{HLS_JS, SCRIPT};

    const PARTS: [&str; 3] = [include_str!("page.html"), include_str!("page.css"), SCRIPT];

    /// Size before the page can be used at all, and including its player.
    const MAX_BYTES: usize = 75_000;
    const MAX_BYTES_PLAYING: usize = 300_000;

    #[test]
    fn page_is_small_and_has_no_external_references() {
        let own = PARTS.iter().map(|part| part.len()).sum::<usize>();
        assert!(own < MAX_BYTES && own + HLS_JS.len() < MAX_BYTES_PLAYING, "{own}, {}", HLS_JS.len());
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
