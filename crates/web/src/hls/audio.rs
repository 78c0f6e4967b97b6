//! Audio renditions separate from the video (RFC 8216 section 4.3.4.1), in groups: a player that
//! cannot decode all codecs of a variant skips the variant.

use millrace_media::codec::StreamRole;

use super::language;

/// Codecs of audio renditions, most widely decoded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AudioTier {
    Aac,
    Ac3,
    Eac3,
}

impl AudioTier {
    const ALL: [Self; 3] = [Self::Aac, Self::Ac3, Self::Eac3];

    /// The identifier of the group for this codec.
    fn group(self) -> &'static str {
        match self {
            Self::Aac => "aac",
            Self::Ac3 => "ac-3",
            Self::Eac3 => "ec-3",
        }
    }
}

/// An audio stream that can be delivered separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AudioTrack {
    pub(crate) address: String,
    pub(crate) tier: AudioTier,
    /// The codec in RFC 6381 notation.
    pub(crate) codec: String,
    /// ISO 639-2 code.
    pub(crate) language: Option<String>,
    pub(crate) role: Option<StreamRole>,
    pub(crate) channels: u16,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AudioRendition {
    pub(crate) address: String,
    /// Display name; unique in its group.
    pub(crate) name: String,
    /// RFC 5646 tag.
    pub(crate) language: Option<String>,
    pub(crate) channels: u16,
    pub(crate) role: Option<StreamRole>,
    pub(crate) is_default: bool,
    /// `AUTOSELECT`: whether a player may choose it from its settings, without a choice by the
    /// viewer.
    pub(crate) is_chosen_by_itself: bool,
}

/// Audio renditions that a player can all play if it decodes `codecs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AudioGroup {
    pub(crate) id: &'static str,
    /// Distinct codecs in RFC 6381 notation.
    pub(crate) codecs: Vec<String>,
    /// At least one.
    pub(crate) members: Vec<AudioRendition>,
}

/// One audio programme, possibly in several codecs.
struct Programme<'a> {
    /// RFC 5646 tag.
    language: Option<String>,
    role: Option<StreamRole>,
    /// Its number among programmes with the same language and role.
    number: usize,
    tracks: Vec<&'a AudioTrack>,
}

/// Returns one group for each codec. A group has each programme in this codec or, failing that, in
/// a more widely decoded one. The first group has only the most widely decoded codec.
pub(crate) fn groups(tracks: &[AudioTrack]) -> Vec<AudioGroup> {
    let programmes = programmes(tracks);
    let names = names(&programmes);
    let mut groups = Vec::new();
    for tier in AudioTier::ALL.into_iter().filter(|tier| tracks.iter().any(|track| track.tier == *tier)) {
        let mut group = AudioGroup { id: tier.group(), codecs: Vec::new(), members: Vec::new() };
        for (programme, name) in programmes.iter().zip(&names) {
            let decoded = programme.tracks.iter().filter(|track| track.tier <= tier);
            let Some(track) = decoded.max_by_key(|track| track.tier) else { continue };
            if !group.codecs.contains(&track.codec) {
                group.codecs.push(track.codec.clone());
            }
            // The default is main audio; audio for a special audience is never the default.
            let is_default =
                programme.role.is_none() && !group.members.iter().any(|member| member.is_default);
            group.members.push(AudioRendition {
                address: track.address.clone(),
                name: name.clone(),
                language: programme.language.clone(),
                channels: track.channels,
                role: programme.role,
                is_default,
                is_chosen_by_itself: is_default || is_chosen_by_itself(programme, &programmes),
            });
        }
        groups.push(group);
    }
    groups
}

fn is_chosen_by_itself(programme: &Programme<'_>, all: &[Programme<'_>]) -> bool {
    let is_plain = |other: &Programme<'_>| other.role.is_none() && other.language == programme.language;
    programme.number == 0
        && match programme.role {
            None => true,
            // Players that know the characteristic choose it for viewers who prefer it. Other
            // players find the main audio of the same language first.
            Some(role) => characteristic(role).is_some() && all.iter().any(is_plain),
        }
}

/// Returns the programmes in track order, main audio first: players without settings take the first
/// programme.
fn programmes(tracks: &[AudioTrack]) -> Vec<Programme<'_>> {
    let mut programmes: Vec<Programme<'_>> = Vec::new();
    for track in tracks {
        let language = track.language.as_deref().and_then(language::tag);
        let alike = |programme: &&mut Programme<'_>| {
            programme.language == language
                && programme.role == track.role
                && programme.tracks.iter().all(|other| other.tier != track.tier)
        };
        match programmes.iter_mut().find(alike) {
            Some(programme) => programme.tracks.push(track),
            None => {
                let same = |other: &&Programme<'_>| other.language == language && other.role == track.role;
                let number = programmes.iter().filter(same).count();
                programmes.push(Programme { language, role: track.role, number, tracks: vec![track] });
            }
        }
    }
    programmes.sort_by_key(|programme| programme.role.is_some());
    programmes
}

/// Names differ within a group (section 4.3.4.1.1). A programme has the same name in all groups.
fn names(programmes: &[Programme<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for Programme { language, role, .. } in programmes {
        let mut name = language.as_deref().and_then(language::name).unwrap_or_else(|| "Audio".to_owned());
        if let Some(role) = role {
            name = format!("{name} ({})", described(*role));
        }
        let numbered = (2..).map(|number| format!("{name} {number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
        names.push(free.unwrap_or(name));
    }
    names
}

fn described(role: StreamRole) -> &'static str {
    match role {
        StreamRole::AudioDescription => "audio description",
        StreamRole::HearingImpaired => "hearing impaired",
        StreamRole::CleanEffects => "without dialogue",
        StreamRole::Commentary => "commentary",
    }
}

/// The `CHARACTERISTICS` value of a role.
pub(crate) fn characteristic(role: StreamRole) -> Option<&'static str> {
    match role {
        StreamRole::AudioDescription => Some("public.accessibility.describes-video"),
        StreamRole::HearingImpaired => Some("public.accessibility.enhances-speech-intelligibility"),
        StreamRole::CleanEffects | StreamRole::Commentary => None,
    }
}

#[cfg(test)]
#[path = "audio_tests.rs"]
mod tests;
