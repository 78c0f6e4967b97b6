//! Subtitles stored with a title as WebVTT: the list of tracks.

use millrace_store::volume::{SubtitleTrack, TitleInfo};

use crate::site::Site;

/// First number of stored tracks in addresses; teletext pages use 100 to 899.
const FIRST_NUMBER: u16 = 1000;

/// The title that stores the subtitles of `title`: itself or, for a rendition, the title that it
/// was made from.
pub(crate) fn owner(site: &dyn Site, title: &TitleInfo) -> TitleInfo {
    let parent = title.derived.filter(|derived| derived.rendition().is_some());
    let found = parent.and_then(|derived| {
        let (name, _) = title.name.rsplit_once('@')?;
        site.title(name).filter(|found| found.id == derived.parent)
    });
    found.unwrap_or_else(|| title.clone())
}

/// The tracks of a title, each with its number.
pub(crate) fn tracks(owner: &TitleInfo) -> impl Iterator<Item = (u16, &SubtitleTrack)> {
    (FIRST_NUMBER..).zip(&owner.subtitles)
}

/// Display name: the name from its source or else the language, and the kind.
pub(crate) fn name_of(track: &SubtitleTrack) -> String {
    let language = track.label.language().unwrap_or("subtitles");
    let mut name = track.name.clone().unwrap_or_else(|| language.to_owned());
    for (is_so, kind) in [(track.label.is_forced, ", forced"), (track.label.is_sdh, ", hearing impaired")] {
        name.push_str(if is_so { kind } else { "" });
    }
    name
}

/// The part of the file name that changes with the text.
pub(crate) fn version_of(track: &SubtitleTrack) -> &str {
    let stem = track.file.strip_suffix(".vtt").unwrap_or(&track.file);
    stem.rsplit_once('-').map_or(stem, |(_, hash)| hash)
}
