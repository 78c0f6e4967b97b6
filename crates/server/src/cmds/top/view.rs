//! The display: lines of text that fit the terminal, made from the server's reports and the keys
//! pressed.

use std::collections::VecDeque;

use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::{BitRate, ByteLen, Count};

use super::screen::KeyPress;
use super::watch::{Cast, Engine, LibraryState, ServerFigures, Session, Status, Update};
use crate::cmds::terminal::name;
use crate::limits::control::{TOP_CASTS, TOP_ENGINES, TOP_EVENTS, TOP_FETCHES};

/// What sessions are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sort {
    /// The highest bit rate first.
    Rate,
    /// The highest loss first.
    Lost,
    /// The oldest first.
    Age,
    /// By title.
    Title,
    /// By the viewer's address.
    Viewer,
}

/// The state of the display.
#[derive(Debug)]
pub(super) struct View {
    place: String,
    now: Option<Box<(ServerFigures, Status)>>,
    lost: Option<String>,
    happened: VecDeque<String>,
    sort: Sort,
    is_reversed: bool,
    /// Sessions above the first that is shown.
    above: usize,
    /// How many there was room for.
    page: usize,
}

impl View {
    pub(super) fn new(place: String, sort: Sort) -> Self {
        let (now, lost, happened) = (None, None, VecDeque::new());
        Self { place, now, lost, happened, sort, is_reversed: false, above: 0, page: 1 }
    }

    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Now(now) => (self.now, self.lost) = (Some(now), None),
            Update::Lost(why) => self.lost = Some(why),
            Update::Happened(line) => {
                self.happened.truncate(TOP_EVENTS - 1);
                self.happened.push_front(line);
            }
        }
    }

    /// Acts on a key; whether it ends the program.
    pub(super) fn press(&mut self, key: KeyPress) -> bool {
        let by = |view: &mut Self, sort| {
            view.is_reversed = view.sort == sort && !view.is_reversed;
            (view.sort, view.above) = (sort, 0);
        };
        match key {
            KeyPress::Char('q') => return true,
            KeyPress::Char('r') => by(self, Sort::Rate),
            KeyPress::Char('l') => by(self, Sort::Lost),
            KeyPress::Char('a') => by(self, Sort::Age),
            KeyPress::Char('t') => by(self, Sort::Title),
            KeyPress::Char('v') => by(self, Sort::Viewer),
            KeyPress::Char(_) => {}
            KeyPress::Up => self.above = self.above.saturating_sub(1),
            KeyPress::Down => self.above += 1,
            KeyPress::PageUp => self.above = self.above.saturating_sub(self.page),
            KeyPress::PageDown => self.above += self.page,
        }
        false
    }

    /// Everything that is known, for no terminal: as long as it is.
    pub(super) fn all(&mut self) -> Vec<String> {
        let Some(now) = self.now.clone() else { return Vec::new() };
        let mut lines = self.head(&now);
        lines.push(table_head());
        lines.extend(self.sorted(&now.1).into_iter().map(row));
        lines.extend(left_out(&now.1));
        lines
    }

    /// At most `height` lines of at most `width` characters.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let mut lines = match self.now.clone() {
            Some(now) => self.whole(&now, height),
            None => vec![format!("millrace top  {}", name(&self.place)), "waiting for the server".to_owned()],
        };
        let last = match &self.lost {
            Some(why) => format!("no response, retrying: {}", name(why)),
            None => "q ends; sorted by r rate  l lost  a age  t title  v viewer; arrows scroll".to_owned(),
        };
        lines.truncate(height.saturating_sub(1));
        lines.push(last);
        lines.iter().map(|line| line.chars().take(width).collect()).collect()
    }

    fn whole(&mut self, now: &(ServerFigures, Status), height: usize) -> Vec<String> {
        let mut lines = self.head(now);
        let events = self.happened.len();
        let room = height.saturating_sub(lines.len() + 2);
        // Events give way to sessions: half of the room at most.
        let events = events.min(room / 2);
        let rows = room - events;
        let sessions = self.sorted(&now.1);
        let has_more = sessions.len() > rows || now.1.sessions_left_out > 0;
        let shown = if has_more { rows.saturating_sub(1) } else { rows };
        let above = self.above.min(sessions.len().saturating_sub(shown));
        lines.push(table_head());
        lines.extend(sessions.iter().skip(above).take(shown).map(|session| row(session)));
        if has_more {
            let count = sessions.len() as u64 + now.1.sessions_left_out;
            lines.push(format!(
                "{} to {} of {count} sessions",
                above + 1,
                (above + shown).min(sessions.len())
            ));
        }
        lines.resize(height.saturating_sub(1 + events), String::new());
        lines.extend(self.happened.iter().take(events).map(|line| name(line)));
        (self.above, self.page) = (above, shown.max(1));
        lines
    }

    fn head(&self, (figures, status): &(ServerFigures, Status)) -> Vec<String> {
        let rate = figures.bits_per_s.map_or("?".to_owned(), |rate| BitRate(rate).to_string());
        let late = figures.late_packets.unwrap_or(0);
        let mut lines = vec![
            format!("millrace top  {}", name(&self.place)),
            format!(
                "{} streams  {rate}  {} packets/s  {late} late, at most {} since the start",
                figures.streams,
                figures.packets_per_s.unwrap_or(0),
                milliseconds(figures.late_max_s)
            ),
        ];
        lines.extend(figures.limit.as_ref().map(|limit| {
            let share = if limit.of == 0 { 0.0 } else { limit.used as f64 / limit.of as f64 };
            let what = name(&limit.what);
            format!("limit {}  {} of {} {what}", meter(share), limit.used, limit.of)
        }));
        lines.extend(figures.engines.iter().take(TOP_ENGINES).map(engine));
        if figures.engines.len() > TOP_ENGINES {
            lines.push(format!("and {} more engines", figures.engines.len() - TOP_ENGINES));
        }
        lines.extend(status.casts.iter().take(TOP_CASTS).map(cast));
        if status.casts.len() > TOP_CASTS {
            lines.push(format!("and {} more casts", status.casts.len() - TOP_CASTS));
        }
        let troubles = status.members.iter().filter_map(|member| member.trouble.as_ref());
        lines.extend(troubles.take(2).map(|trouble| format!("! {}", name(trouble))));
        lines.extend(status.library.iter().flat_map(library));
        lines
    }

    fn sorted<'a>(&self, status: &'a Status) -> Vec<&'a Session> {
        let mut sessions: Vec<&Session> = status.sessions.iter().collect();
        let lost = |session: &Session| session.lost.unwrap_or(-1.0);
        sessions.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Rate => b.bits_per_s.cmp(&a.bits_per_s),
                Sort::Lost => lost(b).total_cmp(&lost(a)),
                Sort::Age => b.age_s.cmp(&a.age_s),
                Sort::Title => a.title.cmp(&b.title),
                Sort::Viewer => a.peer.cmp(&b.peer),
            };
            let order = if self.is_reversed { order.reverse() } else { order };
            // So that nothing jumps about.
            order.then_with(|| a.session.cmp(&b.session))
        });
        sessions
    }
}

