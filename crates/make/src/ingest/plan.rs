//! The treatment of each stream of a container: copied, transcoded or left out; and the ffmpeg
//! arguments for it.

use std::ffi::OsString;
use std::time::Duration;

use millrace_core::time::MediaTicks;
use millrace_media::subtitles::clean_name;
use serde::Deserialize;

use super::chapters::{FileChapters, ProbeChapter};
use super::clock_fill::MUX_DELAY_SECS;
use super::mp4::Joined;
use super::subtitles::TextStream;
use super::web_audio::WebAudio;
use crate::ladder::{LadderSource, Sound};
use crate::limits::FFMPEG_ENCODER_THREADS;
use crate::limits::ingest::{
    MAX_AUDIO_CHANNELS, MAX_AUDIO_HZ, MAX_AUDIO_STREAMS, MAX_PRIMING, MAX_TRANSCODED_HZ, WEB_AUDIO_KBITS,
};
use crate::limits::ladder::MAX_LADDER_SOUNDS;

/// Container formats that are read. Formats that point to other files or servers (playlists, concat scripts) are not
/// among them, nor are single pictures and text: a title in the drop folder must not make the server read anything else.
pub(crate) const FORMATS: &str = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpeg,mpegts,mpegvideo,ogg,wav,w64,mp3,\
    flac,aac,ac3,eac3,dts,h264,hevc,m4v,dv,gxf,mxf,nut,rm,aiff,caf,au,ape,wv,tta,amr,obu,ivf,wtv,truehd,mlp";
/// Maximum interleaving distance of packets in the file, in microseconds. Beyond it, the
/// multiplexer no longer waits for a stream. ffmpeg's default of 10 s is too short for the gaps
/// that encoders leave at the end of a stream.
const MAX_INTERLEAVE_US: &str = "30000000";
/// Packets of the file that ffprobe lists. The first packet of each stream shows whether players
/// leave out its beginning.
const PROBED_PACKETS: &str = "%+#64";
/// Where ffmpeg and ffprobe find the file.
pub(crate) const INPUT: &str = "file:/proc/self/fd/0";
/// Audio codecs that a transport stream carries unchanged.
pub(crate) const COPIED_AUDIO: &[&str] =
    &["aac", "aac_latm", "ac3", "eac3", "mp1", "mp2", "mp3", "dts", "truehd", "s302m"];
/// Formats that are nothing but pictures, in an order that is not that of showing, without time stamps.
const STAMPLESS_FORMATS: &[&str] = &["h264", "hevc", "m4v"];

/// Bit stream filters for copied pictures: the parameter sets (sequence header) go before each picture that decoding can start
/// at. Containers keep them apart, and ffmpeg itself adds them to IDR pictures only, so an open group of H.264 could not be
/// decoded after a seek.
const PARAMETER_SETS: &[(&str, &str)] = &[
    ("h264", "h264_mp4toannexb,dump_extra=freq=keyframe"),
    ("mpeg1video", "dump_extra=freq=keyframe"),
    ("mpeg2video", "dump_extra=freq=keyframe"),
    // Files pack pictures in pairs; a stream cannot.
    ("mpeg4", "mpeg4_unpack_bframes,dump_extra=freq=keyframe"),
];
/// Pixel formats of H.264 that browsers decode.
const BROWSER_PIXELS: &[&str] = &["yuv420p", "yuvj420p", ""];
/// Interlaced fields, in either order of coding and showing.
const INTERLACED: &[&str] = &["tt", "bb", "tb", "bt"];
/// The layouts that have a number in ADTS (ISO/IEC 14496-3 table 1.19). ffmpeg chooses the nearest. Its encoder describes others
/// in a program_config_element, which few players read.
const ADTS_LAYOUTS: &str = "aformat=channel_layouts=mono|stereo|3.0|4.0|5.0|5.1|7.1";
/// Gaps become silence and overlaps are cut, so that audio stays with the pictures.
const KEEP_TIME: &str = "aresample=async=1";

/// PES packets of a title without pictures: 75 ms of 64 kb/s, 52 ms (two frames) of 128 kb/s. Each is a place where sending can
/// start.
const SOUND_PES_BYTES: &str = "600";

