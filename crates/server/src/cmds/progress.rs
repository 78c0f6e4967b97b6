//! Progress bars: rate, time left, for ingest media time; silent without a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_core::units::{BitRate, ByteLen};
use millrace_make::ingest::{IngestProgress, IngestStage};
use millrace_store::volume::TitleInfo;

/// One line that is redrawn on standard error, if that is a terminal and `quiet` is off.
pub(crate) struct IngestBar {
    bar: ProgressBar,
    name: String,
}

impl IngestBar {
    /// For the file `name`.
    pub(crate) fn new(name: &str, quiet: bool) -> Self {
        Self { bar: bar("{msg}", quiet), name: super::terminal::name(name) }
    }

    /// Shows where the ingest is.
    pub(crate) fn show(&self, progress: &IngestProgress) {
        let stage = match progress.stage {
            IngestStage::Probing => "looking",
            IngestStage::Remuxing => "remuxing",
            IngestStage::Indexing => "adding",
            IngestStage::Committing => "writing out",
        };
        // A remux knows its length in media time, a plain copy in bytes.
        let (done, total, bytes) = match (progress.bytes_total, progress.media_total) {
            (Some(total), _) => (progress.bytes_done, total, true),
            (None, Some(total)) => (progress.media_done.0, total.0, false),
            (None, None) => (progress.bytes_done, 0, true),
        };
        let template = match (total > 0, bytes) {
            (true, true) => "{msg} [{bar:30}] {percent:>3} %  {binary_bytes_per_sec}  {eta} left",
            (true, false) => "{msg} [{bar:30}] {percent:>3} %  {eta} left",
            (false, _) => "{msg} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        };
        set_form(&self.bar, template);
        self.bar.set_length(total.max(1));
        self.bar.set_position(done);
        self.bar.set_message(format!("{stage} {} {}", self.name, progress.media_done));
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// One line of this form that is redrawn on standard error, if that is a terminal and `quiet` is off.
pub(crate) fn bar(template: &str, quiet: bool) -> ProgressBar {
    let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    set_form(&bar, template);
    bar
}

fn set_form(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}

/// The codecs of a title, for people.
pub(crate) fn codecs(title: &TitleInfo) -> String {
    // Titles of older versions have the number where nothing more was known.
    let name = |codec: &str| if codec == "stream type 0x06" { "private data" } else { codec }.to_owned();
    title.streams.iter().map(|stream| name(&stream.codec)).collect::<Vec<_>>().join(" + ")
}

/// One line about a title, for people.
pub(crate) fn describe(title: &TitleInfo) -> String {
    let shape = if title.constant_rate { "CBR" } else { "VBR" };
    format!(
        "{}  {}  {} {shape} (peak {})  {}  {}",
        super::terminal::name(&title.name),
        title.duration,
        BitRate(title.mean_rate.0),
        title.peak_rate,
        ByteLen(title.bytes),
        codecs(title),
    )
}
