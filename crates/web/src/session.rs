//! The session of a viewer in the query of an address, and in the entity tag of a playlist.

use millrace_core::ids::ViewerSession;

/// The name of the parameter.
const PARAMETER: &str = "session=";

/// The session that a query carries.
pub(crate) fn session_of(query: Option<&str>) -> Option<ViewerSession> {
    let mut parameters = query?.trim_start_matches('?').split('&');
    parameters.find_map(|pair| pair.strip_prefix(PARAMETER)).and_then(ViewerSession::parse)
}

/// The session in the entity tag of a playlist that the viewer has: a reload of an address without
/// a session goes on with the one that it was given.
pub(crate) fn session_of_tag(tags: Option<&str>) -> Option<ViewerSession> {
    let mut tags = tags?.split(',').filter_map(|tag| tag.trim().strip_suffix('"'));
    tags.find_map(|tag| ViewerSession::parse(tag.rsplit_once('-')?.1))
}

/// The same behind a signed link, or alone.
pub(crate) fn suffix(link: &str, session: ViewerSession) -> String {
    let mark = if link.is_empty() { '?' } else { '&' };
    format!("{link}{mark}{PARAMETER}{session}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00000000000000a1";

    #[test]
    fn session_is_found_beside_other_parameters() {
        let one = Some(ViewerSession(0xa1));
        for query in
            [format!("session={ONE}"), format!("until=1&sign=x&session={ONE}"), format!("session={ONE}&x")]
        {
            assert_eq!(session_of(Some(&query)), one, "{query}");
        }
        for query in
            ["", "session", "session=", "session=a1", "sessions=00000000000000a1", "session=00000000000000A1"]
        {
            assert_eq!(session_of(Some(query)), None, "{query}");
        }
        assert_eq!(session_of(None), None);
    }

    #[test]
    fn session_follows_signed_link() {
        let session = ViewerSession(0xa1);
        assert_eq!(suffix("", session), format!("?session={ONE}"));
        assert_eq!(suffix("?until=1&sign=x", session), format!("?until=1&sign=x&session={ONE}"));
        assert_eq!(session_of(Some(&suffix("?until=1&sign=x", session))), Some(session));
    }

    #[test]
    fn session_is_found_in_tag_of_playlist() {
        let tag = crate::hls::text::Text::with_link("text".to_owned(), &suffix("", ViewerSession(0xa1))).tag;
        assert_eq!(session_of_tag(Some(&tag)), Some(ViewerSession(0xa1)));
        assert_eq!(session_of_tag(Some(&format!("\"x\", W/{tag}"))), Some(ViewerSession(0xa1)));
        for tags in ["", "*", "\"0123456789abcdef\"", "\"x-1\""] {
            assert_eq!(session_of_tag(Some(tags)), None, "{tags}");
        }
    }
}
