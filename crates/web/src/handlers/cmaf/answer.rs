//! Playlists, init segments and media segments, asked for.

use std::fmt::Display;
use std::sync::Arc;

use hyper::body::Bytes;
use millrace_core::time::MediaTicks;
use millrace_store::volume::TitleInfo;

use super::made;
use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::cmaf::{CmafPlan, CmafTrack, PlanError, boxes};
use crate::conditions::Version;
use crate::context::{RoutedRequest, ServerContext};
use crate::elementary::audio::Coding;
use crate::elementary::{Colour, Config};
use crate::failures::{not_made, not_planned, not_sent};
use crate::file::{content_tag, ranged, version_of};
use crate::hls::audio::{AudioGroup, AudioTier, AudioTrack, groups};
use crate::hls::master::{self, Still, StreamAttributes, Variant};
use crate::hls::playlist::{self as media, PlaylistContents, target_s};
use crate::hls::segments::CUTS;
use crate::hls::text::Text;
use crate::request::Method;
use crate::route::RouteMatch;
use crate::session;
use crate::site::{OrderedSegment, SiteError};

/// Version of the way that segments are made. It is part of their addresses: a change that makes
/// other segments of the same title must increment it, because everything with an address is kept
/// for ever.
const MAKE: u32 = 3;

/// The rules for segments, as they stand in addresses.
pub(crate) fn rules() -> String {
    format!("{CUTS}.{MAKE}")
}

/// Addresses of a title's playlists and pieces.
struct Addresses<'a> {
    /// Their common beginning.
    base: String,
    /// Suffix of the addresses with a signed link, so that the addresses in a playlist are equally
    /// valid.
    link: &'a str,
}

impl Addresses<'_> {
    fn of(&self, what: impl Display) -> String {
        format!("{}/{what}{}", self.base, self.link)
    }
}

/// Entries of a title's master playlist for fragmented MP4.
#[derive(Debug, Default)]
pub(crate) struct CmafMasterEntries {
    /// Each variant, with the name of the title it belongs to.
    pub(crate) variants: Vec<(String, Variant)>,
    pub(crate) groups: Vec<AudioGroup>,
    pub(crate) stills: Vec<Still>,
    /// Codecs of the audio, as the title has them.
    pub(crate) audio_codecs: Vec<&'static str>,
}

/// Lists a title and its other renditions as fragmented MP4.
///
/// `link` is the suffix that a signed link adds to its addresses.
///
/// # Errors
/// No rendition is suitable, or the title cannot be read.
pub(crate) async fn offered(
    shared: &Arc<ServerContext>,
    title: &TitleInfo,
    titles: &[TitleInfo],
    link: &str,
) -> Result<CmafMasterEntries, PlanError> {
    let mut entries = CmafMasterEntries::default();
    let mut why_not = "no such title";
    for other in titles {
        let plan = match made::planned(shared, other.id, &other.name).await {
            Ok(plan) => plan,
            // A rendition that was removed a moment ago.
            Err(PlanError::Site(SiteError::NoTitle)) if other.name != title.name => continue,
            Err(PlanError::Unsuitable(why)) => {
                why_not = why;
                continue;
            }
            Err(error) => return Err(error),
        };
        let base = match other.name == title.name {
            true => "cmaf".to_owned(),
            false => format!("../{}/cmaf", other.name),
        };
        let at = Addresses { base, link };
        // All renditions have the same audio, so only the audio of the best one is listed.
        if entries.variants.is_empty() {
            entries.audio_codecs =
                plan.tracks.iter().filter_map(|track| audio_codec(&track.config)).collect();
            entries.groups = audio_groups(&plan, other, &at);
        }
        let (variants, still) = described(&plan, &at, &entries.groups);
        entries.variants.extend(variants.into_iter().map(|variant| (other.name.clone(), variant)));
        entries.stills.extend(still);
    }
    if entries.variants.is_empty() { Err(PlanError::Unsuitable(why_not)) } else { Ok(entries) }
}

/// The codec of an audio track, as titles name it.
fn audio_codec(config: &Config) -> Option<&'static str> {
    let Config::Audio(audio) = config else { return None };
    Some(match audio.coding {
        Coding::Aac => "AAC",
        Coding::Ac3 => "AC-3",
        Coding::Eac3 => "E-AC-3",
    })
}

