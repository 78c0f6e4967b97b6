//! What ffmpeg is asked to encode.

use std::ffi::OsString;

use millrace_core::time::MEDIA_HZ;

use super::plan::{LadderPlan, LadderSource, RungPlan};
use super::time::Times;
use crate::ingest::plan::input_args;
use crate::limits::FFMPEG_ENCODER_THREADS;
use crate::limits::ladder::SOUND_HZ;

fn words(words: &[&str]) -> impl Iterator<Item = OsString> {
    words.iter().map(OsString::from).collect::<Vec<_>>().into_iter()
}

/// All streams of the film that any encoding uses, copied to nowhere: ffmpeg counts time from the first of those that it reads, and that must be
/// the same in each encoding.
fn same_beginning(film: &LadderSource) -> Vec<OsString> {
    let mut args = Vec::new();
    for index in std::iter::once(film.pictures).chain(film.sounds.iter().map(|sound| sound.index)) {
        args.extend(words(&["-map", &format!("0:{index}")]));
    }
    args.extend(words(&["-c", "copy", "-f", "null", "-"]));
    args
}

fn args(film: &LadderSource, of_output: Vec<OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> =
        words(&["-nostdin", "-hide_banner", "-v", "error", "-fflags", "+genpts"]).collect();
    args.extend(input_args());
    args.extend(of_output);
    args.extend(words(&["-map_metadata", "-1", "-map_chapters", "-1", "-flush_packets", "0"]));
    args.extend(words(&["-max_muxing_queue_size", "4096", "-muxdelay", "0", "-muxpreload", "0"]));
    args.extend(words(&["-mpegts_start_pid", "256", "-f", "mpegts", "pipe:1"]));
    args.extend(same_beginning(film));
    args
}

/// A rung's pictures: at an even rate from time 0 on, in closed groups of the same pictures in all rungs.
pub(super) fn pictures(
    film: &LadderSource,
    plan: &LadderPlan,
    rung: &RungPlan,
    preset: &str,
) -> Vec<OsString> {
    let Times { pictures, seconds, group } = plan.times;
    let RungPlan { width, height, picture_rate, buffer_bits, .. } = rung;
    let filter = format!(
        "yadif=deint=interlaced,fps=fps={pictures}/{seconds}:start_time=0,scale={width}:{height}:flags=bicubic,setsar=1,format=yuv420p"
    );
    let mut output: Vec<OsString> =
        words(&["-map", &format!("0:{}", film.pictures), "-filter:v", &filter]).collect();
    output.extend(words(&["-fps_mode", "passthrough", "-c:v", "libx264", "-preset", preset]));
    output.extend(words(&["-profile:v", "high", "-level:v", plan.level, "-crf", "20"]));
    output.extend(words(&["-maxrate", &picture_rate.to_string(), "-bufsize", &buffer_bits.to_string()]));
    let group = group.to_string();
    output.extend(words(&["-g", &group, "-keyint_min", &group, "-sc_threshold", "0", "-flags", "+cgop"]));
    output.extend(words(&["-aud", "1", "-omit_video_pes_length", "0"]));
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > FFMPEG_ENCODER_THREADS) {
        output.extend(words(&["-threads:v", &FFMPEG_ENCODER_THREADS.to_string()]));
    }
    args(film, output)
}

/// All sounds, from time 0 on, to the end of the pictures: silence where there is none.
pub(super) fn sounds(film: &LadderSource, picture_ticks: u64) -> Vec<OsString> {
    // A little more than is used.
    let seconds = format!("{:.3}", picture_ticks as f64 / MEDIA_HZ as f64 + 0.5);
    let mut output = Vec::new();
    for (number, sound) in film.sounds.iter().enumerate() {
        output.extend(words(&["-map", &format!("0:{}", sound.index)]));
        let filter =
            format!("aresample={SOUND_HZ}:async=1:first_pts=0,apad=whole_dur={seconds},atrim=end={seconds}");
        output.extend(words(&[&format!("-filter:a:{number}"), &filter]));
        output.extend(words(&[&format!("-ac:a:{number}"), &sound.channels.to_string()]));
        output.extend(words(&[&format!("-b:a:{number}"), &sound.bits().to_string()]));
    }
    output.extend(words(&["-c:a", "aac", "-ar", &SOUND_HZ.to_string()]));
    args(film, output)
}
