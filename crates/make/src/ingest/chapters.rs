//! Chapters of a container, as ffprobe prints them.

use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_store::volume::{Chapter, title_text};
use serde::Deserialize;

use crate::limits::ingest::MAX_CHAPTERS;

/// A chapter in ffprobe's JSON.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ProbeChapter {
    /// Seconds on the clock of the file.
    #[serde(default)]
    start_time: String,
    #[serde(default)]
    tags: ChapterTags,
}

#[derive(Debug, Default, Deserialize)]
struct ChapterTags {
    #[serde(default, alias = "TITLE", alias = "Title")]
    title: String,
}

/// The chapters of a file, timed from where players begin to show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileChapters(Vec<FileChapter>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileChapter {
    start_ticks: i64,
    title: String,
}

impl FileChapters {
    /// Those of a file whose clock begins at `file_start_s`. A chapter without a time is left out.
    pub(crate) fn new(found: &[ProbeChapter], file_start_s: f64) -> Self {
        let chapter = |one: &ProbeChapter| {
            let start_s = one.start_time.parse::<f64>().ok()? - file_start_s;
            // Saturates; NaN becomes 0.
            let start_ticks = (start_s * MEDIA_HZ as f64).round() as i64;
            Some(FileChapter { start_ticks, title: title_text(&one.tags.title) })
        };
        Self(found.iter().filter_map(chapter).collect())
    }

    /// The chapters of a title of this duration that begins at `source_start` ticks. One that began
    /// earlier begins with the title; of several at the same time the last counts. A single chapter
    /// is the whole film, so there is none then.
    pub(crate) fn of_title(&self, source_start: i64, duration: MediaTicks) -> Vec<Chapter> {
        let chapter = |one: &FileChapter| {
            let start = one.start_ticks.saturating_sub(source_start).max(0).cast_unsigned();
            Chapter { start: MediaTicks(start), title: one.title.clone() }
        };
        let mut all: Vec<_> = self.0.iter().map(chapter).filter(|one| one.start < duration).collect();
        // The sort is stable, and the first of equals stays.
        all.reverse();
        all.sort_by_key(|one| one.start);
        all.dedup_by_key(|one| one.start);
        all.truncate(MAX_CHAPTERS);
        if all.len() > 1 { all } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(starts: &[(&str, &str)]) -> Vec<ProbeChapter> {
        let one = |&(start_time, title): &(&str, &str)| ProbeChapter {
            start_time: start_time.to_owned(),
            tags: ChapterTags { title: title.to_owned() },
        };
        starts.iter().map(one).collect()
    }

    fn of_title(starts: &[(&str, &str)], file_start_s: f64, source_start: i64) -> Vec<(u64, String)> {
        let chapters = FileChapters::new(&found(starts), file_start_s);
        let of = chapters.of_title(source_start, MediaTicks(10 * MEDIA_HZ));
        of.into_iter().map(|one| (one.start.0, one.title)).collect()
    }

    #[test]
    fn chapters_are_timed_from_the_start_of_the_title() {
        let starts = [("1.5", "One"), ("4.5", "Two")];
        // The title begins 0.1 s before players begin to show the file.
        let expected = [(9_000, "One".to_owned()), (279_000, "Two".to_owned())];
        assert_eq!(of_title(&starts, 1.5, -9_000), expected);
    }

    #[test]
    fn chapters_out_of_order_or_range_become_an_ascending_list() {
        let starts = [
            ("5", "Later"),
            ("-3", "Earlier"),
            ("0", "Start"),
            ("", "Never"),
            ("10", "Behind"),
            ("inf", "End\u{202e}less"),
            ("2", "A\nB"),
        ];
        let expected = [(0, "Start".to_owned()), (180_000, "A B".to_owned()), (450_000, "Later".to_owned())];
        assert_eq!(of_title(&starts, 0.0, 0), expected);
    }

    #[test]
    fn chapters_are_none_where_one_is_the_whole() {
        assert_eq!(of_title(&[("0", "Film"), ("12", "Behind")], 0.0, 0), []);
    }

    #[test]
    fn chapters_have_a_bound() {
        let starts: Vec<_> = (0..2 * MAX_CHAPTERS).map(|at| format!("0.{at:04}")).collect();
        let starts: Vec<_> = starts.iter().map(|start| (start.as_str(), "")).collect();
        assert_eq!(of_title(&starts, 0.0, 0).len(), MAX_CHAPTERS);
    }
}
