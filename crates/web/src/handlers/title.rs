//! A title as the API describes it. `millrace ls --json` describes titles of a store in the same way,
//! so that a script reads either.

use std::path::Path;

use millrace_media::codec::StreamRole;
use millrace_store::volume::{ElementaryStream, SubtitleTrack, TitleInfo, title_text};
use schemars::JsonSchema;
use serde::Serialize;

use super::{chapters, pictures, subtitles};
use crate::elementary::StreamFormat;
use crate::site::{LibraryCopy, PicturesState, Site};
use crate::subtitles::text;

/// A title, as the API describes it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Title")]
pub struct TitleDescription {
    /// Unique.
    name: String,
    /// What people call it: any text of one line, not unique.
    title: String,
    /// Name of the directory of the file that it was made from; null if it was uploaded.
    folder: Option<String>,
    /// Names of the directories from below a folder that the server serves to that file, the
    /// outermost first; without such a folder `folder` alone. Empty if there is none.
    folders: Vec<String>,
    /// 32 hexadecimal digits, for ever.
    id: String,
    /// Length of its transport stream.
    bytes: u64,
    duration_s: f64,
    mean_bits_per_s: u64,
    /// Over windows of 1 s.
    peak_bits_per_s: u64,
    is_constant_rate: bool,
    /// When it was added, seconds since 1970.
    added_unix_s: u64,
    streams: Vec<ListedStream>,
    /// Subtitles that are kept with it. Those of teletext are in its media, and listed in its playlists only.
    subtitles: Vec<Subtitles>,
    /// Names of its renditions, the best first, with itself among them; empty if it is the only one.
    renditions: Vec<String>,
    /// Address of the transport stream, from the root of this server.
    file: String,
    /// Address of its playlist.
    hls: String,
    /// Address of the playlist with separate video and audio tracks; null if none of its streams is
    /// available in this form.
    cmaf: Option<String>,
    /// Address of a picture of it; null if there is none.
    poster: Option<String>,
    /// Address of the list of small pictures for seeking (WebVTT); null if there are none.
    sprites: Option<String>,
    /// `made`, `waiting`, or why there are none.
    pictures: String,
    /// Address of its chapters (JSON); null if there are none.
    chapters: Option<String>,
    /// Where its copy is, if it is a title of the library that this server serves; null if it is not.
    library: Option<LibraryCopy>,
    /// It is being recorded: it grows, and can be watched from its beginning.
    is_recording: bool,
    /// Wall-clock time of its first packet in milliseconds since 1970, of a recording; null if it is not known.
    began_unix_ms: Option<u64>,
}

/// An elementary stream of a title.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stream")]
struct ListedStream {
    pid: u16,
    /// As ISO/IEC 13818-1 numbers them.
    stream_type: u8,
    /// For people.
    codec: String,
    /// ISO 639-2.
    language: Option<String>,
    /// Its audience, if it is not everybody: `audio-description`, `hearing-impaired`, `clean-effects` or `commentary`.
    role: Option<&'static str>,
}

/// Subtitles of a title.
#[derive(Debug, Serialize, JsonSchema)]
struct Subtitles {
    /// Language and kind, as in the address: `de`, `en.forced`, `pt-BR.sdh`.
    label: String,
    /// RFC 5646; null if it is not known.
    language: Option<String>,
    /// For people.
    name: String,
    /// They contain only the text that all viewers need.
    is_forced: bool,
    /// They also describe sounds, for the hard of hearing.
    is_sdh: bool,
    /// Address of the whole as WebVTT, from the root of this server.
    file: String,
}

/// Facts about a title that its manifest does not have.
#[derive(Debug)]
pub struct TitleContext {
    /// Names of its renditions, the best first, with itself among them.
    pub renditions: Vec<String>,
    /// State of its pictures.
    pub pictures: PicturesState,
    /// The title that its subtitles and chapters are kept with: of a rendition its parent.
    pub owner: TitleInfo,
    /// The folders of its source file ([`folders_of`]).
    pub folders: Vec<String>,
    /// Where its copy is, if it is a title of a library.
    pub library: Option<LibraryCopy>,
}

