//! What operators write: `NAME=STEP` or `NAME=STEP+STEP`, each step a kind with its settings.
//!
//! | step | settings |
//! | --- | --- |
//! | `select:audio=deu/eng,subtitles=none` | `audio`, `subtitles`, `data`: `all`, `none`, or languages; `drop`: PIDs |
//! | `restamp:offset=10s` | `offset`: a time, also a negative one; `ticks`: the same in 90 kHz; `continuity`: a number, or `PID:N/PID:N` |
//! | `wasm:FILE` | a WebAssembly module |

use std::sync::Arc;

use millrace_core::text::excerpt;
use millrace_core::units::HumanDuration;

use super::block::{BindError, Transform};
use super::report::TransformActivity;
use super::restamp::Restamp;
pub use super::restamp::{Continuity, RestampSpec};
use super::select::SelectPids;
pub use super::select::{Choice, SelectSpec};
use super::tables::StreamTables;
#[cfg(feature = "wasm")]
use super::wasm::{WasmModule, WasmTransform};
use crate::limits::transform::{MAX_TRANSFORM_NAME, MAX_TRANSFORM_STEPS, MAX_TRANSFORM_TEXT, MAX_TRANSFORMS};
use millrace_media::ts_packet::PID_NULL;
use millrace_media::ts_packet::PTS_MODULUS;

#[derive(Debug)]
enum TransformStep {
    Select(SelectSpec),
    Restamp(RestampSpec),
    #[cfg(feature = "wasm")]
    Wasm(Arc<WasmModule>),
}

/// A transformation with the name under which viewers request it.
#[derive(Debug)]
pub struct NamedTransform {
    name: String,
    number: u8,
    text: String,
    steps: Vec<TransformStep>,
    pub(super) report: TransformActivity,
}

impl NamedTransform {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place among the operator's, which names its tracks in the cache.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns its description, as the operator wrote it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the oldest line of text from one of its modules that has not been taken.
    pub fn take_line(&self) -> Option<String> {
        self.steps.iter().find_map(|step| match step {
            #[cfg(feature = "wasm")]
            TransformStep::Wasm(module) => module.take_line(),
            TransformStep::Select(_) | TransformStep::Restamp(_) => None,
        })
    }

    /// Returns the report of its results.
    pub fn report(&self) -> &TransformActivity {
        &self.report
    }

    /// [`Transform::stamp_offset`]
    pub fn stamp_offset(&self) -> u64 {
        let of = |step: &TransformStep| if let TransformStep::Restamp(spec) = step { spec.ticks } else { 0 };
        self.steps.iter().map(of).fold(0, |sum, ticks| (sum + ticks) % PTS_MODULUS)
    }

    /// Its steps for a title with these tables, whose first bytes `head` are.
    pub(super) fn bind(
        &self,
        tables: &StreamTables,
        head: &[u8],
    ) -> Result<Vec<Box<dyn Transform>>, BindError> {
        let bind = |step: &TransformStep| -> Result<Box<dyn Transform>, BindError> {
            Ok(match step {
                TransformStep::Select(spec) => Box::new(SelectPids::new(spec, tables)?),
                TransformStep::Restamp(spec) => {
                    let restamp = Restamp::new(spec);
                    restamp.check(head)?;
                    Box::new(restamp)
                }
                #[cfg(feature = "wasm")]
                TransformStep::Wasm(module) => Box::new(WasmTransform::new(Arc::clone(module))),
            })
        };
        self.steps.iter().map(bind).collect()
    }
}

/// A description that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transform \"{text}\": {what}")]
pub struct SpecError {
    text: String,
    what: String,
}

/// The transformations that an operator has named.
#[derive(Clone, Debug, Default)]
pub struct Transforms(Arc<[Arc<NamedTransform>]>);

impl Transforms {
    /// From their descriptions. Modules are read and compiled.
    ///
    /// # Errors
    /// [`SpecError`]: which description is wrong, and what to write in its place.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, SpecError> {
        let mut all: Vec<Arc<NamedTransform>> = Vec::new();
        for (number, text) in (0u8..).zip(texts) {
            let text = text.as_ref();
            let fail = |what: String| SpecError { text: excerpt(text, 120), what };
            if texts.len() > MAX_TRANSFORMS {
                return Err(fail(format!("there are {} of them; at most {MAX_TRANSFORMS}", texts.len())));
            }
            let named = named(number, text).map_err(fail)?;
            if all.iter().any(|other| other.name == named.name) {
                return Err(fail(format!("the name {} is taken; give each its own", named.name)));
            }
            all.push(Arc::new(named));
        }
        Ok(Self(all.into()))
    }

    /// The one with this name.
    pub fn find(&self, name: &str) -> Option<&Arc<NamedTransform>> {
        self.0.iter().find(|named| named.name == name)
    }

    /// The one with this number.
    pub fn get(&self, number: u8) -> Option<&Arc<NamedTransform>> {
        self.0.get(usize::from(number))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<NamedTransform>> {
        self.0.iter()
    }
}

