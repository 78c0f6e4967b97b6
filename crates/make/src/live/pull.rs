//! A live source that the ffmpeg program fetches: cameras by RTSP, playlists of HLS, and others.
//!
//! ```text
//!   ffprobe URL ─► which streams? ─► ffmpeg URL, video copied, audio copied or made AAC ─► MPEG-TS by a pipe
//! ```
//!
//! Both programs are bounded and locked in as those are that read films, except that they may use
//! the network. They run until the source ends; starting them again is the caller's.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;

use crate::ingest::bounds::ProcessBounds;
use crate::ingest::child::{ChildStop, HelperProgram};
use crate::ingest::plan::COPIED_AUDIO;
use crate::ingest::remux::ffprobe_beside;
use crate::ingest::sandbox::HelperFiles;
use crate::ingest::{Exceeded, FfmpegBounds};
use crate::limits::ingest::MAX_PROBE_BYTES;
use crate::limits::live::{PULL_ANALYSIS, PULL_PROCESSOR, PULL_READ_BYTES, PULL_SILENCE};

/// Schemes of the URLs that ffmpeg fetches.
pub const PULL_SCHEMES: &[&str] = &["rtsp", "rtsps", "http", "https", "rtmp", "rtmps", "srt"];

/// Protocols that a source may lead to. Files are not among them: a playlist of a stranger must not name one.
const PROTOCOLS: &str =
    "rtsp,rtsps,rtp,srtp,udp,tcp,tls,http,https,httpproxy,rtmp,rtmps,rtmpt,rtmpts,srt,crypto,data";

/// Video codecs that a transport stream carries unchanged. Nothing else is encoded here: it would take a core for each source.
const COPIED_VIDEO: &[&str] = &["h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"];

/// The address of a source. It may have a name and a password, which are not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PullUrl(String);

impl PullUrl {
    /// `None`: it has another scheme, or no host.
    pub fn new(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let host = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
        let is_known = PULL_SCHEMES.contains(&scheme) && !host.is_empty() && !host.starts_with(':');
        (is_known && !url.contains(char::is_whitespace)).then(|| Self(url.to_owned()))
    }
}

/// Without its name, password and query.
impl fmt::Display for PullUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secrets(&self.0))
    }
}

impl fmt::Debug for PullUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullUrl({self})")
    }
}

/// The text with each URL in it cut down to scheme, host and path: names, passwords and queries give access.
pub fn without_secrets(text: &str) -> String {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '<' | '>');
    // An apostrophe may be part of a URL (RFC 3986 section 2.2): it ends one only where a quotation ends.
    let end = |text: &str| {
        let all = text.find(is_end).unwrap_or(text.len());
        let quote = text[..all].rfind('\'');
        quote.filter(|at| text[at + 1..all].chars().all(|c| c.is_ascii_punctuation())).unwrap_or(all)
    };
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        let (url, after) = behind.split_at(end(behind));
        // A password may have any of the characters that end it elsewhere: everything before the last @ goes.
        let behind = url.rsplit('@').next().unwrap_or_default();
        let shown = behind.split(['?', '#']).next().unwrap_or_default();
        // The message that goes on behind a URL has its colon.
        let mark = if shown.len() < behind.len() && behind.ends_with(':') { ":" } else { "" };
        out.extend([before, shown, mark]);
        rest = after;
    }
    out + rest
}

/// News of a source that is fetched.
#[derive(Debug)]
pub enum PullEvent<'a> {
    /// The next bytes of its transport stream.
    Bytes(&'a [u8]),
    /// None for 50 ms.
    Idle,
}

/// The program that fetches sources.
#[derive(Clone, Debug)]
pub struct LivePull {
    /// ffmpeg; ffprobe is looked for beside it.
    pub ffmpeg: PathBuf,
    /// Its memory, and whether it is locked in.
    pub bounds: FfmpegBounds,
}

