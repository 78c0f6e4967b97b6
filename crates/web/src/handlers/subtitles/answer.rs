//! Playlists and segments of subtitles, asked for; and what master playlists say of them.

use std::sync::Arc;

use hyper::body::Bytes;
use millrace_store::volume::{SubtitleTrack, TitleInfo};

use super::super::cmaf;
use super::cues::{page_cues, subtitled, text_cues};
use crate::answer::{Answer, Body};
use crate::cmaf::CmafPlan;
use crate::conditions::Version;
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::{failed, not_made};
use crate::file::{content_tag, ranged, version_of};
use crate::hls::language;
use crate::hls::master::Subtitles;
use crate::hls::playlist::{self as media, PlaylistContents, target_s};
use crate::hls::segments::{CUTS, MediaSegment};
use crate::hls::text::Text;
use crate::route::ResourceKind;
use crate::site::SiteError;
use crate::subtitles::text;
use crate::subtitles::title::{SubtitlePage, Subtitled};
use crate::subtitles::vtt::{self, StampOrigin, TimedText};

/// Version of the way that segments are made. It is part of their addresses: a change that makes
/// other segments of the same title must increment it, because everything with an address is kept
/// for ever.
const MAKE: u32 = 1;

/// The subtitles of a title for its master playlist; `below` is where their playlists are. `link` stands behind the addresses of a signed link.
pub(crate) async fn listed(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    below: &str,
    link: &str,
) -> Result<Vec<Subtitles>, SiteError> {
    let owner = text::owner(&*shared.site, title);
    let has_text = !owner.subtitles.is_empty();
    let Some(of) = subtitled(shared, title, has_text).await? else { return Ok(Vec::new()) };
    let mut list: Vec<Subtitles> = Vec::new();
    for (number, track) in text::tracks(&owner) {
        let mut name = text::name_of(track);
        let same = list.iter().filter(|other| other.name == name).count();
        if same > 0 {
            name = format!("{name} ({})", track.label);
        }
        list.push(Subtitles {
            address: format!("{below}subtitles/{number}.m3u8{link}"),
            name,
            language: track.label.language().map(str::to_owned),
            is_forced: track.label.is_forced,
            is_for_hearing_impaired: track.label.is_sdh,
        });
    }
    for SubtitlePage { number, language, is_for_hearing_impaired, .. } in &of.tracks {
        let kind = if *is_for_hearing_impaired { " (hearing impaired)" } else { "" };
        let spoken = language.as_deref().and_then(language::name);
        let mut name = format!("{}{kind}", spoken.as_deref().unwrap_or("Subtitles"));
        // Names in a group differ (section 4.3.4.1.1).
        if list.iter().any(|other| other.name == name) {
            name = format!("{name}, page {number}");
        }
        list.push(Subtitles {
            address: format!("{below}subtitles/{number}.m3u8{link}"),
            name,
            language: language.clone(),
            is_forced: false,
            is_for_hearing_impaired: *is_for_hearing_impaired,
        });
    }
    Ok(list)
}

/// The subtitle track that was requested.
#[derive(Clone, Copy)]
enum Chosen<'a> {
    /// A page of teletext, by its index among those of the title.
    Page(usize),
    /// Text stored with a title.
    Text(&'a TitleInfo, &'a SubtitleTrack),
}

/// Which segments the subtitles belong to, and what that changes.
struct Form {
    /// The rules for its segments, as they stand in addresses.
    rules: String,
    /// The plan of fragmented MP4.
    made: Option<Arc<CmafPlan>>,
}

impl Form {
    /// Those of transport streams, or of fragmented MP4.
    async fn of(shared: &Arc<ServerContext>, title: &TitleInfo, is_made: bool) -> Result<Self, Answer> {
        if !is_made {
            return Ok(Self { rules: format!("{CUTS}.{MAKE}"), made: None });
        }
        let made = cmaf::usable(shared, title).await?;
        Ok(Self { rules: format!("{}.{MAKE}", cmaf::rules()), made: Some(made) })
    }

    /// The segments as a playlist has them.
    fn segments(&self, of: &Subtitled) -> Vec<MediaSegment> {
        self.made.as_ref().map_or_else(|| of.segments.clone(), |plan| plan.listed(0))
    }
}

