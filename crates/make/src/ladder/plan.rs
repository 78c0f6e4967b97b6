//! How each rung is made: size of the pictures, limits of the encoder, capacity of a slot.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;

use super::error::LadderError;
use super::list::{Ladder, Rung};
use super::time::{FRAME_SAMPLES, Times};
use crate::ingest::chapters::FileChapters;
use crate::ingest::subtitles::TextStream;
use crate::limits::ladder::{
    GROUP_TICKS, MAX_LADDER_HZ, MIN_PICTURE_BITS, RUNG_BUFFER_TICKS, SOUND_CHANNEL_BITS, SOUND_HZ,
};
use crate::limits::trick::TRICK_SLOT_TICKS;
use crate::trick::pace::SlotCapacity;

/// The streams of a source that a ladder is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LadderSource {
    /// Number of the stream of pictures in the file.
    pub(crate) pictures: u32,
    /// Size as shown, with square pixels.
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Number of pictures, and the number of seconds they take.
    pub(crate) rate: (u32, u32),
    pub(crate) sounds: Vec<Sound>,
    pub(crate) duration: Option<MediaTicks>,
    /// The `title` tag of the container.
    pub(crate) tag: Option<String>,
    /// For the operator: which streams are left out, and why.
    pub(crate) notes: Vec<String>,
    /// Text subtitles.
    pub(crate) texts: Vec<TextStream>,
    pub(crate) chapters: FileChapters,
}

/// A sound of the film.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    /// Number of its stream in the file.
    pub(crate) index: u32,
    pub(crate) channels: u32,
    pub(crate) language: Option<String>,
}

impl Sound {
    /// Its bit rate once it is encoded.
    pub(super) fn bits(&self) -> u64 {
        u64::from(self.channels) * SOUND_CHANNEL_BITS
    }
}

