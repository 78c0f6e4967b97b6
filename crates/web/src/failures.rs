//! Error responses for titles, memory and delivery.

use crate::answer::Answer;
use crate::cmaf::PlanError;
use crate::cors;
use crate::limits::RETRY_AFTER_S;
use crate::making::NotMade;
use crate::site::{DeliveryRefusal, SiteError};

pub(crate) fn no_title() -> Answer {
    Answer::error(404, "no such title")
}

/// Returns the response if a title cannot be read; only the log has the reason.
pub(crate) fn failed(error: &SiteError) -> Answer {
    match error {
        SiteError::NoTitle => no_title(),
        SiteError::Coming(how_far) => not_sent(&DeliveryRefusal::Full(how_far.clone())),
        SiteError::Unreadable(why) => {
            tracing::debug!(%why, "HTTP: a title cannot be read");
            Answer::error(500, "the title cannot be read at the moment")
        }
    }
}

/// Returns the response if a result could not be made.
pub(crate) fn not_made(why: &NotMade) -> Answer {
    match why {
        NotMade::Full => exhausted(),
        NotMade::Site(error) => failed(error),
    }
}

/// Returns the response if a title has no plan for fragmented MP4.
pub(crate) fn not_planned(why: &PlanError) -> Answer {
    match why {
        PlanError::Unsuitable(why) => Answer::error(404, why),
        PlanError::Site(error) => failed(error),
    }
}

/// The answer if there is no memory for the response.
pub(crate) fn exhausted() -> Answer {
    not_sent(&DeliveryRefusal::Full(
        "too many responses are waiting to be taken by their clients (--web-memory)".to_owned(),
    ))
}

/// The answer to a client that has too many requests under way through a proxy.
pub(crate) fn crowded() -> Answer {
    not_sent(&DeliveryRefusal::Full(
        "too many requests of this address are under way (--max-connections-per-address)".to_owned(),
    ))
}

/// Returns the response to a viewer whose media was not sent.
pub(crate) fn refusal(why: &DeliveryRefusal) -> Answer {
    cors::allow_all_origins(not_sent(why)).with("X-Content-Type-Options", "nosniff")
}

/// Returns the same without the header fields added to every answer.
pub(crate) fn not_sent(why: &DeliveryRefusal) -> Answer {
    match why {
        DeliveryRefusal::Full(what) => {
            Answer::error(503, what).with("Retry-After", RETRY_AFTER_S.to_string())
        }
        DeliveryRefusal::Gone => no_title(),
        DeliveryRefusal::Broken(what) => Answer::error(500, what),
    }
}