/// What ffprobe prints, as far as it matters.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ProbeOutput {
    #[serde(default)]
    streams: Vec<ProbeStream>,
    /// The first [`PROBED_PACKETS`] of the file.
    #[serde(default)]
    packets: Vec<ProbePacket>,
    #[serde(default)]
    chapters: Vec<ProbeChapter>,
    #[serde(default)]
    format: ProbeFormat,
    /// Set by the caller: ffprobe does not print it.
    #[serde(skip)]
    pub(crate) joined: Option<Joined>,
}

#[derive(Debug, Default, Deserialize)]
struct ProbePacket {
    #[serde(default)]
    stream_index: u32,
    #[serde(default)]
    flags: String,
    #[serde(default)]
    pts_time: String,
}

#[derive(Debug, Default, Deserialize)]
struct ProbeFormat {
    #[serde(default)]
    format_name: String,
    duration: Option<String>,
    /// Where its clock begins, in seconds.
    #[serde(default)]
    start_time: String,
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
    codec_tag_string: String,
    #[serde(default)]
    sample_rate: String,
    #[serde(default)]
    channels: u32,
    #[serde(default)]
    channel_layout: String,
    #[serde(default)]
    pix_fmt: String,
    #[serde(default)]
    field_order: String,
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
    #[serde(default)]
    forced: u8,
    #[serde(default)]
    hearing_impaired: u8,
}

#[derive(Debug, Default, Deserialize)]
struct Tags {
    language: Option<String>,
    title: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

/// The conversion, as ffmpeg arguments and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemuxPlan {
    /// Container format, as ffprobe calls it.
    pub format: String,
    /// Media time, if the container gives it.
    pub duration: Option<MediaTicks>,
    /// The `title` tag of the container.
    pub title: Option<String>,
    pub chapters: FileChapters,
    /// For the operator: which streams are transcoded or left out, and why.
    pub notes: Vec<String>,
    /// Whether AAC is added beside other audio.
    pub adds_audio: bool,
    /// Text subtitles.
    pub subtitles: Vec<TextStream>,
    /// `-map` and codec arguments.
    streams: Vec<String>,
}

/// Why there is nothing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NothingToPlay {
    /// The contents of the container instead.
    pub found: String,
}

impl ProbeOutput {
    /// From ffprobe's JSON.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }

    /// Chooses the first picture stream and all sound streams.
    pub(crate) fn plan(&self, web_audio: WebAudio) -> Result<RemuxPlan, NothingToPlay> {
        let mut plan = RemuxPlan {
            format: self.format.format_name.clone(),
            duration: self.duration(),
            title: self.format.tags.title.clone(),
            chapters: self.chapters(),
            notes: Vec::new(),
            adds_audio: false,
            subtitles: self.subtitles(),
            streams: Vec::new(),
        };
        let (mut videos, mut audios, mut left_out, mut texts) = (0, 0, Vec::new(), Vec::new());
        for stream in &self.streams {
            match stream.codec_type.as_str() {
                "video" if stream.is_still() => left_out.push("cover picture".to_owned()),
                "video" if videos > 0 => {
                    left_out.push(format!("further picture stream ({})", stream.codec_name))
                }
                "video" => {
                    plan.video(stream, self.cut(stream));
                    videos += 1;
                }
                "audio" if audios == MAX_AUDIO_STREAMS => {
                    left_out.push(format!("sound stream {}", stream.words()))
                }
                "audio" => {
                    plan.audio(stream, audios);
                    if self.trimmed(stream).is_some_and(|trimmed| trimmed > MAX_PRIMING) {
                        plan.push([&format!("-copypriorss:a:{audios}"), "0"]);
                    }
                    audios += 1;
                }
                "subtitle" if TextStream::can_be(&stream.codec_name) => {
                    texts.push(format!("subtitles {}", stream.words()))
                }
                "subtitle" => left_out.push(format!("subtitles {}, which are pictures", stream.words())),
                _ if stream.has_names_of_chapters() => {}
                other => left_out.push(format!("{other} stream ({})", stream.codec_name)),
            }
        }
        if videos + audios == 0 {
            left_out.append(&mut texts);
            let found = if left_out.is_empty() { "no stream at all".to_owned() } else { left_out.join(", ") };
            return Err(NothingToPlay { found });
        }
        if web_audio != WebAudio::Never {
            self.add_web_audio(&mut plan, audios);
        }
        if videos == 0 {
            // By default PES packets of audio are up to half a second long.
            plan.push(["-pes_payload_size", SOUND_PES_BYTES]);
        }
        if !left_out.is_empty() {
            plan.notes.push(format!("left out, not carried in the stream: {}", left_out.join(", ")));
        }
        Ok(plan)
    }