/// Groups the audio of a title. A title with a single track needs no group.
fn audio_groups(plan: &CmafPlan, title: &TitleInfo, at: &Addresses<'_>) -> Vec<AudioGroup> {
    if plan.tracks.len() == 1 {
        return Vec::new();
    }
    let track = |track: &CmafTrack| {
        let Config::Audio(config) = &track.config else { return None };
        let stream = title.streams.iter().find(|stream| stream.pid == track.pid);
        Some(AudioTrack {
            address: at.of(format_args!("{}.m3u8", track.pid)),
            tier: match config.coding {
                Coding::Aac => AudioTier::Aac,
                Coding::Ac3 => AudioTier::Ac3,
                Coding::Eac3 => AudioTier::Eac3,
            },
            codec: config.codec(),
            language: track.language.clone(),
            role: stream.and_then(|stream| stream.role),
            channels: config.channels,
        })
    };
    groups(&plan.tracks.iter().filter_map(track).collect::<Vec<_>>())
}

/// Returns the variants of a title, one for each audio group, and its still pictures.
fn described(plan: &CmafPlan, at: &Addresses<'_>, groups: &[AudioGroup]) -> (Vec<Variant>, Option<Still>) {
    let first = &plan.tracks[0];
    let listed = plan.listed(0);
    // Less than in the transport stream, by the size of its headers.
    let rates = master::rates(&listed, target_s(&listed), 0);
    let mut streams = StreamAttributes::default();
    let mut still = None;
    if let Config::Video(video) = &first.config {
        let resolution = (video.pictures.width, video.pictures.height);
        streams.resolution = Some(resolution);
        streams.frame_rate = video.pictures.frame_rate;
        streams.video_range = video.pictures.colour.and_then(Colour::video_range);
        still = Some(Still {
            address: at.of(format_args!("{}/stills.m3u8", first.pid)),
            // One picture of each segment is at most the segment.
            rate: rates.peak,
            codec: video.pictures.codec.clone(),
            resolution,
            video_range: streams.video_range,
        });
    }
    let variant = |address: String, codecs: Vec<String>, audio| Variant {
        address,
        rates,
        streams: StreamAttributes { codecs: Some(codecs.join(",")), ..streams.clone() },
        audio,
        subtitles: None,
        captions: None,
    };
    let pictures = |address| (address, vec![first.config.codec()]);
    let address = at.of(format_args!("{}.m3u8", first.pid));
    if groups.is_empty() {
        let (address, codecs) = pictures(address);
        return (vec![variant(address, codecs, None)], still);
    }
    let of_group = |group: &AudioGroup| {
        let (address, mut codecs) = match still {
            Some(_) => pictures(address.clone()),
            // A title without video lists its default audio as the variant.
            None => (group.members[0].address.clone(), Vec::new()),
        };
        codecs.extend(group.codecs.iter().cloned());
        variant(address, codecs, Some(group.id))
    };
    (groups.iter().map(of_group).collect(), still)
}

/// Returns the plan of a title that is available in this form.
pub(crate) async fn usable(shared: &Arc<ServerContext>, title: &TitleInfo) -> Result<Arc<CmafPlan>, Answer> {
    made::planned(shared, title.id, &title.name).await.map_err(|why| not_planned(&why))
}

fn track_of(plan: &CmafPlan, found: &RouteMatch) -> Result<usize, Answer> {
    let at = plan.tracks.iter().position(|track| track.pid == found.track);
    at.ok_or_else(|| Answer::error(404, "the title has no such track"))
}

/// `/titles/NAME/cmaf/TRACK.m3u8`, and `/titles/NAME/cmaf/TRACK/stills.m3u8` of pictures that stand alone.
pub(crate) async fn media_playlist(
    routed: RoutedRequest<'_>,
    title: &TitleInfo,
    link: &str,
    are_stills: bool,
) -> Result<Answer, Answer> {
    let plan = usable(routed.shared, title).await?;
    let track = track_of(&plan, routed.found)?;
    if are_stills && !matches!(plan.tracks[track].config, Config::Video(_)) {
        return Err(Answer::error(404, "only pictures have a playlist of those that stand alone"));
    }
    let write = || Text::with_link(list(&plan, title, track, link, are_stills), link);
    let text = match link.is_empty() {
        true => plan.playlists[track][usize::from(are_stills)].get_or_init(write).clone(),
        false => write(), // for its holder alone
    };
    Ok(text.answer(routed.request))
}

