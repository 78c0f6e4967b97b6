//! `/api/v1/reload`: has the server read its settings again (POST), and shows the outcome of the last time (GET).

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use crate::answer::{Answer, Failure};
use crate::context::{RoutedRequest, ServerContext};
use crate::handlers::rename::read_change;
use crate::limits::{RELOAD_WAIT, RETRY_AFTER_S};
use crate::reload::ReloadReport;

/// A reload that has changed nothing: an error like any other, with the report beside it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RefusedReload {
    #[serde(flatten)]
    failure: Failure,
    #[serde(flatten)]
    report: ReloadReport,
}

pub(crate) fn last(shared: &Arc<ServerContext>) -> Answer {
    Answer::json(&*shared.site.last_reload())
}

/// Answers when the settings have been read. If the client has gone by then, the outcome is dropped with this future.
pub(crate) async fn start(
    routed: RoutedRequest<'_>,
    body: impl Body<Data = Bytes> + Unpin,
) -> Result<Answer, Answer> {
    routed.let_in().await?;
    // A page of another site can send other types without asking first, and a browser adds the password that it knows.
    if !routed.request.fields.is_json() {
        return Err(Answer::error(415, "send Content-Type: application/json, without a body or with {}"));
    }
    let bytes = read_change(body, "a reload needs none").await?;
    if !matches!(bytes.trim_ascii(), b"" | b"{}") {
        return Err(Answer::error(400, "a reload takes no settings; change them in the configuration file"));
    }
    let later = |why: &str| Answer::error(503, why).with("Retry-After", RETRY_AFTER_S.to_string());
    let Some(reloaded) = routed.shared.site.reload() else {
        return Err(later("too many reloads are waiting already; send it again later"));
    };
    match timeout(RELOAD_WAIT, reloaded).await {
        Ok(Ok(report)) if report.faults.is_empty() => Ok(Answer::json(&*report)),
        Ok(Ok(report)) => Err(refused(&report)),
        Ok(Err(_)) => Err(Answer::error(503, "the server is ending")),
        Err(_) => Err(later(
            "the settings have not been read yet; check the disk of the configuration file and the log of the server",
        )),
    }
}

fn refused(report: &ReloadReport) -> Answer {
    const STATUS: u16 = 422;
    let message = format!("no setting was changed: {}", report.faults.join("; "));
    let whole = RefusedReload { failure: Failure::new(STATUS, &message), report: report.clone() };
    Answer { status: STATUS, ..Answer::json(&whole) }
}