impl LivePull {
    /// Fetches `url` until it ends, and returns why it did; `None`: it was cancelled.
    pub fn run(
        &self,
        url: &PullUrl,
        cancel: &AtomicBool,
        take: &mut dyn FnMut(PullEvent<'_>),
    ) -> Option<String> {
        let ended = self.plan(url, cancel, take).and_then(|plan| self.fetch(url, &plan, cancel, take));
        let why = match ended {
            Ok(()) => "the source has ended".to_owned(),
            Err(PullStop::Unfit(why)) => why,
            Err(PullStop::Child(program, stop)) => in_words(&program, stop)?,
        };
        Some(without_secrets(&why))
    }

    fn plan(
        &self,
        url: &PullUrl,
        cancel: &AtomicBool,
        take: &mut dyn FnMut(PullEvent<'_>),
    ) -> Result<PullPlan, PullStop> {
        let program = ffprobe_beside(&self.ffmpeg);
        let mut command = Command::new(&program);
        command.args(["-hide_banner", "-v", "error", "-of", "json"]);
        command.args(["-show_entries", "stream=codec_type,codec_name"]);
        command.args(input_args(url));
        let mut json = Vec::new();
        let mut idle = || take(PullEvent::Idle);
        self.read(command, cancel, &mut idle, &mut |bytes| {
            let space = MAX_PROBE_BYTES.saturating_sub(json.len());
            json.extend_from_slice(&bytes[..bytes.len().min(space)]);
        })?;
        let probed: Probed = serde_json::from_slice(&json)
            .map_err(|error| PullStop::Unfit(format!("ffprobe's description cannot be read: {error}")))?;
        probed.plan().map_err(PullStop::Unfit)
    }

    fn fetch(
        &self,
        url: &PullUrl,
        plan: &PullPlan,
        cancel: &AtomicBool,
        take: &mut dyn FnMut(PullEvent<'_>),
    ) -> Result<(), PullStop> {
        let mut command = Command::new(&self.ffmpeg);
        command.args(["-hide_banner", "-nostdin", "-v", "error"]);
        command.args(input_args(url)).args(plan.output_args());
        // Both callbacks hand on to the one of the caller.
        let take = std::cell::RefCell::new(take);
        self.read(command, cancel, &mut || take.borrow_mut()(PullEvent::Idle), &mut |bytes| {
            take.borrow_mut()(PullEvent::Bytes(bytes));
        })
    }

    fn read(
        &self,
        command: Command,
        cancel: &AtomicBool,
        idle: &mut dyn FnMut(),
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), PullStop> {
        let program = PathBuf::from(command.get_program());
        let failed = |stop| PullStop::Child(program.clone(), stop);
        let bounds = ProcessBounds {
            memory: self.bounds.memory,
            processor: PULL_PROCESSOR,
            silence: PULL_SILENCE,
            sandbox: self.bounds.sandbox,
        };
        let files = HelperFiles { has_network: true, ..HelperFiles::default() };
        let mut child = HelperProgram::start(command, files, bounds).map_err(failed)?;
        let mut space = vec![0; PULL_READ_BYTES];
        loop {
            match child.read(&mut space, cancel, idle).map_err(failed)? {
                0 => return child.finish(cancel, idle).map_err(failed),
                count => take(&space[..count]),
            }
        }
    }
}

enum PullStop {
    Child(PathBuf, ChildStop),
    /// There is nothing that can be sent.
    Unfit(String),
}

/// `None`: it was cancelled.
fn in_words(program: &Path, stop: ChildStop) -> Option<String> {
    let program = program.file_name().unwrap_or(program.as_os_str()).display();
    Some(match stop {
        ChildStop::Cancelled => return None,
        ChildStop::Start(error) => {
            format!("{program} cannot be started: {error}; install ffmpeg, or name it with --ffmpeg")
        }
        ChildStop::Read(error) => format!("the output of {program} was lost: {error}"),
        ChildStop::Exceeded(Exceeded::Silence { most }) => format!("nothing has come for {most}"),
        ChildStop::Exceeded(exceeded) => format!("{program} was ended: {exceeded}"),
        ChildStop::Failed { status, said } if said.is_empty() => format!("{program} ended with {status}"),
        ChildStop::Failed { said, .. } => {
            let last = said.rsplit("; ").next().unwrap_or(&said);
            format!("{program}: {last}")
        }
    })
}

/// How a source is opened.
fn input_args(url: &PullUrl) -> Vec<OsString> {
    let micros = |time: std::time::Duration| time.as_micros().to_string();
    let is_rtsp = url.0.starts_with("rtsp");
    // RTSP has an option of its own for the time without data.
    let timeout = if is_rtsp { "-timeout" } else { "-rw_timeout" };
    let mut args =
        vec!["-protocol_whitelist".into(), PROTOCOLS.into(), timeout.into(), micros(PULL_SILENCE).into()];
    if is_rtsp {
        // A connection loses nothing on its way.
        args.extend(["-rtsp_flags", "prefer_tcp"].map(OsString::from));
    }
    args.extend([
        "-analyzeduration".into(),
        micros(PULL_ANALYSIS).into(),
        "-fflags".into(),
        "+genpts".into(),
    ]);
    args.extend(["-i".into(), url.0.clone().into()]);
    args
}

#[derive(Debug, Default, Deserialize)]
struct Probed {
    #[serde(default)]
    streams: Vec<ProbedStream>,
}

#[derive(Debug, Deserialize)]
struct ProbedStream {
    #[serde(default)]
    codec_type: String,
    #[serde(default)]
    codec_name: String,
}

/// What becomes of the streams: ffmpeg itself takes the largest picture and the audio with the most channels.
#[derive(Debug, PartialEq, Eq)]
struct PullPlan {
    video: Option<String>,
    copies_audio: bool,
}

impl Probed {
    /// Otherwise the reason why nothing can be sent.
    fn plan(&self) -> Result<PullPlan, String> {
        let of = |kind: &str| {
            let all = self.streams.iter().filter(move |stream| stream.codec_type == kind);
            all.map(|stream| stream.codec_name.as_str()).collect::<Vec<_>>()
        };
        let (video, audio) = (of("video"), of("audio"));
        if let Some(codec) = video.iter().find(|codec| !COPIED_VIDEO.contains(codec)) {
            let codec = if codec.is_empty() { "unknown" } else { *codec };
            return Err(format!(
                "its video is {codec}, which MPEG-TS does not carry; set the source to H.264 or H.265"
            ));
        }
        if video.is_empty() && audio.is_empty() {
            return Err("it has neither video nor audio; check its address".to_owned());
        }
        let copies_audio = audio.iter().all(|codec| COPIED_AUDIO.contains(codec));
        Ok(PullPlan { video: video.first().map(|&codec| codec.to_owned()), copies_audio })
    }
}

impl PullPlan {
    fn output_args(&self) -> Vec<&'static str> {
        let mut args = vec!["-sn", "-dn", "-c:v", "copy"];
        if self.video.as_deref() == Some("h264") {
            // Cameras send the parameter sets once, beside the stream.
            args.extend(["-bsf:v", "h264_mp4toannexb,dump_extra=freq=keyframe"]);
        }
        let audio: &[_] = match self.copies_audio {
            true => &["-c:a", "copy"],
            false => &["-c:a", "aac", "-b:a", "128k", "-ac", "2", "-af", "aresample=async=1"],
        };
        args.extend(audio);
        // Audio that pauses must not hold the pictures back.
        args.extend(["-max_interleave_delta", "1000000", "-muxdelay", "0", "-muxpreload", "0"]);
        args.extend(["-flush_packets", "1", "-f", "mpegts", "pipe:1"]);
        args
    }
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