/// The text of a media playlist.
fn list(plan: &CmafPlan, title: &TitleInfo, track: usize, link: &str, are_stills: bool) -> String {
    let listed = plan.listed(track);
    let up = if are_stills { "../" } else { "" };
    let pid = plan.tracks[track].pid;
    let at = Addresses { base: format!("{up}{}/{pid}", version_of(title, rules())), link };
    let parts = plan.parts.iter().enumerate().filter(|(_, part)| part.tracks[track].is_some());
    let maps: Vec<_> = parts
        .map(|(number, part)| (part.segments.start as u64, at.of(format_args!("init-{number}.mp4"))))
        .collect();
    let source = PlaylistContents {
        segments: &listed,
        first: 0,
        discontinuities: 0,
        target_s: target_s(&listed),
        is_whole: true,
        began_unix_ms: None,
        are_independent: true,
        maps: &maps,
        are_pictures: are_stills,
    };
    let name = if are_stills { "still-" } else { "" };
    media::write(&source, |number| at.of(format_args!("{name}{number}.m4s")))
}

/// Which of a track's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrackFile {
    /// `init-NUMBER.mp4`: of a part of the title.
    Init,
    /// `NUMBER.m4s`
    Segment,
    /// `still-NUMBER.m4s`
    Still,
}

/// `/titles/NAME/cmaf/VERSION/TRACK/...`
pub(crate) async fn piece(
    routed: RoutedRequest<'_>,
    title: &TitleInfo,
    piece: TrackFile,
    seen: &SeenBy,
) -> Result<Answer, Answer> {
    let RoutedRequest { shared, request, found, source } = routed;
    if found.version != version_of(title, rules()) {
        return Err(Answer::error(404, "the title has other segments now: read its playlist again"));
    }
    let plan = usable(shared, title).await?;
    let track = track_of(&plan, found)?;
    let number = found.number;
    let count = if piece == TrackFile::Init { plan.parts.len() } else { plan.segments.len() };
    if number as usize >= count {
        return Err(Answer::error(404, "the title has no such segment"));
    }
    let mut sending = None;
    if piece == TrackFile::Segment && request.method == Method::Get {
        let at = MediaTicks(u64::try_from(plan.times[number as usize]).unwrap_or(0));
        let length = plan.segments[number as usize].duration;
        let session = session::session_of(request.query.as_deref());
        let segment = OrderedSegment { conn: source.id.conn, number, at, length, session };
        // The first track is the pictures, or the only sound.
        let sound = (track > 0).then(|| plan.tracks[track].rate);
        let counted = routed.may_fetch(title, seen, segment, sound).await;
        sending = Some(counted.map_err(|why| not_sent(&why))?);
    }
    let bytes = match piece {
        TrackFile::Init => {
            let of = plan.parts[number as usize].tracks[track].as_ref();
            let language = plan.tracks[track].language.as_deref();
            Ok(of.map(|of| Bytes::from(boxes::init(&of.config, language))))
        }
        TrackFile::Segment => {
            let all = made::segments(shared, title.id, &title.name, &plan, number).await;
            all.map(|all| all.get(track).filter(|bytes| !bytes.is_empty()).cloned())
        }
        TrackFile::Still if track == 0 => made::still(shared, &title.name, &plan, number).await,
        TrackFile::Still => Ok(None),
    };
    let bytes = bytes.map_err(|why| not_made(&why))?;
    let bytes = bytes.ok_or_else(|| Answer::error(404, "the track has no such segment"))?;
    let answer = answer_with(routed, title, piece, &plan.tracks[track].config, &bytes);
    Ok(sending.into_iter().fold(answer, |answer, sending| sending.with(answer)))
}

fn answer_with(
    RoutedRequest { request, found, .. }: RoutedRequest<'_>,
    title: &TitleInfo,
    piece: TrackFile,
    config: &Config,
    bytes: &Bytes,
) -> Answer {
    let content_type = match config {
        Config::Video(_) => "video/mp4",
        Config::Audio(_) => "audio/mp4",
    };
    let headers = vec![
        ("Content-Type", content_type.to_owned()),
        // The address names the content, so that this is so for ever.
        ("Cache-Control", "public, max-age=31536000, immutable".to_owned()),
    ];
    let (track, number) = (found.track, found.number);
    let tag = format!("\"{}-{CUTS}.{MAKE}-{piece:?}-{track}-{number}\"", content_tag(title));
    let version = Version { tag, made_unix_s: Some(title.added_unix_s) };
    ranged(request, &version, bytes.len() as u64, headers, |part| {
        // Within the bytes in memory.
        Body::Bytes(bytes.slice(part.start as usize..part.end as usize))
    })
}
