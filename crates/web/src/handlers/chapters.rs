//! The chapters of a title, in the JSON that players of HLS read (Apple, "Providing JavaScript
//! Object Notation (JSON) chapters").

use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_store::volume;
use millrace_store::volume::TitleInfo;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::Answer;
use crate::context::ServerContext;
use crate::subtitles::text;

/// A chapter; times are in seconds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Chapter {
    /// The first is 1.
    chapter: usize,
    start_time: f64,
    duration: f64,
    titles: Vec<ChapterTitle>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChapterTitle {
    /// RFC 5646: containers do not say it, so it is `und`.
    language: &'static str,
    title: String,
}

/// Address of the chapters of a title, from the root of this server. `owner` is the title that they
/// are kept with.
pub(super) fn address(name: &str, owner: &TitleInfo) -> Option<String> {
    (!owner.chapters.is_empty()).then(|| format!("/titles/{name}/chapters.json"))
}

/// `/titles/NAME/chapters.json`
pub(crate) fn answer(shared: &ServerContext, title: &TitleInfo) -> Answer {
    let owner = text::owner(&*shared.site, title);
    if owner.chapters.is_empty() {
        return Answer::error(404, "the title has no chapters");
    }
    Answer::json(&chapters(&owner))
}

/// A chapter without a name is called by its number.
fn chapters(owner: &TitleInfo) -> Vec<Chapter> {
    let seconds = |ticks: u64| ticks as f64 / MEDIA_HZ as f64;
    let ends = owner.chapters.iter().skip(1).map(|next| next.start).chain([owner.duration]);
    let chapter = |(number, (one, end)): (usize, (&volume::Chapter, MediaTicks))| {
        let title = if one.title.is_empty() { format!("Chapter {number}") } else { one.title.clone() };
        Chapter {
            chapter: number,
            start_time: seconds(one.start.0),
            duration: seconds(end.0.saturating_sub(one.start.0)),
            titles: vec![ChapterTitle { language: "und", title }],
        }
    };
    (1..).zip(owner.chapters.iter().zip(ends)).map(chapter).collect()
}
