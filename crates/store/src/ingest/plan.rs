//! What becomes of each stream of a container: copied, transcoded or left out; and the ffmpeg arguments for that.

use std::ffi::OsString;
use std::path::Path;

use millrace_core::limits::FFMPEG_ENCODER_THREADS;
use millrace_core::limits::ladder::MAX_LADDER_SOUNDS;
use millrace_core::limits::volume::{MAX_AUDIO_CHANNELS, MAX_AUDIO_HZ, MAX_AUDIO_STREAMS};
use millrace_core::time::MediaTicks;
use serde::Deserialize;

use super::ladder::{Film, Sound};

/// Container formats that are read. Formats that point to other files or servers (playlists, concat scripts) are not
/// among them, nor are single pictures and text: a title in the drop folder must not make the server read anything else.
pub(super) const FORMATS: &str = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpeg,mpegts,mpegvideo,ogg,wav,w64,mp3,\
    flac,aac,ac3,eac3,dts,h264,hevc,m4v,dv,gxf,mxf,nut,rm,aiff,caf,au,ape,wv,tta,amr,obu,ivf,wtv,truehd,mlp";
/// Formats that are nothing but pictures, in an order that is not that of showing, without time stamps.
const STAMPLESS_FORMATS: &[&str] = &["h264", "hevc", "m4v"];

/// PES packets of a title without pictures: 75 ms of 64 kb/s, 52 ms (two frames) of 128 kb/s. A clock value is wanted
/// every 100 ms (ISO/IEC 13818-1 section 2.7.2).
const SOUND_PES_BYTES: &str = "600";

/// What ffprobe prints, as far as it matters.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Probe {
    #[serde(default)]
    streams: Vec<ProbeStream>,
    #[serde(default)]
    format: ProbeFormat,
}

#[derive(Debug, Default, Deserialize)]
struct ProbeFormat {
    #[serde(default)]
    format_name: String,
    duration: Option<String>,
    #[serde(default)]
    tags: FormatTags,
}

#[derive(Debug, Default, Deserialize)]
struct FormatTags {
    #[serde(alias = "TITLE", alias = "Title")]
    title: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct ProbeStream {
    index: u32,
    #[serde(default)]
    codec_type: String,
    #[serde(default)]
    codec_name: String,
    #[serde(default)]
    sample_rate: String,
    #[serde(default)]
    channels: u32,
    #[serde(default)]
    width: u32,
    #[serde(default)]
    height: u32,
    #[serde(default)]
    avg_frame_rate: String,
    #[serde(default)]
    r_frame_rate: String,
    #[serde(default)]
    sample_aspect_ratio: String,
    #[serde(default)]
    disposition: Disposition,
    #[serde(default)]
    tags: Tags,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Debug, Default, Deserialize)]
struct Disposition {
    #[serde(default)]
    attached_pic: u8,
    #[serde(default)]
    still_image: u8,
    #[serde(default)]
    timed_thumbnails: u8,
}

#[derive(Debug, Default, Deserialize)]
struct Tags {
    language: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

/// What is done, as ffmpeg arguments and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemuxPlan {
    /// Container format, as ffprobe calls it.
    pub format: String,
    /// Media time, if the container says.
    pub duration: Option<MediaTicks>,
    /// The title that the container says.
    pub title: Option<String>,
    /// For the operator: what is transcoded and what is left out, and why.
    pub notes: Vec<String>,
    /// `-map` and codec arguments.
    streams: Vec<String>,
}

/// Why there is nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NothingToPlay {
    /// What the container has instead.
    pub found: String,
}

impl Probe {
    /// From ffprobe's JSON.
    pub(super) fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Chooses the first picture stream and all sound streams.
    pub(super) fn plan(&self) -> Result<RemuxPlan, NothingToPlay> {
        let mut plan = RemuxPlan {
            format: self.format.format_name.clone(),
            duration: self.duration(),
            title: self.format.tags.title.clone(),
            notes: Vec::new(),
            streams: Vec::new(),
        };
        let (mut videos, mut audios, mut left_out) = (0, 0, Vec::new());
        for stream in &self.streams {
            match stream.codec_type.as_str() {
                "video" if stream.is_still() => left_out.push("cover picture".to_owned()),
                "video" if videos > 0 => {
                    left_out.push(format!("further picture stream ({})", stream.codec_name))
                }
                "video" => {
                    plan.video(stream);
                    videos += 1;
                }
                "audio" if audios == MAX_AUDIO_STREAMS => {
                    left_out.push(format!("sound stream {}", stream.words()))
                }
                "audio" => {
                    plan.audio(stream, audios);
                    audios += 1;
                }
                "subtitle" => left_out.push(format!("subtitles {}", stream.words())),
                other => left_out.push(format!("{other} stream ({})", stream.codec_name)),
            }
        }
        if videos + audios == 0 {
            let found = if left_out.is_empty() { "no stream at all".to_owned() } else { left_out.join(", ") };
            return Err(NothingToPlay { found });
        }
        if videos == 0 {
            // The clock comes with each PES packet; by default those of sound are up to half a second long.
            plan.push(["-pes_payload_size", SOUND_PES_BYTES]);
        }
        if !left_out.is_empty() {
            plan.notes.push(format!("left out, not carried in the stream: {}", left_out.join(", ")));
        }
        Ok(plan)
    }