    /// Adds AAC for each language without audio that browsers play. It follows the `count` carried
    /// audio streams of the file, so that the default choice of players does not change.
    fn add_web_audio(&self, plan: &mut RemuxPlan, count: usize) {
        let carried = || self.streams.iter().filter(|stream| stream.codec_type == "audio").take(count);
        // Browsers play H.265 only in fragmented MP4, which cannot carry MP3.
        let takes_mp3 = self.pictures().is_none_or(|pictures| pictures.codec_name != "hevc");
        let plays = |stream: &ProbeStream| match stream.codec_name.as_str() {
            "aac" => true,
            "mp3" => takes_mp3,
            codec => !COPIED_AUDIO.contains(&codec),
        };
        let mut number = count;
        for (at, stream) in carried().enumerate() {
            let same = |other: &ProbeStream| other.language() == stream.language();
            if number == MAX_AUDIO_STREAMS
                || carried().take(at).any(same)
                || carried().any(|o| same(o) && plays(o))
            {
                continue;
            }
            plan.add_browser_audio(stream, number);
            number += 1;
        }
        plan.adds_audio = number > count;
    }

    /// Reason in a note that the packets of a picture stream cannot be copied: players leave some out.
    fn cut(&self, stream: &ProbeStream) -> Option<&'static str> {
        match self.joined {
            Some(Joined::Edits) => Some("the file joins several pieces (edit list)"),
            Some(Joined::Descriptions) => Some("the file joins streams of different parameters"),
            None if self.trimmed(stream).is_some() => {
                Some("the file begins between two key pictures (edit list)")
            }
            None => None,
        }
    }

    /// Length of the beginning of a stream that players leave out, because the file asks them to
    /// (edit list of MP4 and MOV); `None`: nothing.
    fn trimmed(&self, stream: &ProbeStream) -> Option<Duration> {
        let first = self.packets.iter().find(|packet| packet.stream_index == stream.index)?;
        let seconds = -first.pts_time.parse::<f64>().ok()?;
        let trimmed = Duration::try_from_secs_f64(seconds).ok()?;
        (first.flags.contains('D') && trimmed > Duration::ZERO).then_some(trimmed)
    }

    /// The text subtitle streams.
    pub(crate) fn subtitles(&self) -> Vec<TextStream> {
        let of = |stream: &ProbeStream| {
            let (tags, disposition) = (&stream.tags, &stream.disposition);
            let mut text = TextStream::new(stream.index, &stream.codec_name, tags.language.as_deref())?;
            text.label.is_forced = disposition.forced > 0;
            text.label.is_sdh = disposition.hearing_impaired > 0;
            text.name = tags.title.as_deref().and_then(clean_name);
            text.words = stream.words();
            Some(text)
        };
        self.streams.iter().filter(|stream| stream.codec_type == "subtitle").filter_map(of).collect()
    }

    fn pictures(&self) -> Option<&ProbeStream> {
        self.streams.iter().find(|stream| stream.codec_type == "video" && !stream.is_still())
    }

    /// Whether there is a stream of pictures.
    pub(crate) fn has_pictures(&self) -> bool {
        self.pictures().is_some()
    }

    /// Returns the source for a ladder; `None` if the pictures' size or rate is not known.
    pub(crate) fn film(&self) -> Option<LadderSource> {
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
                    let language = stream.language().map(str::to_owned);
                    let (index, channels) = (stream.index, stream.channels.clamp(1, 2));
                    sounds.push(Sound { index, channels, language });
                }
                _ if stream.index == pictures.index => {}
                "subtitle" if TextStream::can_be(&stream.codec_name) => {}
                _ if stream.has_names_of_chapters() => {}
                kind => notes.push(format!("left out: {kind} stream {}", stream.words())),
            }
        }
        let (duration, tag) = (self.duration(), self.format.tags.title.clone());
        let (pictures, texts, chapters) = (pictures.index, self.subtitles(), self.chapters());
        Some(LadderSource { pictures, width, height, rate, sounds, duration, tag, notes, texts, chapters })
    }

    fn chapters(&self) -> FileChapters {
        FileChapters::new(&self.chapters, self.format.start_time.parse().unwrap_or(0.0))
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

    /// Whether this is a track of text that MP4 files name their chapters with.
    fn has_names_of_chapters(&self) -> bool {
        self.codec_type == "data" && self.codec_tag_string == "text"
    }

    /// Width and height as they are shown: with square pixels, and turned as the file asks.
    fn shown_size(&self) -> Option<(u32, u32)> {
        let (wide, high) = ratio(&self.sample_aspect_ratio, ':').unwrap_or((1, 1));
        let width = u32::try_from(u64::from(self.width) * u64::from(wide) / u64::from(high)).ok()?;
        let is_turned = (self.rotation() / 90.0).round().rem_euclid(2.0) == 1.0;
        let size = if is_turned { (self.height, width) } else { (width, self.height) };
        (size.0 > 1 && size.1 > 1).then_some(size)
    }

    fn rotation(&self) -> f64 {
        self.side_data_list.iter().find_map(|data| data.rotation).unwrap_or(0.0)
    }

    fn language(&self) -> Option<&str> {
        self.tags.language.as_deref().filter(|language| *language != "und")
    }

    /// "1 (ger, flac)", for notes.
    fn words(&self) -> String {
        let language = self.language();
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

    fn video(&mut self, stream: &ProbeStream, cut: Option<&str>) {
        self.map(stream);
        let codec = stream.codec_name.as_str();
        let filters = PARAMETER_SETS.iter().find(|(of, _)| *of == codec).map(|(_, filters)| filters);
        let why = if STAMPLESS_FORMATS.contains(&self.format.as_str()) {
            format!("a bare {codec} file has no time stamps")
        } else if filters.is_none() && codec != "hevc" {
            format!("{codec} cannot be carried")
        } else if stream.rotation() != 0.0 {
            format!(
                "the file asks players to turn it by {} degrees, which a transport stream cannot carry, so it is turned",
                stream.rotation()
            )
        } else if let Some(cut) = cut {
            format!("{cut}, which a transport stream cannot carry")
        } else {
            self.push(["-c:v:0", "copy"]);
            if let Some(filters) = filters {
                self.push(["-bsf:v:0", filters]);
            }
            if codec == "h264" && !BROWSER_PIXELS.contains(&stream.pix_fmt.as_str()) {
                self.notes.push(format!(
                    "picture: H.264 of {}, which browsers do not decode; other players do",
                    stream.pix_fmt
                ));
            }
            return;
        };
        self.notes.push(format!("picture: {why}, transcoded to H.264"));
        self.transcode_video(stream);
    }

    fn transcode_video(&mut self, stream: &ProbeStream) {
        // A key frame every two seconds to seek to; even sides, because 4:2:0 needs them.
        self.push(["-c:v:0", "libx264", "-preset:v:0", "veryfast", "-crf:v:0", "20"]);
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > FFMPEG_ENCODER_THREADS) {
            self.push(["-threads:v:0", &FFMPEG_ENCODER_THREADS.to_string()]);
        }
        // Pictures keep their times: a screen recording of 1000 ticks a second would else get 1000 pictures.
        self.push(["-fps_mode:v:0", "vfr", "-fpsmax:v:0", &MAX_TRANSCODED_HZ.to_string()]);
        self.push(["-force_key_frames:v:0", "expr:gte(t,n_forced*2)"]);
        let even = "scale=trunc(iw/2)*2:trunc(ih/2)*2,format=yuv420p";
        // DV is interlaced, but AVI does not signal it.
        let is_tape = stream.codec_name == "dvvideo" && matches!(stream.field_order.as_str(), "" | "unknown");
        if is_tape || INTERLACED.contains(&stream.field_order.as_str()) {
            // Browsers show both fields of a picture at once. Each becomes a picture, so that motion stays as smooth.
            self.notes.push("picture: interlaced, each field became a picture".to_owned());
            return self.push(["-filter:v:0", &format!("bwdif=mode=send_field:deint=interlaced,{even}")]);
        }
        self.push(["-filter:v:0", even]);
    }

    fn audio(&mut self, stream: &ProbeStream, number: usize) {
        if COPIED_AUDIO.contains(&stream.codec_name.as_str()) {
            self.map(stream);
            return self.push([&format!("-c:a:{number}"), "copy"]);
        }
        let has_layout = stream.channels <= MAX_AUDIO_CHANNELS || !stream.channel_layout.is_empty();
        let mixed =
            if has_layout { "" } else { "; only the first two of its channels, because it names none" };
        self.notes
            .push(format!("sound stream {}: cannot be carried, transcoded to AAC{mixed}", stream.words()));
        let channels = stream.channels.clamp(1, MAX_AUDIO_CHANNELS);
        let (layouts, channels) = match has_layout {
            true => (ADTS_LAYOUTS, channels),
            false => ("pan=stereo|c0=c0|c1=c1", 2),
        };
        let kbits = if channels <= 2 { 96 * channels } else { 64 * channels };
        self.encode_audio(stream, number, layouts, kbits);
    }

    /// Adds a second encoding of the same audio, for browsers.
    fn add_browser_audio(&mut self, stream: &ProbeStream, number: usize) {
        self.notes.push(format!(
            "sound stream {}: browsers do not play it, AAC of {WEB_AUDIO_KBITS} kb/s added (--web-audio never leaves it out)",
            stream.words()
        ));
        let is_unknown = stream.channels > MAX_AUDIO_CHANNELS && stream.channel_layout.is_empty();
        let layouts =
            if is_unknown { "pan=stereo|c0=c0|c1=c1" } else { "aformat=channel_layouts=mono|stereo" };
        self.encode_audio(stream, number, layouts, WEB_AUDIO_KBITS);
    }

    fn encode_audio(&mut self, stream: &ProbeStream, number: usize, layouts: &str, kbits: u32) {
        self.map(stream);
        self.push([&format!("-c:a:{number}"), "aac", &format!("-b:a:{number}"), &format!("{kbits}k")]);
        self.push([&format!("-filter:a:{number}"), &format!("{KEEP_TIME},{layouts}")]);
        if stream.sample_rate.parse::<u32>().is_ok_and(|hz| hz > MAX_AUDIO_HZ) {
            self.push([&format!("-ar:a:{number}"), &MAX_AUDIO_HZ.to_string()]);
        }
    }

    /// `-map` and codec arguments.
    pub(crate) fn stream_args(&self) -> &[String] {
        &self.streams
    }

    /// Arguments for ffmpeg: reads its standard input, writes a transport stream of variable rate to its standard output.
    pub(crate) fn ffmpeg_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = ["-nostdin", "-hide_banner", "-v", "error"].map(OsString::from).into();
        // Containers without presentation times (AVI) get them.
        args.extend(["-fflags", "+genpts"].map(OsString::from));
        args.extend(input_args());
        args.extend(self.streams.iter().map(OsString::from));
        args.extend(
            // Time values every 20 ms or every picture; packets leave when a block is full, not one by one.
            ["-map_chapters", "-1", "-max_muxing_queue_size", "4096", "-flush_packets", "0"]
                .map(OsString::from),
        );
        args.extend(["-max_interleave_delta", MAX_INTERLEAVE_US].map(OsString::from));
        args.extend(["-f", "mpegts", "-pcr_period", "20", "-muxdelay", MUX_DELAY_SECS].map(OsString::from));
        // Pictures with their lengths: a player need not wait for the next one to know that one is whole, and FFmpeg, which over
        // RTP never learns that a stream has ended, shows the last.
        args.extend(["-omit_video_pes_length", "0", "pipe:1"].map(OsString::from));
        args
    }
}

/// Arguments for ffprobe.
pub(crate) fn ffprobe_args() -> Vec<OsString> {
    let mut args: Vec<OsString> =
        ["-hide_banner", "-v", "error", "-of", "json", "-show_format", "-show_streams", "-show_chapters"]
            .map(OsString::from)
            .into();
    let packets = ["-show_entries", "packet=stream_index,flags,pts_time", "-read_intervals", PROBED_PACKETS];
    args.extend(packets.map(OsString::from));
    args.extend(input_args());
    args
}

/// Two numbers, neither of them 0.
fn ratio(text: &str, between: char) -> Option<(u32, u32)> {
    let (a, b) = text.split_once(between)?;
    let (a, b): (u32, u32) = (a.parse().ok()?, b.parse().ok()?);
    (a > 0 && b > 0).then_some((a, b))
}

/// Arguments for the input, restricted to local containers. The file open as standard input is
/// opened again, because ffmpeg reads a film from several places.
pub(crate) fn input_args() -> Vec<OsString> {
    ["-protocol_whitelist", "file,pipe", "-format_whitelist", FORMATS, "-i", INPUT].map(OsString::from).into()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
