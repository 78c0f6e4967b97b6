//! `X-Millrace-FEC`: wishes in requests, grants in replies (`docs/ref/rtsp.md`).

use rtsp_types::HeaderName;

use super::server::header;
use crate::rtsp::{RtspRequest, target};
use crate::service::{FecMode, FecWish};

/// `X-Millrace-FEC`, in requests and replies.
pub(super) fn fec_header() -> HeaderName {
    HeaderName::from_static_str("X-Millrace-FEC").expect("the name is ASCII")
}

/// Returns the FEC that a SETUP or DESCRIBE requests: from the header, else from the query of its
/// URL.
pub(super) fn wish(request: &RtspRequest) -> FecWish {
    let named = header(request, &fec_header()).map(|value| value.trim().to_owned());
    let asked = named.or_else(|| target::query(request.request_uri()?, "fec"));
    match asked.map(|text| FecMode::parse(&text)) {
        None => FecWish::Silent,
        Some(None) => FecWish::Unclear,
        Some(Some(mode)) => FecWish::Mode(mode),
    }
}

/// Returns `off` with its reason, in header notation: the reason is quoted text, which a quotation
/// mark inside would end.
pub(super) fn off_because(why: impl ToString) -> String {
    format!("off;reason=\"{}\"", why.to_string().replace('"', "'"))
}
