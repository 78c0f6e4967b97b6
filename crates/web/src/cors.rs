//! Access by pages of other sites (Fetch standard, CORS).

use crate::answer::Answer;
use crate::route::Route;

/// Methods that pages of other sites may use.
const SHARED_METHODS: &str = "GET, HEAD, OPTIONS";

/// Header fields of responses that scripts from elsewhere may read, beside those that they always may.
const EXPOSED: &str =
    "Accept-Ranges, Content-Length, Content-Range, Content-Type, Date, ETag, Last-Modified, Retry-After";

/// Returns the response to OPTIONS, for browsers that ask in advance (Fetch standard, CORS
/// preflight).
pub(crate) fn preflight(route: &Route) -> Answer {
    Answer::empty(204)
        .with("Allow", route.allow())
        .with("Access-Control-Allow-Methods", SHARED_METHODS)
        .with(
            "Access-Control-Allow-Headers",
            "Authorization, Range, If-Range, If-None-Match, If-Modified-Since",
        )
        .with("Access-Control-Max-Age", "86400")
}

/// Lets pages from elsewhere read it.
pub(crate) fn allow_all_origins(answer: Answer) -> Answer {
    answer.with("Access-Control-Allow-Origin", "*").with("Access-Control-Expose-Headers", EXPOSED)
}