/// The library whose titles are served too.
fn library(library: &LibraryState) -> Vec<String> {
    let (used, of) = (ByteLen(library.cached_bytes), ByteLen(library.space_bytes));
    let (here, all) = (library.cached_titles, library.titles);
    let mut lines =
        vec![format!("library {}  {here} of {all} titles here  {used} of {of}", name(&library.url))];
    lines.extend(library.trouble.iter().map(|trouble| format!("! {}", name(trouble))));
    lines.extend(library.fetches.iter().take(TOP_FETCHES).map(|fetch| match &fetch.trouble {
        None => format!("fetching {}  {} %", name(&fetch.title), fetch.percent),
        Some(trouble) => format!("! {}: {}", name(&fetch.title), name(trouble)),
    }));
    lines
}

fn engine(engine: &Engine) -> String {
    let busy = engine.busy.map_or("?".to_owned(), |busy| format!("{:.0}", busy * 100.0));
    let rate = BitRate(engine.bits_per_s.unwrap_or(0)).to_string();
    format!(
        "engine {}  {} streams  {rate}  busy {busy} %  {} late, at most {}",
        name(&engine.engine),
        engine.streams,
        engine.late_packets.unwrap_or(0),
        milliseconds(engine.late_max_s)
    )
}

fn cast(cast: &Cast) -> String {
    let listeners = Count(cast.listeners, "listener");
    let state = match &cast.trouble {
        Some(trouble) => format!("cannot send: {}", name(trouble)),
        None if cast.is_sending => "sending".to_owned(),
        None => "paused".to_owned(),
    };
    format!("cast {} to {}  {listeners}  {state}", name(&cast.title), name(&cast.to))
}

fn table_head() -> String {
    columns(["SESSION", "TITLE", "VIEWER", "BY", "AT", "RATE", "LOST"])
}

fn row(session: &Session) -> String {
    let position = session.position_s.map_or("?".to_owned(), clock);
    let position = if session.is_playing { position } else { "paused".to_owned() };
    let lost = session.lost.map_or("-".to_owned(), |lost| format!("{:.1} %", lost * 100.0));
    columns([
        &name(&session.session),
        &name(&session.title),
        &name(&session.peer),
        &name(&session.transport),
        &position,
        &BitRate(session.bits_per_s).to_string(),
        &lost,
    ])
}

/// 80 columns: texts on the left of theirs and cut off, figures on the right.
fn columns([session, title, viewer, by, at, rate, lost]: [&str; 7]) -> String {
    format!("{session:<8.8} {title:<17.17} {viewer:<21.21} {by:<4.4} {at:>8} {rate:>10} {lost:>6}")
}

fn left_out(status: &Status) -> Option<String> {
    (status.sessions_left_out > 0).then(|| format!("and {} more sessions", status.sessions_left_out))
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1000.0)
}

/// `h:mm:ss`
fn clock(seconds: f64) -> String {
    let text = MediaTicks((seconds.max(0.0) * MEDIA_HZ as f64) as u64).to_string();
    text.split('.').next().unwrap_or_default().to_owned()
}

/// Twenty places, as many of them full as are used.
fn meter(share: f64) -> String {
    let full = ((share * 20.0).round().clamp(0.0, 20.0)) as usize;
    format!("[{}{}] {:3.0} %", "#".repeat(full), ".".repeat(20 - full), share * 100.0)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
