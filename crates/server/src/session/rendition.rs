//! Renditions in requests and replies (`docs/ref/rtsp.md`): `?rendition=` in a URL, the parameter
//! `rendition`, and the reply to a change.

use rtsp_types::HeaderName;

use crate::rtsp::RtspRequest;
use crate::rtsp::range::npt;
use crate::service::{Begins, Change, Refusal, Rendition, RenditionWish};

/// `X-Millrace-Rendition`, in replies.
pub(super) fn rendition_header() -> HeaderName {
    HeaderName::from_static_str("X-Millrace-Rendition").expect("the name is ASCII")
}

/// Returns the rendition that the URL of a SETUP or DESCRIBE requests.
pub(super) fn wish(request: &RtspRequest) -> Option<RenditionWish> {
    let (_, value) = request.request_uri()?.query_pairs().find(|(name, _)| name == "rendition")?;
    Some(RenditionWish::parse(&value))
}

/// Returns the requested rendition as a description repeats it, so that SETUP requests it too.
///
/// # Errors
/// There is no such rendition.
pub(super) fn described(wish: &RenditionWish, there: &[Rendition]) -> Result<String, Refusal> {
    match wish {
        _ if there.is_empty() => Err(Refusal::NoRenditions),
        RenditionWish::Auto => Ok("auto".to_owned()),
        RenditionWish::Named(name) => match there.iter().find(|rendition| rendition.name.as_str() == name) {
            Some(rendition) => Ok(rendition.name.to_string()),
            None => Err(Refusal::no_rendition(there)),
        },
    }
}

/// Formats a change for a header.
pub(super) fn told(change: &Change) -> String {
    let to = change.to;
    match change.begins {
        Begins::Now => to.to_string(),
        Begins::At(time) => format!("{to};npt={}", npt(time)),
        Begins::Next => format!("{to};after=change"),
        Begins::WithPlay => format!("{to};after=play"),
    }
}
