//! Everything that commands print goes through here, so that two things hold for all of it:
//!
//! * Text from outside reaches no terminal raw: unprintable characters are escaped
//!   ([`millrace_core::text`]), line ends excepted.
//! * When the reader has seen enough (`millrace volume status | head -1`), the rest is dropped and the command goes on to its end.
//!
//! [`stdout`] is the writer, and the macros of this crate write to it.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::text::{Printable, PrintableLines, is_printable};
use tracing::field::{Field, Visit};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

/// The reader of standard output is gone.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Standard output for text.
pub fn stdout() -> TextOut<io::StdoutLock<'static>> {
    TextOut { to: io::stdout().lock(), closed: &STDOUT_CLOSED }
}

/// Standard output for media, which are no text and go to files and pipes.
pub fn media_stdout() -> io::StdoutLock<'static> {
    io::stdout().lock()
}

/// Standard output for a display that moves the cursor: its text has passed through [`name`].
pub fn screen() -> io::StdoutLock<'static> {
    io::stdout().lock()
}

/// The same for whoever must not wait for others that write to it.
pub fn screen_without_lock() -> impl AsFd {
    io::stdout()
}

/// Whether standard output is a terminal.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// A writer of text that escapes unprintable characters, and drops everything once its reader is
/// gone.
pub struct TextOut<W> {
    to: W,
    closed: &'static AtomicBool,
}

impl<W: Write> Write for TextOut<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.closed.load(Ordering::Relaxed) {
            // Formatting hands over whole strings; a character cut in two would only look worse.
            let text = String::from_utf8_lossy(bytes);
            let written = write!(self.to, "{}", PrintableLines(text));
            self.unless_closed(written)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.unless_closed(flushed)
    }
}

impl<W> TextOut<W> {
    fn unless_closed(&self, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => other,
        }
    }
}

/// What `print!` does. Standard output on a full disk is an error that nothing here could handle.
pub fn print(text: fmt::Arguments<'_>, end: &str) {
    let _ = write!(stdout(), "{text}{end}");
}

/// What `eprint!` does.
pub fn eprint(text: fmt::Arguments<'_>, end: &str) {
    let _ = write!(io::stderr().lock(), "{}{end}", PrintableLines(text));
}

/// Returns JSON in which every string is printable: other characters are written like `\u202e`,
/// which means the same to any reader.
pub fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        // Line ends and spaces stand between the values; within strings they are escaped already.
        if is_printable(c) || c == '\n' {
            out.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        }
    }
    out
}

/// What log lines look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log on standard error, every line of it printable.
pub fn start_log(filter: tracing_subscriber::EnvFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(io::stderr);
    // A second call in the same process (tests) keeps the first log.
    let _ = match format {
        LogFormat::Text => log.with_ansi(stderr_is_terminal()).fmt_fields(log_fields()).try_init(),
        LogFormat::Json => log.event_format(JsonLines).try_init(),
    };
}

/// Lines of JSON: `time`, `level`, `target`, `message`, and the fields that the line has beside it.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = JsonFields(serde_json::Map::new());
        line.0.insert("time".to_owned(), time.into());
        line.0.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.0.insert("target".to_owned(), event.metadata().target().into());
        event.record(&mut line);
        let line = serde_json::Value::Object(line.0).to_string();
        writeln!(to, "{}", printable_json(&line))
    }
}

/// Fields of a line.
struct JsonFields(serde_json::Map<String, serde_json::Value>);

impl Visit for JsonFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

/// How the fields of a log line are written: the message as it is, others with their names, all on one line.
fn log_fields() -> impl for<'writer> tracing_subscriber::fmt::FormatFields<'writer> + Send + Sync + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let value = format_args!("{value:?}").to_string();
        match field.name() {
            "message" => write!(writer, "{}", Printable(value)),
            // It stands in the message already.
            "id" => Ok(()),
            // The message comes first.
            name => write!(writer, " {name}={}", Printable(value)),
        }
    };
    debug_fn(field)
}

/// A name from outside within a line.
pub fn name(text: &str) -> String {
    Printable(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Accepts a number of bytes, then its reader is gone.
    struct Pipe(Vec<u8>, usize);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.0.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn text_out_with_closed_pipe_discards_rest_without_error() {
        static CLOSED: AtomicBool = AtomicBool::new(false);
        let mut out = TextOut { to: Pipe(Vec::new(), 16), closed: &CLOSED };
        for line in 0..10 {
            writeln!(out, "line {line}\u{1b}c").unwrap();
        }
        assert_eq!(out.to.0, b"line 0\\u{1b}c\n");
        assert!(CLOSED.load(Ordering::Relaxed));
    }

    #[test]
    fn json_stays_json() {
        let text = "a\u{202e}b\u{9b}c\u{e0041}d\n\u{1b}\"";
        let json = serde_json::to_string_pretty(&[text]).unwrap();
        let shown = printable_json(&json);
        assert!(shown.chars().all(|c| is_printable(c) || c == '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&shown).unwrap(), [text]);
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_lines_event_has_level_message_and_fields() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(JsonLines).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let agent = "VLC\u{202e}\u{1b}[2J\nWARN forged";
            let (id, none) = (Some("http-3.1".to_owned()), None::<String>);
            tracing::warn!(id, none, count = 7, "session started ({agent})");
            tracing::info!("another");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        assert!(text.chars().all(|c| is_printable(c) || c == '\n'), "{text}");
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second] = &lines[..] else { panic!("{text}") };
        assert_eq!(
            (&first["level"], &first["id"], &first["count"]),
            (&"WARN".into(), &"http-3.1".into(), &7.into())
        );
        assert_eq!(first["message"], "session started (VLC\u{202e}\u{1b}[2J\nWARN forged)");
        assert!(first["time"].as_str().unwrap().ends_with('Z') && first.get("none").is_none(), "{text}");
        assert_eq!((&second["level"], &second["message"]), (&"INFO".into(), &"another".into()));
    }

    #[test]
    fn log_fields_with_control_characters_print_one_line() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .fmt_fields(log_fields())
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let agent = "VLC\u{202e}\u{1b}[2J\nWARN forged";
            tracing::warn!(agent, "session started ({agent})");
        });
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let shown = "session started (VLC\\u{202e}\\u{1b}[2J\\nWARN forged)";
        assert!(text.contains(shown) && text.ends_with('\n'), "{text}");
        assert!(text.trim_end().chars().all(is_printable), "{text}");
    }
}
