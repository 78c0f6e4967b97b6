//! Labels of subtitle tracks, unique in a title: `de`, `en.forced`, `pt-BR.sdh`, `en.2`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{MAX_LANGUAGE_BYTES, MAX_SUBTITLE_TRACKS};

/// The language of text whose language is not known (ISO 639-2).
pub const UNKNOWN_LANGUAGE: &str = "und";

/// Codes of three letters (ISO 639-2, both forms) whose language has one of two, which RFC 5646 section 2.2.1 wants.
const SHORT_CODES: &[(&str, &str)] = &[
    ("afr", "af"),
    ("alb", "sq"),
    ("sqi", "sq"),
    ("ara", "ar"),
    ("arm", "hy"),
    ("hye", "hy"),
    ("aze", "az"),
    ("baq", "eu"),
    ("eus", "eu"),
    ("bel", "be"),
    ("ben", "bn"),
    ("bos", "bs"),
    ("bul", "bg"),
    ("bur", "my"),
    ("mya", "my"),
    ("cat", "ca"),
    ("chi", "zh"),
    ("zho", "zh"),
    ("cze", "cs"),
    ("ces", "cs"),
    ("dan", "da"),
    ("dut", "nl"),
    ("nld", "nl"),
    ("eng", "en"),
    ("epo", "eo"),
    ("est", "et"),
    ("fao", "fo"),
    ("fin", "fi"),
    ("fre", "fr"),
    ("fra", "fr"),
    ("fry", "fy"),
    ("geo", "ka"),
    ("kat", "ka"),
    ("ger", "de"),
    ("deu", "de"),
    ("gla", "gd"),
    ("gle", "ga"),
    ("glg", "gl"),
    ("gre", "el"),
    ("ell", "el"),
    ("guj", "gu"),
    ("heb", "he"),
    ("hin", "hi"),
    ("hrv", "hr"),
    ("hun", "hu"),
    ("ice", "is"),
    ("isl", "is"),
    ("ind", "id"),
    ("ita", "it"),
    ("jpn", "ja"),
    ("kan", "kn"),
    ("kaz", "kk"),
    ("khm", "km"),
    ("kor", "ko"),
    ("kur", "ku"),
    ("lao", "lo"),
    ("lat", "la"),
    ("lav", "lv"),
    ("lit", "lt"),
    ("ltz", "lb"),
    ("mac", "mk"),
    ("mkd", "mk"),
    ("mal", "ml"),
    ("mar", "mr"),
    ("may", "ms"),
    ("msa", "ms"),
    ("mlt", "mt"),
    ("mon", "mn"),
    ("nep", "ne"),
    ("nob", "nb"),
    ("nno", "nn"),
    ("nor", "no"),
    ("pan", "pa"),
    ("per", "fa"),
    ("fas", "fa"),
    ("pol", "pl"),
    ("por", "pt"),
    ("roh", "rm"),
    ("rum", "ro"),
    ("ron", "ro"),
    ("rus", "ru"),
    ("sin", "si"),
    ("slo", "sk"),
    ("slk", "sk"),
    ("slv", "sl"),
    ("spa", "es"),
    ("srp", "sr"),
    ("swa", "sw"),
    ("swe", "sv"),
    ("tam", "ta"),
    ("tel", "te"),
    ("tgl", "tl"),
    ("tha", "th"),
    ("tur", "tr"),
    ("ukr", "uk"),
    ("urd", "ur"),
    ("uzb", "uz"),
    ("vie", "vi"),
    ("wel", "cy"),
    ("cym", "cy"),
    ("yid", "yi"),
    ("zul", "zu"),
];

/// A track's label: unique in its title.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubtitleLabel {
    language: String,
    /// The track has only text that every viewer needs: signs, other languages.
    pub is_forced: bool,
    /// The track also describes sounds, for the hard of hearing.
    pub is_sdh: bool,
    /// Tracks of the same language and kind are counted, from 1.
    pub number: u8,
}

/// A text that is no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "subtitles: \"{0}\" is not a track label; write LANGUAGE, LANGUAGE.forced or LANGUAGE.sdh with a language as in RFC 5646, for example de, pt-BR.sdh, en.forced"
)]
pub struct NotALabel(String);

impl SubtitleLabel {
    /// Of a language as files and streams write it: `ger`, `pt-br`, `zh_Hant`. `None` if it is no tag of a language.
    pub fn new(language: &str) -> Option<Self> {
        Some(Self { language: language_tag(language)?, is_forced: false, is_sdh: false, number: 1 })
    }

    /// Of a language that is not known.
    pub fn unknown() -> Self {
        Self { language: UNKNOWN_LANGUAGE.to_owned(), is_forced: false, is_sdh: false, number: 1 }
    }

    /// The tag of its language (RFC 5646); `None` if it is not known.
    pub fn language(&self) -> Option<&str> {
        (self.language != UNKNOWN_LANGUAGE).then_some(&self.language)
    }

    /// Takes the language from another label if this one has none.
    pub fn set_language(&mut self, other: Self) {
        self.language = other.language;
    }
}

/// A tag of a language in its usual spelling: two letters where there are two, regions in capitals.
fn language_tag(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(['-', '_']).collect();
    let (first, others) = parts.split_first()?;
    let is_language = matches!(first.len(), 2 | 3) && first.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_part =
        |part: &&str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if text.len() > MAX_LANGUAGE_BYTES || !is_language || !others.iter().all(is_part) {
        return None;
    }
    let first = first.to_ascii_lowercase();
    let short = SHORT_CODES.iter().find(|(long, _)| *long == first).map_or(&*first, |(_, short)| short);
    let mut tag = short.to_owned();
    for part in others {
        tag.push('-');
        let lower = part.to_ascii_lowercase();
        match part.len() {
            2 => tag.push_str(&part.to_ascii_uppercase()),
            4 if part.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                tag.extend(lower[..1].chars().map(|first| first.to_ascii_uppercase()));
                tag.push_str(&lower[1..]);
            }
            _ => tag.push_str(&lower),
        }
    }
    Some(tag)
}

impl fmt::Display for SubtitleLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.language)?;
        f.write_str(if self.is_forced { ".forced" } else { "" })?;
        f.write_str(if self.is_sdh { ".sdh" } else { "" })?;
        if self.number > 1 { write!(f, ".{}", self.number) } else { Ok(()) }
    }
}

impl FromStr for SubtitleLabel {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, NotALabel> {
        let refused = || NotALabel(text.chars().take(60).collect());
        let mut parts = text.split('.');
        let mut label = parts.next().and_then(Self::new).ok_or_else(refused)?;
        for part in parts {
            match part {
                "forced" if !label.is_forced && label.number == 1 => label.is_forced = true,
                "sdh" if !label.is_sdh && label.number == 1 => label.is_sdh = true,
                number if label.number == 1 => {
                    let is_usable = |count: &u8| (2..=MAX_SUBTITLE_TRACKS).contains(&usize::from(*count));
                    label.number = number.parse().ok().filter(is_usable).ok_or_else(refused)?;
                }
                _ => return Err(refused()),
            }
        }
        Ok(label)
    }
}

impl TryFrom<String> for SubtitleLabel {
    type Error = NotALabel;

    fn try_from(text: String) -> Result<Self, NotALabel> {
        let label: Self = text.parse()?;
        // In a manifest each label has one spelling.
        if label.to_string() == text { Ok(label) } else { Err(NotALabel(text)) }
    }
}

impl From<SubtitleLabel> for String {
    fn from(label: SubtitleLabel) -> Self {
        label.to_string()
    }
}
