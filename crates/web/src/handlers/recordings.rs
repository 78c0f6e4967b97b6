//! `/live/NAME/recording`: a live title is recorded as long as this is there.

use hyper::body::{Body, Bytes};

use super::rename::read_change;
use crate::answer::Answer;
use crate::context::{RoutedRequest, ServerContext};
use crate::route::{LIVE_PREFIX, RouteMatch};
use crate::site::{LiveRecording, RecordingRefusal, RecordingWish};

/// `PUT`: begins to record.
pub(crate) async fn start(
    routed: RoutedRequest<'_>,
    body: &mut (impl Body<Data = Bytes> + Unpin),
) -> Result<Answer, Answer> {
    routed.let_in().await?;
    if routed.shared.limits.upload_bytes == 0 {
        return Err(Answer::error(403, "this server takes no uploads, and so no recordings"));
    }
    let wish = wish(&read_change(body, "a display name has at most 512 bytes").await?)?;
    let name = source_of(routed.found);
    let started = routed.shared.reading(move |shared| Ok(shared.site.record_live(&name, wish))).await;
    let started = started.map_err(|error| Answer::error(500, &error.to_string()))?;
    let recording = started.map_err(|why| refusal(&why))?;
    Ok(Answer { status: 201, ..Answer::json(&recording) })
}

/// `DELETE`: the recording ends, and becomes a title.
pub(crate) fn stop(shared: &ServerContext, found: &RouteMatch) -> Answer {
    match shared.site.stop_recording(&source_of(found)) {
        Ok(recording) => Answer::json(&recording),
        Err(why) => refusal(&why),
    }
}

/// `GET`: the recording that is being made.
pub(crate) fn state(shared: &ServerContext, found: &RouteMatch) -> Answer {
    let name = source_of(found);
    let live = shared.site.live().into_iter().find(|live| live.name == name);
    let recording: Option<LiveRecording> = live.and_then(|live| live.recording);
    recording.map_or_else(|| refusal(&RecordingRefusal::NotRecorded), |recording| Answer::json(&recording))
}

fn source_of(found: &RouteMatch) -> String {
    found.name.strip_prefix(LIVE_PREFIX).unwrap_or(&found.name).to_owned()
}

/// An empty body wishes for nothing special.
fn wish(bytes: &[u8]) -> Result<RecordingWish, Answer> {
    if bytes.is_empty() {
        return Ok(RecordingWish::default());
    }
    let wish: RecordingWish = serde_json::from_slice(bytes).map_err(|error| {
        let example = "{\"title\": \"NAME\", \"for_s\": 3600}";
        Answer::error(400, &format!("the recording: {error}; send {example}, or nothing"))
    })?;
    if wish.for_s == Some(0) {
        return Err(Answer::error(400, "the recording: for_s is 0; send the seconds that it is to last"));
    }
    Ok(wish)
}

fn refusal(why: &RecordingRefusal) -> Answer {
    let status = match why {
        RecordingRefusal::NoSource | RecordingRefusal::NotRecorded => 404,
        RecordingRefusal::Busy => 409,
        RecordingRefusal::NoRoom(_) => 507,
    };
    Answer::error(status, &why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wish_for_recording_is_json_or_nothing() {
        assert_eq!(wish(b"").unwrap(), RecordingWish::default());
        let full = wish(br#"{"title": "News", "for_s": 90}"#).unwrap();
        assert_eq!(full, RecordingWish { title: Some("News".to_owned()), for_s: Some(90) });
        for bad in ["{", "7", r#"{"for_s": -1}"#, r#"{"for_s": 0}"#, r#"{"seconds": 5}"#, r#"{"title": 7}"#] {
            assert_eq!(wish(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }
}