fn named(number: u8, text: &str) -> Result<NamedTransform, String> {
    if text.len() > MAX_TRANSFORM_TEXT {
        return Err(format!("is longer than {MAX_TRANSFORM_TEXT} bytes"));
    }
    let (name, steps) = text.split_once('=').ok_or("write NAME=STEP, for example deu=select:audio=deu")?;
    let is_name = (1..=MAX_TRANSFORM_NAME).contains(&name.len())
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_');
    if !is_name {
        return Err(format!("a name has up to {MAX_TRANSFORM_NAME} of a-z, 0-9, - and _"));
    }
    let steps = steps.split('+').map(step).collect::<Result<Vec<_>, _>>()?;
    if steps.len() > MAX_TRANSFORM_STEPS {
        return Err(format!("has {} steps; at most {MAX_TRANSFORM_STEPS}", steps.len()));
    }
    let (name, text) = (name.to_owned(), text.to_owned());
    Ok(NamedTransform { name, number, text, steps, report: TransformActivity::default() })
}

fn step(text: &str) -> Result<TransformStep, String> {
    let (kind, settings) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "select" => select(settings).map(TransformStep::Select),
        "restamp" => restamp(settings).map(TransformStep::Restamp),
        #[cfg(feature = "wasm")]
        "wasm" => {
            let module = WasmModule::read(std::path::Path::new(settings));
            module.map(|module| TransformStep::Wasm(Arc::new(module))).map_err(|error| error.to_string())
        }
        #[cfg(not(feature = "wasm"))]
        "wasm" => Err("this program was built without WebAssembly".into()),
        other => Err(format!("\"{other}\" is no step; write select:..., restamp:... or wasm:FILE")),
    }
}

/// Settings of a step: `key=value` between commas.
fn settings(text: &str) -> impl Iterator<Item = Result<(&str, &str), String>> {
    text.split(',').map(|setting| {
        let parts = setting.split_once('=').filter(|(_, value)| !value.is_empty());
        parts.ok_or_else(|| format!("\"{setting}\" is no setting; write KEY=VALUE, KEY=VALUE between commas"))
    })
}

fn select(text: &str) -> Result<SelectSpec, String> {
    let mut spec = SelectSpec::default();
    for setting in settings(text) {
        match setting? {
            ("audio", value) => spec.audio = choice(value)?,
            ("subtitles", value) => spec.subtitles = choice(value)?,
            ("data", value) => spec.data = choice(value)?,
            ("drop", value) => spec.drop = value.split('/').map(pid).collect::<Result<_, _>>()?,
            (key, _) => {
                return Err(format!("select has no \"{key}\"; it has audio, subtitles, data and drop"));
            }
        }
    }
    Ok(spec)
}

fn choice(text: &str) -> Result<Choice, String> {
    let is_language = |text: &str| text.len() == 3 && text.bytes().all(|c| c.is_ascii_lowercase());
    match text {
        "all" => Ok(Choice::All),
        "none" => Ok(Choice::None),
        text if text.split('/').all(is_language) => {
            Ok(Choice::Languages(text.split('/').map(str::to_owned).collect()))
        }
        text => Err(format!("\"{text}\": write all, none, or languages of three letters: deu/eng")),
    }
}

/// Decimal or hexadecimal. Neither the first table of a stream nor stuffing can be meant.
fn pid(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().filter(|number| (1..PID_NULL).contains(number));
    number.ok_or_else(|| format!("\"{text}\" is no PID; write 1 to 8190, or 0x1 to 0x1ffe"))
}

fn restamp(text: &str) -> Result<RestampSpec, String> {
    let mut spec = RestampSpec { ticks: 0, continuity: Continuity::All(0) };
    for setting in settings(text) {
        match setting? {
            ("offset", value) => spec.ticks = offset(value)?,
            ("ticks", value) => {
                let ticks: Option<i64> = value.parse().ok();
                let ticks = ticks.ok_or_else(|| format!("\"{value}\" is no number of 90 kHz ticks"))?;
                spec.ticks = ticks.rem_euclid(PTS_MODULUS.cast_signed()).cast_unsigned();
            }
            ("continuity", value) => spec.continuity = continuity(value)?,
            (key, _) => {
                return Err(format!("restamp has no \"{key}\"; it has offset, ticks and continuity"));
            }
        }
    }
    Ok(spec)
}

/// A time, which may be negative, in ticks modulo 2^33.
fn offset(text: &str) -> Result<u64, String> {
    let (is_back, time) = match text.strip_prefix('-') {
        Some(time) => (true, time),
        None => (false, text),
    };
    let time: HumanDuration = time.parse().map_err(|error| format!("\"{text}\": {error}"))?;
    let ticks = (time.0.as_nanos() * 9 / 100_000 % u128::from(PTS_MODULUS)) as u64;
    Ok(if is_back { (PTS_MODULUS - ticks) % PTS_MODULUS } else { ticks })
}

