//! `millrace add --subtitles TITLE`: adds subtitles to an existing title, in a store or on a
//! running server.

use std::ffi::OsStr;
use std::io::{BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use millrace_make::sidecar::{Sidecar, read_file};
use millrace_media::subtitles::{NotALabel, SubtitleLabel, Subtitles};
use millrace_store::volume::{NewSubtitles, Volume};

use super::remote::{Remote, read_head};
use crate::limits::web::MAX_API_BYTES;

/// The files to add, and the title that they belong to.
pub(super) struct To<'a> {
    pub(super) title: &'a str,
    pub(super) files: &'a [PathBuf],
    pub(super) quiet: bool,
    pub(super) json: bool,
}

impl To<'_> {
    /// Calls `add` for every file and prints the notes that it returns. A file that fails does not
    /// stop the others.
    fn each(
        &self,
        mut add: impl FnMut(&SubtitleLabel, &[u8]) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<ExitCode> {
        let named: Vec<_> = self.files.iter().map(|file| labelled(file)).collect::<anyhow::Result<_>>()?;
        let mut failed = 0;
        for (label, path) in named {
            let bytes = read_file(&path).map_err(anyhow::Error::from).and_then(|read| Ok(read?));
            let added =
                bytes.and_then(|bytes| add(&label, &bytes)).with_context(|| path.display().to_string());
            match added {
                Ok(notes) if !self.quiet && !self.json => {
                    println!("added subtitles {label} to {}", self.title);
                    notes.iter().for_each(|note| println!("  note: {note}"));
                }
                Ok(_) => {}
                Err(error) => {
                    failed += 1;
                    super::complain(&error);
                }
            }
        }
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Adds the files to a title in a store.
pub(super) fn to_store(to: &To<'_>, volume: &Volume) -> anyhow::Result<ExitCode> {
    let found = volume.find(to.title)?;
    let title = found.ok_or_else(|| anyhow!("{}: there is no such title; see: millrace ls", to.title))?;
    let code = to.each(|label, bytes| {
        let read = Subtitles::read(bytes, -title.source_start / 90)?;
        let text = read.to_webvtt()?;
        volume.put_subtitles(
            title.id,
            &NewSubtitles { label: label.clone(), name: None, text, source: None },
        )?;
        Ok(read.notes)
    })?;
    if to.json
        && let Some(title) = volume.find(to.title)?
    {
        super::print_json(&title)?;
    }
    Ok(code)
}

/// Adds the files to a title on a running server.
pub(super) fn to_server(to: &To<'_>, remote: &Remote) -> anyhow::Result<ExitCode> {
    remote.sign_in()?;
    let code = to.each(|label, bytes| {
        put(remote, &format!("titles/{}/subtitles/{label}.vtt", to.title), bytes).map(|()| Vec::new())
    })?;
    if to.json {
        let title: serde_json::Value = remote.get(&format!("api/v1/titles/{}", to.title))?;
        super::print_json(&title)?;
    }
    Ok(code)
}

fn put(remote: &Remote, path: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let place = || format!("{}{path}", remote.place());
    let mut stream = remote.connect().with_context(place)?;
    let head = remote.head("PUT", path, "1.1");
    let head = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
    // A server that refuses the upload replies before it closes the connection, so a failed write
    // does not mean that there is no reply.
    let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(bytes));
    let sent = sent.and_then(|()| stream.flush());
    let mut stream = BufReader::new(stream);
    let head = match (read_head(&mut stream), sent) {
        (Ok(head), _) => head,
        (Err(_), Err(error)) => return Err(error).with_context(place),
        (Err(error), Ok(())) => return Err(error.context(place())),
    };
    if head.status < 300 {
        return Ok(());
    }
    let mut text = Vec::new();
    // A truncated body does no harm: the status is in the head.
    let _ = stream.take(MAX_API_BYTES).read_to_end(&mut text);
    let hint = match head.status {
        403 => "; a user needs the right to upload: millrace user add NAME --upload, on the server",
        _ => "",
    };
    Err(remote.refusal(path, &head, &text, hint))
}

/// Splits an argument into label and file: FILE, whose name contains the label, or LABEL=FILE.
fn labelled(given: &Path) -> anyhow::Result<(SubtitleLabel, PathBuf)> {
    let bytes = given.as_os_str().as_bytes();
    if let Some(at) = bytes.iter().position(|byte| *byte == b'=') {
        let label: Result<SubtitleLabel, NotALabel> = String::from_utf8_lossy(&bytes[..at]).parse();
        // A file name may contain `=` too.
        if label.is_ok() || !given.exists() {
            let label = label.map_err(|error| super::usage(error.into()))?;
            return Ok((label, PathBuf::from(OsStr::from_bytes(&bytes[at + 1..]))));
        }
    }
    let found = Sidecar::of_any(given).map(|sidecar| (sidecar.label, given.to_path_buf()));
    found.ok_or_else(|| {
        let name = given.display();
        super::usage(anyhow!(
            "{name}: the file name contains no language; write LANGUAGE={name}, for example de={name}"
        ))
    })
}