    fn pictures(&self) -> Option<&ProbeStream> {
        self.streams.iter().find(|stream| stream.codec_type == "video" && !stream.is_still())
    }

    /// Whether there is a stream of pictures.
    pub(super) fn has_pictures(&self) -> bool {
        self.pictures().is_some()
    }

    /// What a ladder can be made of; `None` if the pictures' size or rate is not known.
    pub(super) fn film(&self) -> Option<Film> {
        let pictures = self.pictures()?;
        let (width, height) = pictures.shown_size()?;
        let rate = ratio(&pictures.avg_frame_rate, '/').or_else(|| ratio(&pictures.r_frame_rate, '/'))?;
        let (mut sounds, mut notes) = (Vec::new(), Vec::new());
        for stream in &self.streams {
            match stream.codec_type.as_str() {
                "audio" if sounds.len() < MAX_LADDER_SOUNDS => {
                    if stream.channels > 2 {
                        notes.push(format!("sound stream {}: mixed to two channels", stream.words()));
                    }
                    let language = stream.tags.language.clone().filter(|language| language != "und");
                    let (index, channels) = (stream.index, stream.channels.clamp(1, 2));
                    sounds.push(Sound { index, channels, language });
                }
                _ if stream.index == pictures.index => {}
                kind => notes.push(format!("left out: {kind} stream {}", stream.words())),
            }
        }
        let (duration, tag) = (self.duration(), self.format.tags.title.clone());
        Some(Film { pictures: pictures.index, width, height, rate, sounds, duration, tag, notes })
    }

    fn duration(&self) -> Option<MediaTicks> {
        let secs = self.format.duration.as_ref()?.parse().ok()?;
        MediaTicks::from_secs_f64(secs).filter(|ticks| ticks.0 > 0)
    }
}

impl ProbeStream {
    fn is_still(&self) -> bool {
        self.disposition.attached_pic + self.disposition.still_image + self.disposition.timed_thumbnails > 0
    }

    /// Width and height as they are shown: with square pixels, and turned as the file asks.
    fn shown_size(&self) -> Option<(u32, u32)> {
        let (wide, high) = ratio(&self.sample_aspect_ratio, ':').unwrap_or((1, 1));
        let width = u32::try_from(u64::from(self.width) * u64::from(wide) / u64::from(high)).ok()?;
        let rotation = self.side_data_list.iter().find_map(|data| data.rotation).unwrap_or(0.0);
        let is_turned = (rotation / 90.0).round().rem_euclid(2.0) == 1.0;
        let size = if is_turned { (self.height, width) } else { (width, self.height) };
        (size.0 > 1 && size.1 > 1).then_some(size)
    }

    /// "1 (ger, flac)", for notes.
    fn words(&self) -> String {
        let language = self.tags.language.as_deref().filter(|l| *l != "und");
        let codec = if self.codec_name.is_empty() { "unknown" } else { &self.codec_name };
        match language {
            Some(language) => format!("{} ({language}, {codec})", self.index),
            None => format!("{} ({codec})", self.index),
        }
    }
}

impl RemuxPlan {
    fn map(&mut self, stream: &ProbeStream) {
        self.push(["-map", &format!("0:{}", stream.index)]);
    }

    fn push<const N: usize>(&mut self, args: [&str; N]) {
        self.streams.extend(args.map(str::to_owned));
    }