fn continuity(text: &str) -> Result<Continuity, String> {
    let number = |text: &str| {
        let number: Option<u8> = text.parse().ok();
        number.filter(|number| *number < 16).ok_or_else(|| format!("\"{text}\": write 0 to 15"))
    };
    if !text.contains(':') {
        return number(text).map(Continuity::All);
    }
    let pids = text.split('/').map(|text| {
        let (named, offset) =
            text.split_once(':').ok_or_else(|| format!("\"{text}\": write PID:N, PID:N between slashes"))?;
        Ok((pid(named)?, number(offset)?))
    });
    pids.collect::<Result<_, String>>().map(Continuity::Of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> String {
        format!("{:?}", Transforms::parse(&[text]).unwrap().iter().next().unwrap().steps)
    }

    #[test]
    fn steps_are_read_as_they_are_written() {
        let deu = SelectSpec {
            audio: Choice::Languages(vec!["deu".into(), "eng".into()]),
            subtitles: Choice::None,
            data: Choice::All,
            drop: vec![0x102, 300],
        };
        let found = steps("a-1=select:audio=deu/eng,subtitles=none,drop=0x102/300");
        assert_eq!(found, format!("{:?}", [TransformStep::Select(deu)]));
        let by =
            |ticks, continuity| format!("{:?}", [TransformStep::Restamp(RestampSpec { ticks, continuity })]);
        assert_eq!(steps("x=restamp:offset=10s"), by(900_000, Continuity::All(0)));
        assert_eq!(steps("x=restamp:offset=-10s"), by((1 << 33) - 900_000, Continuity::All(0)));
        assert_eq!(steps("x=restamp:ticks=-1,continuity=15"), by((1 << 33) - 1, Continuity::All(15)));
        let of = Continuity::Of(vec![(0x100, 3), (17, 9)]);
        assert_eq!(steps("x=restamp:continuity=0x100:3/17:9"), by(0, of));
        assert!(steps("x=select:audio=none+restamp:offset=1s").contains("}), Restamp"));
    }

    #[test]
    fn transforms_parse_error_suggests_valid_form() {
        for (text, advice) in [
            ("", "NAME=STEP"),
            ("deu", "NAME=STEP"),
            ("Deu=select:audio=deu", "a-z"),
            ("=select:audio=deu", "a-z"),
            ("x=", "no step"),
            ("x=mirror:a=b", "select:..., restamp:..."),
            ("x=select", "KEY=VALUE"),
            ("x=select:audi=deu", "audio, subtitles"),
            ("x=select:audio=German", "three letters"),
            ("x=select:audio=", "KEY=VALUE"),
            ("x=select:drop=8191", "1 to 8190"),
            ("x=select:drop=0", "1 to 8190"),
            ("x=restamp:offset=soon", "soon"),
            ("x=restamp:ticks=1.5", "90 kHz"),
            ("x=restamp:continuity=16", "0 to 15"),
            ("x=restamp:continuity=0x100:1/5", "PID:N"),
        ] {
            let error = Transforms::parse(&[text]).unwrap_err().to_string();
            assert!(error.contains(advice) && error.contains(&format!("\"{text}\"")), "{error}");
        }
        let twice = Transforms::parse(&["a=select:audio=all", "a=select:audio=none"]).unwrap_err();
        assert!(twice.to_string().contains("taken"), "{twice}");
        let many: Vec<_> = (0..=MAX_TRANSFORMS).map(|n| format!("t{n}=select:audio=all")).collect();
        assert!(Transforms::parse(&many).unwrap_err().to_string().contains("at most 16"));
        let steps = ["select:audio=all"; MAX_TRANSFORM_STEPS + 1].join("+");
        assert!(Transforms::parse(&[format!("x={steps}")]).unwrap_err().to_string().contains("at most 8"));
    }

    #[test]
    fn transforms_parse_of_arbitrary_text_does_not_panic() {
        const PIECES: [&str; 14] = [
            "x=",
            "select:",
            "restamp:",
            "audio=",
            "deu",
            "/",
            ",",
            "+",
            "drop=",
            "0x",
            "offset=",
            "10s",
            "-",
            "continuity=",
        ];
        bolero::check!().with_type::<Vec<(u8, char)>>().for_each(|words| {
            let piece = |(piece, letter): &(u8, char)| match PIECES.get(usize::from(*piece % 18)) {
                Some(piece) => (*piece).to_owned(),
                None => letter.to_string(),
            };
            let text: String = words.iter().map(piece).collect();
            if let Ok(all) = Transforms::parse(&[text]) {
                assert!(all.iter().all(|named| named.stamp_offset() < PTS_MODULUS));
            }
        });
    }
}
