//! Master playlists: chooses the forms in which a title is offered, so that every player finds
//! video and audio that it can play.

use std::sync::Arc;

use millrace_store::volume::{ElementaryStream, TitleInfo};

use super::cmaf::{self, CmafMasterEntries};
use super::subtitles;
use crate::answer::Answer;
use crate::cmaf::PlanError;
use crate::context::ServerContext;
use crate::failures::not_planned;
use crate::hls::codecs::{Named, is_audio};
use crate::hls::master::{self, Beside, SubtitleGroup, Variant};
use crate::hls::text::Text;
use crate::request::Request;
use crate::site::SiteError;
use crate::subtitles::text::owner;

/// The master playlist that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MasterForm {
    /// `index.m3u8`: the most widely played form, and the other form for audio that it lacks.
    Any,
    /// `cmaf.m3u8`: fragmented MP4, and transport streams for audio that it lacks.
    Made,
}

/// Subtitle groups. If transport streams are listed after fragmented MP4, they need a group of
/// their own, because their times differ.
const SUBTITLES: &str = "subtitles";
const STORED_SUBTITLES: &str = "subtitles-ts";

/// Whether browsers play a title as a transport stream. Browsers with Media Source Extensions play
/// H.264 there, with the first audio that is AAC in ADTS or MPEG audio, or with AC-3; they fail at
/// E-AC-3 of stream type 0x87. Native players take the first audio, which must not be an audio
/// description.
pub(crate) fn browsers_play_stored(streams: &[ElementaryStream]) -> bool {
    let is_first_plain =
        streams.iter().find(|stream| is_audio(&stream.codec)).is_none_or(|stream| stream.role.is_none());
    let has_aac = streams.iter().any(|stream| stream.codec == "AAC");
    let taken = streams.iter().find(|stream| matches!(stream.stream_type, 0x03 | 0x04 | 0x0f));
    let takes_what_it_plays =
        !has_aac || taken.is_some_and(|stream| matches!(&stream.codec[..], "AAC" | "MP3"));
    is_first_plain
        && takes_what_it_plays
        && !streams.iter().any(|stream| matches!(&stream.codec[..], "H.265" | "E-AC-3"))
}

/// Audio codecs of a title that its fragmented MP4 lacks.
fn lacking<'a>(title: &'a TitleInfo, made: &CmafMasterEntries) -> Vec<&'a str> {
    let audio = title.streams.iter().map(|stream| &stream.codec[..]).filter(|codec| is_audio(codec));
    audio.filter(|codec| !made.audio_codecs.contains(codec)).collect()
}

/// `/titles/NAME/index.m3u8` and `/titles/NAME/cmaf.m3u8`
///
/// `link` is the suffix that a signed link adds to its addresses; the addresses in the playlist get
/// it too, so that they grant the same access.
pub(crate) async fn master_playlist(
    shared: &Arc<ServerContext>,
    request: &Request,
    title: TitleInfo,
    wanted: MasterForm,
    link: &str,
) -> Answer {
    match text(shared, title, wanted, link).await {
        Ok(text) => text.answer(request),
        Err(why) => not_planned(&why),
    }
}

/// Returns the text, or why the title is not available in the requested form.
async fn text(
    shared: &Arc<ServerContext>,
    title: TitleInfo,
    wanted: MasterForm,
    link: &str,
) -> Result<Text, PlanError> {
    let mut titles = shared.site.renditions(&title.name);
    if titles.is_empty() {
        titles.push(title.clone());
    }
    let mut made = None;
    // Other forms are made of the whole title, and so of a complete one.
    if !title.is_growing() && (wanted == MasterForm::Made || !browsers_play_stored(&title.streams)) {
        match cmaf::offered(shared, &title, &titles, link).await {
            Ok(found) => made = Some(found),
            // Transport streams are left.
            Err(PlanError::Unsuitable(_)) if wanted == MasterForm::Any => {}
            Err(why) => return Err(why),
        }
    }
    let has_audio = title.streams.iter().any(|stream| is_audio(&stream.codec));
    // Video without its audio is listed only if the client requested this form.
    let made = made.filter(|made| wanted == MasterForm::Made || !has_audio || !made.audio_codecs.is_empty());
    let lacking: Option<Vec<String>> =
        made.as_ref().map(|made| lacking(&title, made).into_iter().map(str::to_owned).collect());
    let is_stored = lacking.as_ref().is_none_or(|lacking| !lacking.is_empty());
    let mut groups = Vec::new();
    let stored_subtitles = if made.is_some() { STORED_SUBTITLES } else { SUBTITLES };
    for (id, below, is_listed) in [(SUBTITLES, "cmaf/", made.is_some()), (stored_subtitles, "", is_stored)] {
        let members = if is_listed && !title.is_growing() {
            subtitles::listed(shared, &title, below, link).await?
        } else {
            Vec::new()
        };
        if !members.is_empty() {
            groups.push(SubtitleGroup { id, members });
        }
    }
    let link = link.to_owned();
    let has_chapters = !owner(&*shared.site, &title).chapters.is_empty();
    let work = move |shared: &ServerContext| {
        let mut list = List {
            made,
            groups,
            stored_subtitles,
            variants: Vec::new(),
            are_independent: true,
            has_chapters,
        };
        for other in &titles {
            match list.add(shared, other, &title.name, &link, lacking.as_deref()) {
                // The rendition has just been removed.
                Err(SiteError::NoTitle) if other.name != title.name => {}
                added => added?,
            }
        }
        Ok(list.text(&link))
    };
    Ok(shared.reading(work).await?)
}

