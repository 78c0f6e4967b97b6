//! The list of rungs as people write it: `1080p:6M,720p:3M,480p:1.2M`.

use std::fmt;
use std::str::FromStr;

use millrace_core::rendition::RenditionName;
use millrace_core::units::BitRate;

use crate::limits::ladder::{MAX_LADDER_LIST_BYTES, MAX_RUNGS};

/// One rendition that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Its name. Begins with its height.
    pub name: RenditionName,
    /// Lines of pictures of 16:9; wider ones have fewer.
    pub height: u32,
    /// Most bits a second of all of it, in any second.
    pub rate: BitRate,
}

/// Renditions that are wanted, best first: two or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    pub(super) rungs: Vec<Rung>,
    /// The rungs were not requested individually: those larger than the film are left out.
    pub(super) is_usual: bool,
}

/// The default list.
const USUAL: &str = "2160p:16M,1080p:6M,720p:3M,480p:1.2M,240p:500k";

impl Ladder {
    /// Returns the default list, limited to rungs with no more lines than the film.
    ///
    /// # Panics
    /// Never: the list is a constant that a test reads.
    pub fn usual() -> Self {
        let ladder: Self = USUAL.parse().expect("a test reads it");
        Self { is_usual: true, ..ladder }
    }

    /// The rungs, best first.
    pub fn rungs(&self) -> &[Rung] {
        &self.rungs
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate.to_string();
        write!(f, "{}:{}", self.name, rate.trim_end_matches("b/s"))
    }
}

/// A text that is no [`Ladder`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LadderListError {
    /// An invalid entry, and its probable meaning.
    #[error("ladder: \"{given}\" is no rendition: {why}; write LABEL:RATE, for example {nearest}")]
    Entry {
        /// As given.
        given: String,
        /// The error in it.
        why: &'static str,
        /// The most similar valid entry.
        nearest: String,
    },
    /// Two of one name.
    #[error(
        "ladder: {name} is named twice; give each rendition a label of its own, for example {name} and {name}-low"
    )]
    Twice {
        /// The name.
        name: RenditionName,
    },
    /// One that is not less than the one before.
    #[error(
        "ladder: {second} follows {first} but is not lower: rates must fall, heights must not rise; write {sorted}"
    )]
    Order {
        /// The one before.
        first: String,
        /// It.
        second: String,
        /// The list in order.
        sorted: String,
    },
    /// Too few or too many.
    #[error("ladder: got {count} renditions, allowed are 2 to {MAX_RUNGS}; change the list")]
    Count {
        /// How many.
        count: usize,
    },
    /// Two of a rate.
    #[error("ladder: {first} and {second} have the same rate; give the smaller one a lower rate")]
    SameRate {
        /// The one before.
        first: String,
        /// It.
        second: String,
    },
}

impl FromStr for Ladder {
    type Err = LadderListError;

    fn from_str(text: &str) -> Result<Self, LadderListError> {
        let cut: String = text.chars().take(MAX_LADDER_LIST_BYTES).collect();
        let rungs: Vec<Rung> = cut.split(',').map(rung).collect::<Result<_, _>>()?;
        if !(2..=MAX_RUNGS).contains(&rungs.len()) {
            return Err(LadderListError::Count { count: rungs.len() });
        }
        for (at, rung) in rungs.iter().enumerate() {
            if rungs[..at].iter().any(|before| before.name == rung.name) {
                return Err(LadderListError::Twice { name: rung.name });
            }
        }
        for pair in rungs.windows(2) {
            let [first, second] = [pair[0].to_string(), pair[1].to_string()];
            if pair[0].rate == pair[1].rate {
                return Err(LadderListError::SameRate { first, second });
            }
            if pair[0].rate < pair[1].rate || pair[0].height < pair[1].height {
                let mut sorted = rungs.clone();
                sorted.sort_by_key(|rung| std::cmp::Reverse((rung.height, rung.rate)));
                let sorted = sorted.iter().map(Rung::to_string).collect::<Vec<_>>().join(",");
                return Err(LadderListError::Order { first, second, sorted });
            }
        }
        Ok(Self { rungs, is_usual: false })
    }
}

fn rung(text: &str) -> Result<Rung, LadderListError> {
    let why = match parse(text) {
        Ok(rung) => return Ok(rung),
        Err(why) => why,
    };
    let nearest = nearest(text).map_or_else(|| "720p:3M".to_owned(), |rung| rung.to_string());
    Err(LadderListError::Entry { given: text.chars().take(60).collect(), why, nearest })
}