impl TitleDescription {
    pub(super) fn of(site: &dyn Site, title: TitleInfo) -> Self {
        let context = TitleContext {
            renditions: site.renditions(&title.name).into_iter().map(|rendition| rendition.name).collect(),
            pictures: site.pictures(&title),
            owner: text::owner(site, &title),
            folders: folders_of(&title.source.path, |folder| site.is_served_folder(folder)),
            library: site.library_copy(&title),
        };
        Self::new(title, context)
    }

    /// Describes a title.
    pub fn new(title: TitleInfo, context: TitleContext) -> Self {
        let stream = |stream: ElementaryStream| ListedStream {
            pid: stream.pid,
            stream_type: stream.stream_type,
            codec: stream.codec,
            language: stream.language,
            role: stream.role.map(StreamRole::name),
        };
        let is_apart = title.streams.iter().any(|stream| StreamFormat::of(&stream.codec).is_some());
        let (pictures, addresses) = match context.pictures {
            PicturesState::Made(about) => ("made".to_owned(), Some(pictures::addresses(&title.name, &about))),
            PicturesState::Waiting => ("waiting".to_owned(), None),
            PicturesState::Delayed(why) | PicturesState::Never(why) => (why, None),
        };
        let (poster, sprites) = addresses.unzip();
        let owner = context.owner;
        let track = |track: &SubtitleTrack| Subtitles {
            label: track.label.to_string(),
            language: track.label.language().map(str::to_owned),
            name: text::name_of(track),
            is_forced: track.label.is_forced,
            is_sdh: track.label.is_sdh,
            file: subtitles::address(&owner.name, &track.label),
        };
        Self {
            is_recording: title.is_growing(),
            began_unix_ms: title.began_unix_ms,
            library: context.library,
            title: title.display_name(),
            folder: context.folders.last().cloned(),
            folders: context.folders,
            subtitles: owner.subtitles.iter().map(track).collect(),
            poster,
            sprites,
            pictures,
            chapters: chapters::address(&title.name, &owner),
            renditions: context.renditions,
            file: format!("/titles/{}.ts", title.name),
            hls: format!("/titles/{}/index.m3u8", title.name),
            cmaf: (is_apart && !title.is_growing()).then(|| format!("/titles/{}/cmaf.m3u8", title.name)),
            id: title.id.to_string(),
            bytes: title.bytes,
            duration_s: title.duration.as_secs_f64(),
            mean_bits_per_s: title.mean_rate.0,
            peak_bits_per_s: title.peak_rate.0,
            is_constant_rate: title.constant_rate,
            added_unix_s: title.added_unix_s,
            streams: title.streams.into_iter().map(stream).collect(),
            name: title.name,
        }
    }
}

/// Names of the directories between the nearest one that is served and a source file, the
/// outermost first. If none is served, only the file's own directory: those above it belong to the
/// machine, not to the titles.
pub fn folders_of(source: &Path, is_served: impl Fn(&Path) -> bool) -> Vec<String> {
    let above: Vec<&Path> = source.ancestors().skip(1).filter(|_| source.is_absolute()).collect();
    let served = above.iter().position(|folder| is_served(folder));
    let name = |folder: &&Path| Some(title_text(&folder.file_name()?.to_string_lossy()));
    let names = above.iter().take(served.unwrap_or(1)).filter_map(name).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_title_begin_below_served_folder() {
        let of =
            |source: &str, served: &str| folders_of(Path::new(source), |folder| folder == Path::new(served));
        assert_eq!(of("/srv/films/Show/Season 1/1.ts", "/srv/films"), ["Show", "Season 1"]);
        assert_eq!(of("/srv/films/1.ts", "/srv/films"), [""; 0]);
        // Without a served folder above it, the machine's directories stay unnamed.
        assert_eq!(of("/home/anna/Show/Season 1/1.ts", "/srv/films"), ["Season 1"]);
        assert_eq!(of("/1.ts", "/srv/films"), [""; 0]);
        assert_eq!(of("1.ts", "/srv/films"), [""; 0]);
    }
}