/// The entries of a master playlist.
struct List {
    made: Option<CmafMasterEntries>,
    groups: Vec<SubtitleGroup>,
    stored_subtitles: &'static str,
    /// Transport streams.
    variants: Vec<Variant>,
    are_independent: bool,
    has_chapters: bool,
}

impl List {
    fn group(&self, id: &'static str) -> Option<&'static str> {
        self.groups.iter().any(|group| group.id == id).then_some(id)
    }

    /// Adds a rendition: its captions and subtitles to its variants of fragmented MP4, and its
    /// transport stream if that is needed for `lacking` audio or is the only form.
    fn add(
        &mut self,
        shared: &ServerContext,
        title: &TitleInfo,
        asked: &str,
        link: &str,
        lacking: Option<&[String]>,
    ) -> Result<(), SiteError> {
        let look = shared.looked_at.look(&*shared.site, title)?;
        let streams = look.streams(&*shared.site, title)?;
        let subtitles = self.group(SUBTITLES);
        if let Some(made) = &mut self.made {
            for (_, variant) in made.variants.iter_mut().filter(|(name, _)| *name == title.name) {
                (variant.captions, variant.subtitles) = (streams.captions, subtitles);
            }
        }
        let named: Vec<&str> = lacking.unwrap_or_default().iter().map(|codec| &codec[..]).collect();
        let named = match lacking {
            Some([]) => return Ok(()),
            Some(_) => Named::These(&named),
            None => Named::MostPlayed,
        };
        self.are_independent &= look.segments.are_independent && streams.are_independent;
        let address = match title.name == asked {
            true => format!("media.m3u8{link}"),
            false => format!("../{}/media.m3u8{link}", title.name),
        };
        self.variants.push(Variant {
            address,
            rates: look.rates(&*shared.site)?,
            streams: streams.streams(named),
            audio: None,
            subtitles: self.group(self.stored_subtitles),
            captions: streams.captions,
        });
        Ok(())
    }

    /// Fragmented MP4 comes first, because the players that choose by order instead of codecs need
    /// it.
    fn text(self, link: &str) -> Text {
        let version = if self.made.is_some() { 7 } else { 3 };
        let made = self.made.unwrap_or_default();
        let variants: Vec<Variant> =
            made.variants.into_iter().map(|(_, variant)| variant).chain(self.variants).collect();
        let chapters = self.has_chapters.then(|| format!("chapters.json{link}"));
        let beside = Beside {
            audio: &made.groups,
            subtitles: &self.groups,
            stills: &made.stills,
            chapters: chapters.as_deref(),
        };
        Text::with_link(master::write(version, &variants, beside, self.are_independent), link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plays(streams: &[(u8, &str)]) -> bool {
        let stream = |(pid, &(stream_type, codec)): (u16, &(u8, &str))| ElementaryStream {
            pid,
            stream_type,
            codec: codec.to_owned(),
            language: None,
            role: None,
        };
        browsers_play_stored(&(0x100..).zip(streams).map(stream).collect::<Vec<_>>())
    }

    #[test]
    fn browsers_play_stored_where_they_take_audio_that_they_decode() {
        let video = (0x1b, "H.264");
        assert!(plays(&[video]));
        assert!(plays(&[video, (0x0f, "AAC"), (0x81, "AC-3")]));
        assert!(plays(&[video, (0x81, "AC-3"), (0x0f, "AAC")]));
        assert!(plays(&[video, (0x82, "DTS"), (0x0f, "AAC")]));
        assert!(plays(&[video, (0x03, "MP2")]), "nothing else would be better");
        assert!(!plays(&[(0x24, "H.265"), (0x0f, "AAC")]));
        assert!(!plays(&[video, (0x0f, "AAC"), (0x87, "E-AC-3")]));
        assert!(!plays(&[video, (0x03, "MP2"), (0x0f, "AAC")]), "MPEG audio would be taken");
        assert!(!plays(&[video, (0x06, "AAC")]), "AAC in private data is not seen");
    }

    #[test]
    fn browsers_play_stored_with_description_first_is_false() {
        let mut streams = vec![
            ElementaryStream {
                pid: 1,
                stream_type: 0x0f,
                codec: "AAC".to_owned(),
                language: None,
                role: None
            };
            2
        ];
        assert!(browsers_play_stored(&streams));
        streams[0].role = Some(millrace_media::codec::StreamRole::AudioDescription);
        assert!(!browsers_play_stored(&streams));
    }
}