fn parse(text: &str) -> Result<Rung, &'static str> {
    let (label, rate) = text
        .split_once(':')
        .ok_or("it has no rate (a file stands before --ladder, or the list behind --ladder=)")?;
    let name = label
        .parse::<RenditionName>()
        .map_err(|_| "the label has more than 16 characters, or others than a-z, 0-9, . and -")?;
    let digits = label.split_once('p').map(|(digits, _)| digits);
    let height = digits
        .and_then(|digits| digits.parse::<u32>().ok())
        .ok_or("the label does not begin with a height such as 720p")?;
    if !(16..=8192).contains(&height) {
        return Err("the height is not from 16 to 8192 lines");
    }
    let with_unit = if rate.ends_with(['k', 'M', 'G']) { format!("{rate}b/s") } else { rate.to_owned() };
    let rate = with_unit.parse::<BitRate>().map_err(|_| "the rate is no number with k or M behind it")?;
    if !(100_000..=1_000_000_000).contains(&rate.0) {
        return Err("the rate is not from 100k to 1000M");
    }
    Ok(Rung { name, height, rate })
}

/// Returns the entry that was probably meant.
fn nearest(text: &str) -> Option<Rung> {
    let text = text.trim().to_lowercase().replace(['=', '@', '/', ' '], ":");
    let (label, rate) = text.split_once(':')?;
    let rate = rate.trim_matches(':');
    let digits: String = label.chars().take_while(char::is_ascii_digit).collect();
    let rest = label[digits.len()..].trim_start_matches(['p', 'i']);
    let end = rate.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rate.len());
    let number: f64 = rate[..end].parse().ok()?;
    let unit = match rate[end..].chars().next() {
        Some(unit @ ('k' | 'g')) => unit.to_string().replace('g', "G"),
        Some('m') => "M".to_owned(),
        // 3000 is in thousands, 3000000 in ones, 3 in millions.
        _ if number >= 100_000.0 => return parse(&format!("{digits}p{rest}:{}k", number / 1000.0)).ok(),
        _ if number >= 100.0 => "k".to_owned(),
        _ => "M".to_owned(),
    };
    parse(&format!("{digits}p{rest}:{number}{unit}")).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        let ladder: Ladder = "1080p:6M,720p:3M,720p-low:1.2M,480p:800kb/s".parse().unwrap();
        let shown: Vec<String> = ladder.rungs().iter().map(Rung::to_string).collect();
        assert_eq!(shown, ["1080p:6M", "720p:3M", "720p-low:1.2M", "480p:800k"]);
        assert_eq!(ladder.rungs()[2].height, 720);
        assert!(Ladder::usual().is_usual && Ladder::usual().rungs().len() > 2);
    }

    #[test]
    fn ladder_parse_error_names_fault_and_suggests_form() {
        for (list, words) in [
            (
                "720:3M,480p:1M",
                "does not begin with a height such as 720p; write LABEL:RATE, for example 720p:3M",
            ),
            ("720p=3M,480p:1M", "for example 720p:3M"),
            ("720p:3000,480p:1M", "no number with k or M behind it; write LABEL:RATE, for example 720p:3M"),
            ("720p:2500000,480p:1M", "for example 720p:2.5M"),
            ("720p:3Mbps,480p:1M", "for example 720p:3M"),
            ("hd:6M,480p:1M", "does not begin with a height"),
            ("film.mp4", "it has no rate (a file stands before --ladder"),
            ("720p:3M", "got 1 renditions, allowed are 2 to 8"),
            ("720p:3M,", "\"\" is no rendition"),
            ("720p:3M,720p:1M", "720p is named twice"),
            ("720p:3M,1080p:6M", "rates must fall, heights must not rise; write 1080p:6M,720p:3M"),
            ("720p:3M,480p:3M", "720p:3M and 480p:3M have the same rate"),
            ("720p:3,480p:1M", "for example 720p:3M"),
            ("720p:1k,480p:1M", "not from 100k"),
        ] {
            let error = list.parse::<Ladder>().unwrap_err().to_string();
            assert!(error.contains(words), "{list}: {error}");
        }
    }

    proptest! {
        #[test]
        fn ladder_parse_of_arbitrary_text_fails_or_round_trips(text in "([0-9]{1,5}p?[-a-z@=:]{0,3}[0-9.]{1,8}[kMGm]?,?){0,4}|.{0,40}") {
            if let Ok(ladder) = text.parse::<Ladder>() {
                let shown: Vec<String> = ladder.rungs().iter().map(Rung::to_string).collect();
                prop_assert_eq!(shown.len(), ladder.rungs().len());
                prop_assert!(shown.iter().all(|rung| parse(rung).is_ok()));
            }
        }
    }
}