/// Answers for any of them.
pub(crate) async fn answer(
    routed: RoutedRequest<'_>,
    title: &TitleInfo,
    link: &str,
) -> Result<Answer, Answer> {
    let RoutedRequest { shared, request, found, .. } = routed;
    let owner = text::owner(&*shared.site, title);
    let of = subtitled(shared, title, !owner.subtitles.is_empty()).await.map_err(|error| failed(&error))?;
    let of = of.ok_or_else(|| Answer::error(404, "the title has no subtitles"))?;
    let page = of.tracks.iter().position(|track| track.number == found.track);
    let text = || text::tracks(&owner).find(|(number, _)| *number == found.track);
    let track = page.map(Chosen::Page).or_else(|| text().map(|(_, track)| Chosen::Text(&owner, track)));
    let track = track.ok_or_else(|| Answer::error(404, "the title has no such subtitles"))?;
    let kind = found.route.kind;
    let is_made = matches!(kind, ResourceKind::CmafSubtitles | ResourceKind::CmafSubtitleSegment);
    let mut form = Form::of(shared, title, is_made).await?;
    if let Chosen::Text(_, track) = &track {
        // The text can be replaced, and its segments then change.
        form.rules = format!("{}.{}", form.rules, text::version_of(track));
    }
    match kind {
        ResourceKind::Subtitles | ResourceKind::CmafSubtitles => {
            let text = list(title, &form.segments(&of), found.track, &form.rules, link);
            Ok(Text::with_link(text, link).answer(request))
        }
        _ => segment(routed, title, &of, track, &form).await,
    }
}

/// The media playlist of a track.
fn list(title: &TitleInfo, segments: &[MediaSegment], track: u16, rules: &str, link: &str) -> String {
    let version = version_of(title, rules);
    let source = PlaylistContents {
        segments,
        first: 0,
        discontinuities: 0,
        target_s: target_s(segments),
        is_whole: true,
        began_unix_ms: None,
        are_independent: true,
        maps: &[],
        are_pictures: false,
    };
    media::write(&source, |number| format!("{version}/{track}/{number}.vtt{link}"))
}

async fn segment(
    RoutedRequest { shared, request, found, .. }: RoutedRequest<'_>,
    title: &TitleInfo,
    of: &Arc<Subtitled>,
    track: Chosen<'_>,
    form: &Form,
) -> Result<Answer, Answer> {
    let rules = &form.rules;
    if found.version != version_of(title, rules) {
        return Err(Answer::error(404, "the title has other segments now: read its playlist again"));
    }
    let number = found.number as usize;
    if number >= of.segments.len() {
        return Err(Answer::error(404, "the title has no such segment"));
    }
    // When the segment is shown, how much later its content is than among time stamps, and the
    // mapping between the two.
    let (period, later, origin) = match &form.made {
        None => (of.time(number)..of.time(number + 1), 0, of.origin(number)),
        Some(plan) => {
            let byte = of.segments[number].bytes.start;
            let later = plan.timeline.about(byte) + plan.reorder - of.timeline.about(byte);
            let span = plan.span(0, number);
            let begins = plan.span(0, plan.parts[plan.part_of(number)].segments.start).start;
            let local = begins.max(0).cast_unsigned() / 90;
            (span.start - later..span.end - later, later, StampOrigin { local_ms: local, stamp: local * 90 })
        }
    };
    let cues = match track {
        Chosen::Page(page) => {
            let cues = page_cues(shared, title, of, page, number, period).await;
            cues.map(|cues| cues.into_iter().map(TimedText::from).collect())
        }
        Chosen::Text(owner, track) => text_cues(shared, owner, track, period).await,
    };
    let text = Bytes::from(vtt::write(&cues.map_err(|why| not_made(&why))?, later, origin));
    let headers = vec![
        ("Content-Type", vtt::VTT.to_owned()),
        // The address names the content, so that this is so for ever.
        ("Cache-Control", "public, max-age=31536000, immutable".to_owned()),
    ];
    let form = if form.made.is_some() { "cmaf" } else { "ts" };
    let tag = format!("\"{}-{rules}-{form}-subtitles-{}-{number}\"", content_tag(title), found.track);
    let version = Version { tag, made_unix_s: Some(title.added_unix_s) };
    Ok(ranged(request, &version, text.len() as u64, headers, |part| {
        // Within the bytes in memory.
        Body::Bytes(text.slice(part.start as usize..part.end as usize))
    }))
}
