//! Start and end of the display of a page's content.

use millrace_core::limits::subtitles::LONGEST_CUE_TICKS;

use super::Screen;

/// Content of a page from `time` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageContent {
    /// When it was sent first.
    pub time: i64,
    /// When it was sent last.
    pub last: i64,
    /// From top to bottom; empty if it shows nothing.
    pub lines: Vec<String>,
}

/// Text, and when it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cue {
    /// Its first tick.
    pub start: i64,
    /// The tick behind its last.
    pub end: i64,
    /// From top to bottom, at least one.
    pub lines: Vec<String>,
}

impl PageContent {
    /// Adds a screen of the same page to a list. A screen that repeats the current one adds
    /// nothing.
    pub fn add(list: &mut Vec<Self>, screen: Screen) {
        let Screen { time, lines, .. } = screen;
        match list.last_mut() {
            Some(before) if before.lines == lines && (before.time..=before.gone()).contains(&time) => {
                before.last = before.last.max(time);
            }
            _ => list.push(Self { time, last: time, lines }),
        }
    }

    /// When it is no longer shown if nothing else comes.
    pub fn gone(&self) -> i64 {
        self.last.saturating_add(LONGEST_CUE_TICKS.cast_signed())
    }
}

/// The cues of a page that shows these, in ascending order, and nothing from `end` on.
pub fn cues<'a>(shown: impl IntoIterator<Item = &'a PageContent>, end: i64) -> Vec<Cue> {
    let mut list = Vec::new();
    let mut shown = shown.into_iter().peekable();
    while let Some(now) = shown.next() {
        let next = shown.peek().map_or(end, |next| next.time);
        let end = next.min(now.gone()).min(end);
        if !now.lines.is_empty() && end > now.time {
            list.push(Cue { start: now.time, end, lines: now.lines.clone() });
        }
    }
    list
}