    fn video(&mut self, stream: &ProbeStream) {
        self.map(stream);
        let has_stamps = !STAMPLESS_FORMATS.contains(&self.format.as_str());
        match stream.codec_name.as_str() {
            codec if !has_stamps => {
                self.notes
                    .push(format!("picture: a bare {codec} file has no time stamps, transcoded to H.264"));
                return self.transcode_video();
            }
            "h264" | "hevc" | "mpeg1video" | "mpeg2video" => self.push(["-c:v:0", "copy"]),
            // Files keep the headers apart and pack pictures in pairs; a stream can do neither.
            "mpeg4" => self.push(["-c:v:0", "copy", "-bsf:v:0", "mpeg4_unpack_bframes,dump_extra"]),
            codec => {
                self.notes.push(format!("picture: {codec} cannot be carried, transcoded to H.264"));
                return self.transcode_video();
            }
        }
        let rotation = stream.side_data_list.iter().find_map(|s| s.rotation).unwrap_or(0.0);
        if rotation != 0.0 {
            self.notes.push(format!(
                "picture: the file asks players to turn it by {rotation} degrees, which the stream cannot carry; \
                 it plays unturned (ffmpeg -i IN OUT.ts turns the pictures themselves)"
            ));
        }
    }

    fn transcode_video(&mut self) {
        // A key frame every two seconds to seek to; even sides, because 4:2:0 needs them.
        self.push(["-c:v:0", "libx264", "-preset:v:0", "veryfast", "-crf:v:0", "20"]);
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > FFMPEG_ENCODER_THREADS) {
            self.push(["-threads:v:0", &FFMPEG_ENCODER_THREADS.to_string()]);
        }
        self.push(["-force_key_frames:v:0", "expr:gte(t,n_forced*2)"]);
        self.push(["-filter:v:0", "scale=trunc(iw/2)*2:trunc(ih/2)*2,format=yuv420p"]);
    }

    fn audio(&mut self, stream: &ProbeStream, number: usize) {
        self.map(stream);
        let codec_option = format!("-c:a:{number}");
        if matches!(
            stream.codec_name.as_str(),
            "aac" | "aac_latm" | "ac3" | "eac3" | "mp1" | "mp2" | "mp3" | "dts" | "truehd" | "s302m"
        ) {
            self.push([&codec_option, "copy"]);
            return;
        }
        self.notes.push(format!("sound stream {}: cannot be carried, transcoded to AAC", stream.words()));
        let channels = stream.channels.clamp(1, MAX_AUDIO_CHANNELS);
        let kb_per_s = if channels <= 2 { 96 * channels } else { 64 * channels };
        self.push([&codec_option, "aac", &format!("-b:a:{number}"), &format!("{kb_per_s}k")]);
        if stream.channels > MAX_AUDIO_CHANNELS {
            self.push([&format!("-ac:a:{number}"), "2"]);
        }
        if stream.sample_rate.parse::<u32>().is_ok_and(|hz| hz > MAX_AUDIO_HZ) {
            self.push([&format!("-ar:a:{number}"), &MAX_AUDIO_HZ.to_string()]);
        }
    }

    /// Arguments for ffmpeg: reads `source`, writes a transport stream of variable rate to its standard output.
    pub(super) fn ffmpeg_args(&self, source: &Path) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["-nostdin", "-hide_banner", "-v", "error"].map(OsString::from).into();
        // Containers without presentation times (AVI) get them.
        args.extend(["-fflags", "+genpts"].map(OsString::from));
        args.extend(input_args(source));
        args.extend(self.streams.iter().map(OsString::from));
        args.extend(
            // Time values every 20 ms or every picture; packets leave when a block is full, not one by one.
            ["-map_chapters", "-1", "-max_muxing_queue_size", "4096", "-flush_packets", "0"]
                .map(OsString::from),
        );
        args.extend(["-f", "mpegts", "-pcr_period", "20"].map(OsString::from));
        // Pictures with their lengths: a player need not wait for the next one to know that one is whole, and FFmpeg, which over
        // RTP never learns that a stream has ended, shows the last.
        args.extend(["-omit_video_pes_length", "0", "pipe:1"].map(OsString::from));
        args
    }
}

/// Arguments for ffprobe.
pub(super) fn ffprobe_args(source: &Path) -> Vec<OsString> {
    let mut args: Vec<OsString> =
        ["-hide_banner", "-v", "error", "-of", "json", "-show_format", "-show_streams"]
            .map(OsString::from)
            .into();
    args.extend(input_args(source));
    args
}

/// Two numbers, neither of them 0.
fn ratio(text: &str, between: char) -> Option<(u32, u32)> {
    let (a, b) = text.split_once(between)?;
    let (a, b): (u32, u32) = (a.parse().ok()?, b.parse().ok()?);
    (a > 0 && b > 0).then_some((a, b))
}

/// The input, restricted to local containers. `file:` keeps a name like `concat:a|b` or `-x` from meaning something.
pub(super) fn input_args(source: &Path) -> Vec<OsString> {
    let mut input = OsString::from("file:");
    input.push(source);
    let mut args: Vec<OsString> =
        ["-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS, "-i"].map(OsString::from).into();
    args.push(input);
    args
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