/// Plan of a ladder: all its rungs.
#[derive(Clone, Debug)]
pub(super) struct LadderPlan {
    pub(super) rungs: Vec<RungPlan>,
    pub(super) times: Times,
    /// Level of H.264 that all rungs say they need: a decoder that begins with one must be able to go over to each other.
    pub(super) level: &'static str,
    pub(super) left_out: Vec<String>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RungPlan {
    pub(super) rung: Rung,
    pub(super) width: u32,
    pub(super) height: u32,
    /// The limits of the encoder, in bits a second and bits at once.
    pub(super) picture_rate: u64,
    pub(super) buffer_bits: u64,
    /// Most TS packets in a slot.
    pub(super) most: u64,
}

impl LadderPlan {
    /// # Errors
    /// If the film is smaller than a rung, a rung has no room for pictures, or no level allows the best one.
    pub(super) fn new(ladder: &Ladder, film: &LadderSource) -> Result<Self, LadderError> {
        let times = times(film.rate);
        let (mut rungs, mut left_out) = (Vec::new(), Vec::new());
        for rung in &ladder.rungs {
            let is_larger = u64::from(film.height) < u64::from(rung.height)
                && u64::from(film.width) * 9 < u64::from(rung.height) * 16;
            if is_larger && ladder.is_usual {
                left_out.push(format!("{}: the film has {} x {}", rung.name, film.width, film.height));
            } else if is_larger {
                let (name, width, height) = (rung.name, film.width, film.height);
                return Err(LadderError::Larger { name, width, height });
            } else {
                rungs.push(plan_of(rung, film, &times)?);
            }
        }
        if rungs.len() < 2 {
            return Err(LadderError::TooSmall { width: film.width, height: film.height });
        }
        let level =
            level(&rungs[0], &times).ok_or_else(|| LadderError::NoLevel { name: rungs[0].rung.name })?;
        Ok(Self { rungs, times, level, left_out })
    }
}

/// Pictures a second, at most [`MAX_LADDER_HZ`], and how many of them are a group.
fn times((pictures, seconds): (u32, u32)) -> Times {
    let (pictures, seconds) = (u64::from(pictures.max(1)), u64::from(seconds.max(1)));
    let (pictures, seconds) =
        if pictures > MAX_LADDER_HZ * seconds { (MAX_LADDER_HZ, 1) } else { (pictures, seconds) };
    let group = (pictures * GROUP_TICKS + seconds * MEDIA_HZ / 2) / (seconds * MEDIA_HZ);
    Times { pictures, seconds, group: group.max(1) }
}

fn plan_of(rung: &Rung, film: &LadderSource, times: &Times) -> Result<RungPlan, LadderError> {
    let (width, height) = size(rung.height, film);
    let no_room = || LadderError::NoRoom { name: rung.name, rate: rung.rate };
    // Stuffing at the end of a group comes on top of what slots hold.
    let below = BitRate(rung.rate.0.saturating_sub(DEFAULT_PACKET_BYTES as u64 * 8));
    let Some(SlotCapacity { most, .. }) = SlotCapacity::below(below) else { return Err(no_room()) };
    let ticks = times.ticks(times.group);
    let slots = ticks / TRICK_SLOT_TICKS;
    let sound = |sound: &Sound| {
        // Headers of ADTS and PES, and packets that are not full.
        let frames = ticks * SOUND_HZ / MEDIA_HZ / FRAME_SAMPLES + 1;
        let bytes = sound.bits() * ticks / MEDIA_HZ / 8 + 7 * frames + 14 * slots;
        bytes / 184 + slots
    };
    let others = slots + 2 * slots.div_ceil(2) + film.sounds.iter().map(sound).sum::<u64>();
    // Of each picture a header, and a packet that is not full; and what makes the number of packets a multiple of 16.
    let pictures = times.group + times.group * 23 / 184 + 16;
    let packets = (slots * most).checked_sub(others + pictures).ok_or_else(no_room)?;
    let bits = packets * (TS_PACKET_BYTES as u64 - 4) * 8;
    // The maximum size of a group: the data that arrives while it lasts, and a full buffer.
    let picture_rate = bits * MEDIA_HZ / (ticks + RUNG_BUFFER_TICKS);
    if picture_rate < MIN_PICTURE_BITS {
        return Err(no_room());
    }
    let buffer_bits = picture_rate * RUNG_BUFFER_TICKS / MEDIA_HZ;
    Ok(RungPlan { rung: *rung, width, height, picture_rate, buffer_bits, most })
}

/// Width and height of pictures that keep their shape within `height` lines of 16:9, even as 4:2:0 needs.
fn size(height: u32, film: &LadderSource) -> (u32, u32) {
    let (w, h) = (u64::from(film.width.max(2)), u64::from(film.height.max(2)));
    let lines = u64::from(height);
    // 854 for 480 lines: pictures that are a pixel wider than 16:9 by rounding are not squeezed.
    let columns = (lines * 16).div_ceil(9).next_multiple_of(2);
    let (width, height) = if w * lines <= h * columns {
        let lines = lines.min(h);
        (w * lines / h, lines)
    } else {
        let columns = columns.min(w);
        (columns, h * columns / w)
    };
    let even = |n: u64| u32::try_from(n & !1).unwrap_or(2).max(2);
    (even(width), even(height))
}

/// Macroblocks a second and in a picture, and the rate and buffer in 1000 bits, of each level (ITU-T H.264 table A-1).
const LEVELS: [(&str, u64, u64, u64, u64); 15] = [
    ("1.1", 3_000, 396, 192, 500),
    ("1.2", 6_000, 396, 384, 1_000),
    ("1.3", 11_880, 396, 768, 2_000),
    ("2", 11_880, 396, 2_000, 2_000),
    ("2.1", 19_800, 792, 4_000, 4_000),
    ("2.2", 20_250, 1_620, 4_000, 4_000),
    ("3", 40_500, 1_620, 10_000, 10_000),
    ("3.1", 108_000, 3_600, 14_000, 14_000),
    ("3.2", 216_000, 5_120, 20_000, 20_000),
    ("4", 245_760, 8_192, 20_000, 25_000),
    ("4.1", 245_760, 8_192, 50_000, 62_500),
    ("4.2", 522_240, 8_704, 50_000, 62_500),
    ("5", 589_824, 22_080, 135_000, 135_000),
    ("5.1", 983_040, 36_864, 240_000, 240_000),
    ("5.2", 2_073_600, 36_864, 240_000, 240_000),
];

/// Returns the lowest level that the best rung, and so each other one, fits. The buffer must hold a
/// whole group beside the rest of the one before.
fn level(best: &RungPlan, times: &Times) -> Option<&'static str> {
    let blocks = u64::from(best.width.div_ceil(16)) * u64::from(best.height.div_ceil(16));
    let (a_second, rate) = (blocks * times.pictures / times.seconds, best.rung.rate.0);
    let fits = |(_, most, size, most_rate, buffer): &&(&str, u64, u64, u64, u64)| {
        // The High profile has a quarter more than the table.
        a_second <= *most && blocks <= *size && rate <= most_rate * 1250 && rate * 3 <= buffer * 1250
    };
    LEVELS.iter().find(fits).map(|level| level.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn film(width: u32, height: u32, rate: (u32, u32)) -> LadderSource {
        let sounds = vec![Sound { index: 1, channels: 2, language: None }];
        LadderSource {
            pictures: 0,
            width,
            height,
            rate,
            sounds,
            duration: None,
            tag: None,
            notes: vec![],
            texts: vec![],
            chapters: FileChapters::default(),
        }
    }

    #[test]
    fn pictures_keep_their_shape_and_are_never_larger() {
        let size = |height, w, h| size(height, &film(w, h, (25, 1)));
        assert_eq!(size(720, 1920, 1080), (1280, 720));
        assert_eq!(size(720, 1920, 800), (1280, 532), "wide pictures are as wide as those of 16:9");
        assert_eq!(size(1080, 1920, 800), (1920, 800));
        assert_eq!(size(480, 720, 576), (600, 480));
        assert_eq!(size(720, 1080, 1920), (404, 720));
        assert_eq!(size(480, 854, 480), (854, 480));
    }

    #[test]
    fn plan_for_source_smaller_than_rung_does_not_enlarge() {
        let plan = |ladder: &Ladder, w, h| LadderPlan::new(ladder, &film(w, h, (25, 1)));
        let wanted: Ladder = "1080p:6M,720p:3M".parse().unwrap();
        let error = plan(&wanted, 1280, 720).unwrap_err().to_string();
        assert!(error.contains("1080p") && error.contains("1280 x 720"), "{error}");
        let usual = plan(&Ladder::usual(), 1280, 720).unwrap();
        assert_eq!(usual.rungs.iter().map(|rung| rung.height).collect::<Vec<_>>(), [720, 480, 240]);
        assert_eq!((usual.left_out.len(), usual.level), (2, "3.1"));
        assert_eq!(plan(&wanted, 1920, 800).unwrap().rungs[0].height, 800, "as wide as 1080 lines of 16:9");
        assert!(plan(&Ladder::usual(), 320, 180).unwrap_err().to_string().contains("name renditions"));
    }

    #[test]
    fn plan_with_rate_too_low_for_video_is_refused() {
        let ladder: Ladder = "480p:1M,240p:200k".parse().unwrap();
        let error = LadderPlan::new(&ladder, &film(854, 480, (25, 1))).unwrap_err().to_string();
        assert!(error.contains("240p") && error.contains("200kb/s"), "{error}");
    }

    #[test]
    fn groups_are_two_seconds_of_whole_pictures() {
        for (rate, group) in
            [((25, 1), 50), ((30_000, 1001), 60), ((24_000, 1001), 48), ((90_000, 1), 120), ((1, 10), 1)]
        {
            assert_eq!(times(rate).group, group, "{rate:?}");
        }
    }
}
