//! A title's poster, and the sheet of small pictures that players use to show where a seek would
//! lead: a JPEG, and a WebVTT file that gives the place of the picture for each time (`#xywh=`,
//! Media Fragments URI 1.0 section 4.2.2), as users of hls.js and other players know it.

use std::fmt::Write;
use std::sync::Arc;

use hyper::body::Bytes;
use millrace_core::limits::web::MEMORY_KEPT_PART;
use millrace_store::pictures::{About, Pictures};
use millrace_store::volume::TitleInfo;

use crate::answer::Answer;
use crate::conditions;
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::{exhausted, no_title};
use crate::limits::RETRY_AFTER_S;
use crate::making::NotMade;
use crate::memory::Exhausted;
use crate::route::ResourceKind;
use crate::site::PicturesState;
use crate::subtitles::vtt::time;

/// Answers for one of them. `link` stands behind the addresses that a viewer with a signed link is given.
pub(crate) async fn answer(routed: RoutedRequest<'_>, title: TitleInfo, link: &str) -> Answer {
    let RoutedRequest { shared, request, .. } = routed;
    let kind = routed.found.route.kind;
    if title.derived.is_some() {
        return Answer::error(404, "pictures are those of the title that this one was made of");
    }
    let about = match shared.site.pictures(&title) {
        PicturesState::Made(about) => about,
        PicturesState::Waiting => {
            return Answer::error(404, "the pictures of this title have not been made yet")
                .with("Retry-After", RETRY_AFTER_S.to_string());
        }
        PicturesState::Delayed(why) => {
            return Answer::error(404, &why).with("Retry-After", RETRY_AFTER_S.to_string());
        }
        PicturesState::Never(why) => return Answer::error(404, &why),
    };
    let (version, name) = (version(&about), title.name.clone());
    let vtt = (kind == ResourceKind::SpritesVtt).then(|| vtt(&about, link));
    let jpeg = match kind {
        ResourceKind::SpritesVtt => None,
        _ => match kept(shared, title, &about, kind).await {
            Ok(jpeg) => Some(jpeg),
            Err(NotMade::Full) => return exhausted(),
            Err(NotMade::Site(error)) => {
                tracing::debug!("{name}: its pictures cannot be read: {error}");
                return no_title();
            }
        },
    };
    // The list of a link is not that of others.
    let tag = format!("\"{version}-{}\"", if link.is_empty() { "all" } else { "link" });
    let mut answer = conditions::tagged(request, tag, || match (vtt, jpeg) {
        (Some(text), _) => Answer::new(200, "text/vtt; charset=utf-8", text),
        (None, jpeg) => Answer::kept("image/jpeg", jpeg.unwrap_or_default()),
    });
    let is_named = request
        .query
        .as_deref()
        .is_some_and(|query| query.split('&').any(|pair| pair == format!("v={version}")));
    if is_named {
        // Whatever has this address is this.
        for (_, value) in answer.headers.iter_mut().filter(|(name, _)| *name == "Cache-Control") {
            *value = "public, max-age=31536000, immutable".to_owned();
        }
    }
    answer
}

/// One of the two pictures, from the cache that all clients share.
async fn kept(
    shared: &Arc<ServerContext>,
    title: TitleInfo,
    about: &About,
    kind: ResourceKind,
) -> Result<Bytes, NotMade> {
    let is_poster = kind == ResourceKind::Poster;
    let cell = shared.pictures.cell((is_poster, about.blake3.clone()));
    let work = move |shared: &ServerContext| {
        let Pictures { poster, sheet, .. } = shared.site.read_pictures(&title)?;
        Ok(if is_poster { poster } else { sheet })
    };
    let read = async {
        let bytes = shared.reading(work).await?;
        let room = shared.room(bytes.len()).map_err(|Exhausted| NotMade::Full)?;
        Ok(room.over(bytes))
    };
    let found = cell.get_or_try_init(|| read).await.cloned();
    drop(cell);
    shared.pictures.trim(shared.memory.most() / MEMORY_KEPT_PART, Bytes::len);
    found
}

/// Returns the version that distinguishes these pictures from others of the same title.
fn version(about: &About) -> &str {
    about.blake3.get(..16).unwrap_or_default()
}

/// The addresses of poster and list, from the root of the server.
pub(crate) fn addresses(name: &str, about: &About) -> (String, String) {
    let version = version(about);
    (format!("/titles/{name}/poster.jpg?v={version}"), format!("/titles/{name}/sprites.vtt?v={version}"))
}

/// Returns the list that gives the picture for each time. The first picture also stands for all
/// times before it, the last for all after it.
fn vtt(about: &About, link: &str) -> String {
    let About { times_ms, duration_ms, tile: [width, height], columns, .. } = about;
    let more = link.replacen('?', "&", 1);
    let mut text = "WEBVTT\n".to_owned();
    for (number, _) in times_ms.iter().enumerate() {
        let from = if number == 0 { 0 } else { times_ms[number] };
        let to = times_ms.get(number + 1).copied().unwrap_or(*duration_ms).max(from + 1);
        let number = number as u32;
        let (x, y) = (number % columns * width, number / columns * height);
        // Writing into a text does not fail.
        let _ = write!(
            text,
            "\n{} --> {}\nsprites.jpg?v={}{more}#xywh={x},{y},{width},{height}\n",
            time(from),
            time(to),
            version(about)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> u64 {
        let parts: Vec<u64> = text.split([':', '.']).map(|part| part.parse().unwrap()).collect();
        ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + parts[3]
    }

    proptest! {
        /// Every time of the title has one picture, and each lies within the sheet, none on another.
        #[test]
        fn vtt_of_sprites_covers_title_within_sheet(
            steps in proptest::collection::vec(1u64..4_000_000, 1..=100), rest in 1u64..1_000_000, link in proptest::bool::ANY,
        ) {
            let times: Vec<u64> = steps.iter().scan(0, |at, step| { *at += step; Some(*at) }).collect();
            let duration = times.last().unwrap() + rest;
            let count = times.len() as u32;
            let about = Pictures::new(times, duration, vec![1], vec![2]).about;
            let text = vtt(&about, if link { "?until=5&sign=x" } else { "" });
            let mut lines = text.lines();
            prop_assert_eq!(lines.next(), Some("WEBVTT"));
            let rows = count.div_ceil(about.columns);
            let (mut at, mut places) = (0, std::collections::BTreeSet::new());
            while let Some(empty) = lines.next() {
                prop_assert_eq!(empty, "");
                let (from, to) = lines.next().unwrap().split_once(" --> ").unwrap();
                prop_assert_eq!(parse(from), at);
                at = parse(to);
                prop_assert!(at > parse(from));
                let (address, place) = lines.next().unwrap().split_once("#xywh=").unwrap();
                prop_assert!(address.starts_with("sprites.jpg?v=") && address.contains("&until=5&sign=x") == link);
                let place: Vec<u32> = place.split(',').map(|side| side.parse().unwrap()).collect();
                prop_assert!(place[0] + place[2] <= about.columns * about.tile[0] && place[1] + place[3] <= rows * about.tile[1]);
                prop_assert_eq!(&place[2..], &about.tile);
                prop_assert!(place[0].is_multiple_of(place[2]) && place[1].is_multiple_of(place[3]));
                prop_assert!(places.insert((place[1], place[0])), "two have one place");
            }
            prop_assert_eq!((at, places.len() as u32), (duration, count));
        }
    }
}
