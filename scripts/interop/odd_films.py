#!/usr/bin/python3
"""Makes odd films, adds them to a store, and compares what each face of a server offers with the films themselves.

A face is a way to get a title: the stored file, RTSP, HLS with transport streams (index.m3u8), fragmented MP4
(cmaf.m3u8). The judgement is made of decoded pictures and sound: every picture must be there, in order and
unchanged, all sound must be there, and both must keep their places to each other. Exit codes of players count for
nothing.

Pictures are compared by their MD5; where Millrace has to encode them again, by small grey copies. Sound is noise that
never repeats, so each stretch of it shows where in the film it belongs: windows of decoded sound are correlated with
the film's own sound around the place that the time stamps claim.

Status 0 if all films pass, 1 if one fails, 2 for wrong arguments. --json writes one object per film.
"""

import argparse
import array
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

TS = 188
# Decoded sound: enough for noise below 1 kHz, little enough for Python.
SOUND_HZ = 4000
# Viewers notice if sound and pictures are further apart than this (ITU-R BT.1359-1).
MAX_SKEW_S = 0.045
WINDOW_S = 0.1
# Interval between windows.
STEP_S = 0.5
# Titles last as long as their streams, but encoders and muxers add some delay.
MOST_LENGTH_OFF_S = 1.0
# Least correlation of a window of sound with the film's; lossy coding leaves more than 0.9.
LEAST_CORRELATION = 0.6
SURE_CORRELATION = 0.92
# Samples around its place that are searched for a window of sound.
MOST_LAG = int(0.08 * SOUND_HZ)
MOST_LAG_BEHIND_CHANGE = int(0.15 * SOUND_HZ)
# Mean difference of grey copies (0 to 255) of the same picture, encoded once more.
MOST_DIFFERENCE = 12
# Encoder delay and the last block, which an encoder never fills.
EDGE_S = 0.15
FACES = ("file", "rtsp", "ts", "cmaf")


def run(arguments, seconds=120, **options):
    """Runs a program to its end; its output as bytes. Raises with its last words if it fails."""
    result = subprocess.run(
        [str(argument) for argument in arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, **options
    )
    if result.returncode:
        words = result.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeError(f"{arguments[0]}: status {result.returncode}: {words[-1]}")
    return result


# --- films -------------------------------------------------------------------------------------------------------


class Film:
    """A film, the parts that it was made of, and what its faces may lack."""

    def __init__(self, name, make, **facts):
        self.name = name
        self.make = make
        # Pictures that cannot be decoded at the beginning, because their references were cut off.
        self.lead = facts.get("lead", 0)
        # Whether Millrace encodes the pictures.
        self.is_encoded = facts.get("is_encoded", False)
        # Faces that cannot carry it, with the reason.
        self.without = facts.get("without", {})
        # Degrees by which the picture is turned, clockwise.
        self.turned = facts.get("turned", 0)
        self.is_short = facts.get("is_short", False)
        self.file = None
        self.parts = []


def picture_source(seconds, size="320x180", rate=25, first=0):
    """A moving picture, no two of which are alike."""
    end = "" if first == 0 else f",trim=start_frame={first},setpts=PTS-STARTPTS"
    return ["-f", "lavfi", "-i", f"testsrc2=s={size}:r={rate}:d={seconds + first / rate},noise=alls=8:allf=t:all_seed={first + 1}{end}"]


def sound_source(seconds, seed=1, hz=48000):
    return ["-f", "lavfi", "-i", f"anoisesrc=c=pink:seed={seed}:a=0.7:r={hz}:d={seconds},lowpass=f=1000"]


LAYOUTS = {
    "mono": "mono|c0=c0",
    "stereo": "stereo|c0=c0|c1=c0",
    "5.1": "5.1|" + "|".join(f"c{i}=c0" for i in range(6)),
    "5.1(side)": "5.1(side)|" + "|".join(f"c{i}=c0" for i in range(6)),
    "quad": "quad|" + "|".join(f"c{i}=c0" for i in range(4)),
    "6.1": "6.1|" + "|".join(f"c{i}=c0" for i in range(7)),
    "7.1": "7.1|" + "|".join(f"c{i}=c0" for i in range(8)),
    "2.1": "2.1|" + "|".join(f"c{i}=c0" for i in range(3)),
}

H264 = "-c:v libx264 -preset veryfast -pix_fmt yuv420p -g 50 -keyint_min 50 -sc_threshold 0 -bf 2 -crf 24"
H265 = "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params log-level=error:keyint=50:min-keyint=50:scenecut=0"
MPEG2 = "-c:v mpeg2video -pix_fmt yuv420p -b:v 2M -g 12 -bf 2"


class Sound:
    """One sound stream of a film."""

    def __init__(self, codec="aac -b:a 128k", layout="stereo", hz=48000, seed=1, seconds=None, more=""):
        self.codec, self.layout, self.hz, self.seed, self.seconds, self.more = codec, layout, hz, seed, seconds, more


AAC = Sound()
AC3 = Sound("ac3 -b:a 192k")
MP2 = Sound("mp2 -b:a 192k")


def encode(file, seconds=8, video=H264, size="320x180", rate=25, first=0, sounds=(AAC,), container="", picture_filter="", picture_seconds=None):
    """Encodes a film of test pictures and noise."""
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y"]
    if video:
        command += picture_source(picture_seconds or seconds, size, rate, first)
    for sound in sounds:
        command += sound_source(sound.seconds or seconds, sound.seed, sound.hz)
    if video:
        command += ["-map", "0:v", *video.split()]
        if picture_filter:
            command += ["-vf", picture_filter]
    for number, sound in enumerate(sounds):
        command += ["-map", f"{number + bool(video)}:a", f"-filter:a:{number}", f"pan={LAYOUTS[sound.layout]}"]
        codec, *options = sound.codec.split()
        command += [f"-c:a:{number}", codec]
        command += [f"{option}:{number}" if option.startswith("-b:a") else option for option in options]
        command += sound.more.format(n=number).split()
    run([*command, *container.split(), file])
    return file


def packets(data):
    return [data[at : at + TS] for at in range(0, len(data) - TS + 1, TS)]


def pid_of(packet):
    return (packet[1] & 0x1F) << 8 | packet[2]


def joined(file, parts):
    """Transport streams one behind the other, their continuity counters going on."""
    counters, whole = {}, bytearray()
    for part in parts:
        for packet in packets(pathlib.Path(part).read_bytes()):
            pid = pid_of(packet)
            if pid != 0x1FFF and packet[3] & 0x10:
                counters[pid] = (counters.get(pid, -1) + 1) & 15
                packet = packet[:3] + bytes([packet[3] & 0xF0 | counters[pid]]) + packet[4:]
            whole += packet
    file.write_bytes(whole)
    return file


def simple(extension="ts", **options):
    """A film encoded in one go."""

    def make(film, folder):
        film.file = encode(folder / f"{film.name}.{extension}", **options)
        film.parts = [film.file]

    return make


def join(*parts, jump=None):
    """A film of several transport streams, whose clock goes on from one to the next, unless `jump` says where it begins anew."""

    def make(film, folder):
        begins, shown, files = 0.0, 0, []
        for number, options in enumerate(parts):
            options = dict(options)
            seconds, rate = options.get("seconds", 8), options.get("rate", 25)
            offset = begins if jump is None or number == 0 else jump
            container = options.pop("container", "")
            extra = f" -f mpegts -output_ts_offset {offset} -tables_version {number} {container}"
            sounds = [Sound(s.codec, s.layout, s.hz, s.seed + 100 * number, s.seconds, s.more) for s in options.pop("sounds", (AAC,))]
            file = folder / f"{film.name}.part{number}"
            files.append(encode(file, first=shown, sounds=sounds, container=extra, **options))
            begins += seconds
            shown += int(seconds * rate)
        film.file = joined(folder / f"{film.name}.ts", files)
        film.parts = files

    return make


def cut(packet_share, keep=None, without_tables_s=0.0, **options):
    """A recording that begins in mid-stream."""

    def make(film, folder):
        whole = encode(folder / f"{film.name}.part0", container="-f mpegts -muxrate 3000k", seconds=12, **options)
        all_packets = packets(whole.read_bytes())
        rest = all_packets[int(len(all_packets) * packet_share) :]
        if without_tables_s:
            early = int(without_tables_s * 3_000_000 / 8 / TS)
            rest = [p for at, p in enumerate(rest) if at > early or pid_of(p) not in (0, 0x1000)]
        film.file = folder / f"{film.name}.ts"
        film.file.write_bytes(b"".join(rest))
        film.parts = [film.file]

    return make


def commanded(extension, *commands):
    """A film made by ffmpeg commands; {o} is the film, {d} a folder for what comes before, {p} and {s} are test pictures and noise."""

    def make(film, folder):
        film.file = folder / f"{film.name}.{extension}"
        for command in commands:
            names = {"o": film.file, "d": folder / f"{film.name}.source", "h264": H264, "h265": H265}
            text = command.format(**names)
            words = ["ffmpeg", "-v", "error", "-nostdin", "-y"]
            for word in text.split():
                if word.startswith("@p"):
                    words += picture_source(float(word[2:] or 8))
                elif word.startswith("@s"):
                    words += sound_source(float(word[2:] or 8))
                else:
                    words.append(word.replace("~", " "))
            run(words)
        film.parts = [film.file]

    return make


def m2ts(film, folder):
    """Packets of 192 bytes, as discs and camcorders have them."""
    film.file = encode(folder / f"{film.name}.m2ts", sounds=(AC3,), container="-f mpegts -mpegts_m2ts_mode 1")
    film.parts = [film.file]


def plain(name):
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


NO_CMAF_VIDEO = {"cmaf": "fragmented MP4 carries H.264 and H.265 only"}
TWO_SOUNDS = "-metadata:s:a:0 language=eng -metadata:s:a:1 language=deu"
AUDIO_ONLY = dict(video="")


def sounds_of(codec, *layouts, hz=(48000,)):
    return [dict(sounds=(Sound(codec, layout, rate),)) for layout, rate in zip(layouts, hz * len(layouts))]


def films():
    """All of them. Short ones are those that continuous integration plays."""
    one = Film
    h265 = dict(video=H265)
    hevc_with = lambda sound: simple(video=H265, sounds=(sound,), seconds=6)  # noqa: E731
    made = [
        # The format of the sound changes.
        one("ac3-stereo-to-surround", join(*sounds_of("ac3 -b:a 384k", "stereo", "5.1")), is_short=True),
        one("ac3-surround-to-stereo", join(*sounds_of("ac3 -b:a 384k", "5.1", "stereo"))),
        one("ac3-changes-twice", join(*sounds_of("ac3 -b:a 384k", "stereo", "5.1", "stereo"))),
        one("ac3-changes-bit-rate", join(dict(sounds=(AC3,)), dict(sounds=(Sound("ac3 -b:a 448k"),)))),
        one("eac3-stereo-to-surround", join(*sounds_of("eac3 -b:a 256k", "stereo", "5.1"))),
        one("aac-stereo-to-mono", join(*sounds_of("aac -b:a 96k", "stereo", "mono"))),
        one("aac-mono-to-surround", join(*sounds_of("aac -b:a 256k", "mono", "5.1"))),
        one("aac-changes-frequency", join(dict(sounds=(AAC,)), dict(sounds=(Sound(hz=44100),)))),
        one("mp2-changes-frequency", join(dict(sounds=(MP2,)), dict(sounds=(Sound("mp2 -b:a 192k", hz=44100),))), without={"cmaf": "MP2"}),
        one("aac-to-ac3", join(dict(), dict(sounds=(AC3,)))),
        one("h265-ac3-stereo-to-surround", join(*[dict(p, **h265) for p in sounds_of("ac3 -b:a 384k", "stereo", "5.1")])),
        # Streams come, go and move.
        one("pids-change", join(dict(), dict(container="-mpegts_start_pid 0x200")), is_short=True),
        one("pids-and-map-change", join(dict(), dict(container="-mpegts_start_pid 0x200 -mpegts_pmt_start_pid 0x1200"))),
        one("pids-change-twice", join(dict(seconds=4), dict(seconds=4, container="-mpegts_start_pid 0x200"), dict(seconds=4))),
        one("h265-pids-change", join(h265, dict(container="-mpegts_start_pid 0x200", **h265))),
        one("h264-to-h265", join(dict(), h265), is_short=True),
        one("h265-to-h264", join(h265, dict())),
        one("sound-begins-later-in-tables", join(dict(sounds=()), dict())),
        one("sound-is-removed", join(dict(), dict(sounds=()))),
        one("language-changes", join(dict(container="-metadata:s:a:0 language=eng"), dict(container="-metadata:s:a:0 language=deu"))),
        one("second-sound-comes", join(dict(), dict(sounds=(AAC, Sound(seed=9)), container=TWO_SOUNDS))),
        # Pictures change.
        one("size-changes", join(dict(), dict(size="480x360")), is_short=True),
        one("size-changes-and-returns", join(dict(seconds=6), dict(size="480x360", seconds=6), dict(seconds=6))),
        one("h265-size-changes", join(h265, dict(size="480x360", **h265))),
        one("rate-changes", join(dict(), dict(rate=50))),
        one("profile-changes", join(dict(video=H264 + " -profile:v high"), dict(video=H264.replace("-bf 2", "-bf 0") + " -profile:v baseline"))),
        one("clock-begins-anew", join(dict(), dict(), jump=0)),
        one("clock-jumps-and-size-changes", join(dict(), dict(size="480x360"), jump=5000)),
        # Sound that fragmented MP4 or browsers do not support, with H.265.
        one("h265-mp3", hevc_with(Sound("libmp3lame -b:a 128k")), without={"cmaf": "MP3"}, is_short=True),
        one("h265-mp2", hevc_with(MP2), without={"cmaf": "MP2"}),
        one("h265-latm", simple(video=H265, container="-f mpegts -mpegts_flags latm"), without={"cmaf": "LATM"}),
        one("h265-dts", simple("mkv", video=H265, sounds=(Sound("dca -strict -2 -b:a 768k"),))),
        one("h265-aac", hevc_with(AAC)),
        one("h265-eac3", hevc_with(Sound("eac3 -b:a 192k"))),
        # Layouts of sound.
        *[
            one(f"flac-{plain(layout)}", simple("mkv", sounds=(Sound("flac", layout),), seconds=6), is_short=layout == "5.1(side)")
            for layout in ("5.1(side)", "quad", "6.1", "7.1", "2.1")
        ],
        one("aac-with-program-config", simple(sounds=(Sound("aac -b:a 320k", "5.1(side)"),))),
        one("pcm-96-khz", simple("mov", sounds=(Sound("pcm_s24le", hz=96000),), seconds=6)),
        one("opus-and-vp9", commanded("webm", "@p4 @s4 -map 0:v -map 1:a -c:v libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 400k -c:a libopus {o}"), is_encoded=True),
        # Several sounds.
        one("aac-and-ac3", simple(sounds=(AAC, Sound("ac3 -b:a 192k", seed=1)), container=TWO_SOUNDS), is_short=True),
        one("ac3-and-aac", simple("mkv", sounds=(AC3, AAC), container=TWO_SOUNDS)),
        one("aac-and-eac3", simple("mp4", sounds=(AAC, Sound("eac3 -b:a 192k")), container=TWO_SOUNDS)),
        one("two-languages", simple(sounds=(AAC, Sound(seed=7)), container=TWO_SOUNDS)),
        one("ac3-only", simple("mkv", sounds=(AC3,))),
        one("audio-description", simple("mkv", sounds=(AAC, Sound(seed=5)), container=TWO_SOUNDS + " -disposition:a:1 visual_impaired")),
        # Sound and pictures of different length.
        one("sound-is-longer", commanded("mkv", "@p6 @s24 -map 0:v -map 1:a {h264} -c:a aac {o}"), is_short=True),
        one("sound-begins-earlier", commanded("mkv", "-itsoffset 3 @p6 @s12 -map 0:v -map 1:a {h264} -c:a aac {o}")),
        one("pictures-are-longer", commanded("mkv", "@p16 @s6 -map 0:v -map 1:a {h264} -c:a aac {o}")),
        one("pictures-begin-earlier", commanded("mkv", "@p10 -itsoffset 3 @s6 -map 0:v -map 1:a {h264} -c:a aac {o}")),
        one("still-picture", commanded("mkv", "@p0.04 @s24 -map 0:v -map 1:a {h264} -c:a aac {o}")),
        one("sparse-pictures", commanded("mkv", "-f lavfi -i testsrc2=s=320x180:r=1/5:d=30 @s30 -map 0:v -map 1:a -c:v libx264 -pix_fmt yuv420p -g 1 -c:a aac {o}")),
        one("one-access-point", commanded("mp4", "@p20 @s20 -map 0:v -map 1:a -c:v libx264 -preset veryfast -pix_fmt yuv420p -g 1000 -sc_threshold 0 -c:a aac {o}")),
        one("sound-only-m4a", commanded("m4a", "@s12 -c:a aac {o}")),
        one("sound-only-mp3", commanded("mp3", "@s12 -c:a libmp3lame {o}"), without={"cmaf": "MP3"}),
        one("pictures-only", simple("mp4", sounds=())),
        # Properties of containers beside the streams.
        one("edit-list", commanded("mp4", "@p8 @s8 -map 0:v -map 1:a {h264} -c:a aac {d}.mp4", "-ss 1.3 -i {d}.mp4 -c copy {o}"), is_encoded=True),
        one("rotated", commanded("mp4", "@p6 @s6 -map 0:v -map 1:a {h264} -c:a aac {d}.mp4", "-i {d}.mp4 -c copy -metadata:s:v rotate=90 {o}"), is_encoded=True),
        one("starts-late", commanded("mkv", "@p8 @s8 -map 0:v -map 1:a {h264} -c:a aac -output_ts_offset 7 {o}")),
        one("variable-rate", commanded("mkv", "@p8 @s8 -map 0:v -map 1:a -vf select='not(eq(mod(n,7),3))' -vsync vfr {h264} -c:a aac {o}")),
        # Groups of pictures that refer to others.
        one("open-groups-mp4", commanded("mp4", "@p12 @s12 -map 0:v -map 1:a -c:v libx264 -preset veryfast -pix_fmt yuv420p -x264-params open-gop=1:bframes=3:keyint=50:scenecut=0 -c:a aac {o}"), is_short=True),
        one("open-groups-h265", commanded("mkv", "@p12 @s12 -map 0:v -map 1:a -c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params log-level=error:open-gop=1:keyint=50:bframes=3:scenecut=0 -c:a aac {o}")),
        # Recordings.
        one("cut-in-mid-stream", cut(0.23), lead=60, is_short=True),
        one("cut-with-ac3", cut(0.31, sounds=(AC3,)), lead=60),
        one("tables-come-later", cut(0.0, without_tables_s=0.5), lead=60),
        one("tables-come-much-later", cut(0.0, without_tables_s=3.0), lead=130),
        one("clock-wraps", simple(container="-f mpegts -output_ts_offset 95440")),
        one("packets-of-192-bytes", m2ts),
        one("two-programs", commanded("ts", "@p6 @s6 -map 0:v -map 1:a -map 0:v -map 1:a {h264} -c:a aac -program program_num=1:st=0:st=1 -program program_num=2:st=2:st=3 -f mpegts {o}")),
        # Other codecs.
        one("mpeg2-and-mp2", simple(video=MPEG2, sounds=(MP2,)), without=NO_CMAF_VIDEO),
        one("mpeg4-and-mp3", commanded("avi", "@p8 @s8 -map 0:v -map 1:a -c:v mpeg4 -b:v 1M -g 25 -c:a libmp3lame {o}"), without=NO_CMAF_VIDEO),
        one("motion-jpeg-odd-size", commanded("avi", "-f lavfi -i testsrc2=s=321x181:r=25:d=4 @s4 -map 0:v -map 1:a -c:v mjpeg -c:a pcm_s16le {o}"), is_encoded=True),
        one("h265-10-bit-pq", commanded("mkv", "@p4 @s4 -map 0:v -map 1:a -c:v libx265 -preset ultrafast -pix_fmt yuv420p10le -x265-params log-level=error:keyint=50:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc -c:a aac {o}")),
        one("h264-without-b-pictures", simple("mp4", video=H264.replace("-bf 2", "-bf 0"))),
        one("interlaced-h264", simple(video=H264 + " -flags +ilme+ildct -x264-params tff=1")),
    ]
    return made


# --- decoding ----------------------------------------------------------------------------------------------------


class Pictures:
    """Decoded pictures: times, sums, and small grey copies."""

    def __init__(self, times, sums, greys):
        self.times, self.sums, self.greys = times, sums, greys


class Heard:
    """Decoded sound of one stream: from when, and samples."""

    def __init__(self, start, samples):
        self.start, self.samples = start, samples

    @property
    def seconds(self):
        return len(self.samples) / SOUND_HZ


GREY = 16 * 9
# Otherwise ffmpeg counts pictures by their rate, and sound by the rate that it ends with.
EXACT_TIMES = ("-enc_time_base", "1:90000")
DECODERS = "h264|hevc|mpeg2video|mpeg4|aac|aac_latm|ac3|eac3|mp2|mp3|mp3float|dca|mpegts|mov"
COMPLAINTS = re.compile(rf"^\[({DECODERS})[^\]]* @ .*(error|invalid|corrupt|non-existing|missing|concealing|no frame|broken)", re.I)


def streams_of(file):
    """Kinds of the streams that can be decoded, by ffprobe."""
    command = ["ffprobe", "-v", "error", "-probesize", "50M", "-analyzeduration", "100M", "-of", "json", "-show_streams", file]
    found = json.loads(run(command).stdout).get("streams", [])
    usable = [s for s in found if s.get("codec_type") in ("video", "audio") and not s.get("disposition", {}).get("attached_pic")]
    return [(s["index"], s["codec_type"]) for s in usable if s.get("width") or s.get("channels")]


def frame_times(text):
    """Times and sums of framemd5's lines."""
    base = re.search(r"^#tb \d+: (\d+)/(\d+)", text, re.M)
    if not base:
        return []
    unit = int(base[1]) / int(base[2])
    rows = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    return [(int(row[2]) * unit, row[5].strip()) for row in rows if len(row) > 5]


def first_time(file, index):
    """When the sound of a transport stream begins. Where its frequency changes, ffmpeg counts this time by the last one."""
    if file.suffix != ".ts":
        return None
    command = ["ffprobe", "-v", "error", "-probesize", "50M", "-analyzeduration", "100M", "-select_streams", index, "-read_intervals", "%+#1"]
    found = run([*command, "-show_entries", "frame=pts_time", "-of", "csv=p=0", file]).stdout.decode().split()
    return float(found[0].strip(",")) if found and found[0].strip(",") != "N/A" else None


def decode(file, folder, name, want_greys):
    """Pictures (the first stream of them, or None), the sound of each stream, and what the decoder complained of."""
    picture, sounds, pcms = None, [], []
    streams = streams_of(file)
    command = ["ffmpeg", "-v", "warning", "-nostdin", "-y", "-copyts", "-probesize", "50M", "-analyzeduration", "100M", "-i", file]
    video = next((index for index, kind in streams if kind == "video"), None)
    if video is not None:
        picture = folder / f"{name}.frames"
        command += ["-map", f"0:{video}", "-fps_mode", "passthrough", "-autoscale", "0", *EXACT_TIMES, "-f", "framemd5", picture]
        if want_greys:
            command += ["-map", f"0:{video}", "-fps_mode", "passthrough", "-vf", "scale=16:9,format=gray", "-f", "rawvideo", folder / f"{name}.grey"]
    for number, index in enumerate(index for index, kind in streams if kind == "audio"):
        pcm, starts = folder / f"{name}.{number}.pcm", folder / f"{name}.{number}.starts"
        # Fills gaps, so that a sample's number gives its time.
        resample = f"aresample={SOUND_HZ}:async=1:min_hard_comp=0.03"
        command += ["-map", f"0:{index}", "-ac", "1", "-af", resample, "-f", "s16le", pcm]
        command += ["-map", f"0:{index}", "-frames:a", "1", *EXACT_TIMES, "-f", "framemd5", starts]
        pcms.append((pcm, starts, index))
    if picture is None and not pcms:
        return None, [], ["nothing that can be decoded"]
    result = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, timeout=180)
    lines = result.stderr.decode(errors="replace").splitlines()
    complaints = [line for line in lines if COMPLAINTS.search(line)]
    pictures = None
    if picture is not None and picture.exists():
        frames = frame_times(picture.read_text())
        greys = []
        if want_greys and (folder / f"{name}.grey").exists():
            raw = (folder / f"{name}.grey").read_bytes()
            greys = [raw[at : at + GREY] for at in range(0, len(raw), GREY)]
        pictures = Pictures([time for time, _ in frames], [sum for _, sum in frames], greys)
    for pcm, starts, index in pcms:
        samples = array.array("h")
        if pcm.exists():
            raw = pcm.read_bytes()
            samples.frombytes(raw[: len(raw) // 2 * 2])
        first = frame_times(starts.read_text()) if starts.exists() else []
        if samples and first:
            sounds.append(Heard(first_time(file, index) or first[0][0], samples))
    return pictures, sounds, complaints


# --- comparison --------------------------------------------------------------------------------------------------


def correlation(a, b):
    ab = aa = bb = 0
    for x, y in zip(a, b):
        ab += x * y
        aa += x * x
        bb += y * y
    return ab / (aa * bb) ** 0.5 if aa and bb else 0.0


def silent(samples):
    return max(map(abs, samples), default=0) < 200


def lag_of(window, film, at, most):
    """By how many seconds, `most` samples at most, a window of sound is later in the film than at sample `at`, and how alike they are there."""
    best = (0.0, 0.0)
    # Tries the nearest lag first, so that sound at its right place is found at once.
    for lag in sorted(range(-most, most + 1), key=abs):
        start = at + lag
        if start < 0 or start + len(window) > len(film):
            continue
        alike = correlation(window, film[start : start + len(window)])
        if alike > best[1]:
            best = (lag / SOUND_HZ, alike)
            if alike > SURE_CORRELATION:
                break
    return best


class Reference:
    """A part of a film, decoded from its own file."""

    def __init__(self, file, folder, name, want_greys):
        self.pictures, self.sounds, _ = decode(file, folder, name, want_greys)
        self.start = self.pictures.times[0] if self.pictures and self.pictures.times else min((s.start for s in self.sounds), default=0.0)


class Group:
    """What one face has between two discontinuities; `piece`: the bytes of its pictures."""

    def __init__(self, label, pictures, sounds, complaints, piece=None):
        self.label, self.pictures, self.sounds, self.complaints, self.piece = label, pictures, sounds, complaints, piece


def difference(a, b):
    return sum(abs(x - y) for x, y in zip(a, b)) / GREY


def compare_pictures(film, references, groups, folder):
    """Problems with the pictures."""
    wanted = [s for r in references if r.pictures for s in r.pictures.sums]
    got = [s for g in groups if g.pictures for s in g.pictures.sums]
    if not wanted:
        return [f"{len(got)} pictures where there are none"] if got else []
    if film.is_encoded:
        greys = [g for r in references if r.pictures for g in r.pictures.greys]
        have = [g for group in groups if group.pictures for g in group.pictures.greys]
        if abs(len(greys) - len(have)) > 1:
            return [f"{len(have)} of {len(greys)} pictures"]
        off = min(sum(difference(a, b) for a, b in zip(greys[skip:], have)) / max(1, len(have)) for skip in (0, 1))
        return [f"pictures differ by {off:.1f} on average"] if off > MOST_DIFFERENCE else []
    if got == wanted:
        return []
    if len(groups) > 1 and all(g.piece for g in groups) and played_on(groups, folder, film.name) == wanted:
        return []
    lead = next((at for at in range(film.lead + 1) if wanted[at:] == got), None)
    if lead is not None:
        return []
    known = set(wanted)
    foreign = sum(s not in known for s in got)
    missing = len(wanted) - len([s for s in got if s in known])
    first = next((at for at, (a, b) in enumerate(zip(wanted[film.lead and len(wanted) - len(got) :], got)) if a != b), min(len(wanted), len(got)))
    return [f"{len(got)} of {len(wanted)} pictures, {foreign} damaged or foreign, {missing} missing, first difference at {first}"]


def place(film, references, group):
    """The part of the film that a group begins in, and its clock's difference to that part's, by its pictures."""
    if group.pictures and group.pictures.sums:
        for number, reference in enumerate(references):
            if not reference.pictures:
                continue
            if film.is_encoded:
                return number, group.pictures.times[0] - reference.pictures.times[0]
            index = {s: t for s, t in zip(reference.pictures.sums, reference.pictures.times)}
            for time, s in zip(group.pictures.times, group.pictures.sums):
                if s in index:
                    return number, time - index[s]
    return None


def compare_sound(film, references, groups):
    """Problems with the sound. Of several streams each is looked for in each of the film's."""
    problems = []
    streams = max((len(r.sounds) for r in references), default=0)
    for stream in range(streams):
        wanted_s = sum(r.sounds[stream].seconds for r in references if stream < len(r.sounds))
        heard_s, worst = 0.0, 0.0
        part = 0
        for group in groups:
            here = place(film, references, group)
            if here is not None:
                part = here[0]
            best = None
            for sound in group.sounds:
                found = follow(references, stream, part, here, sound)
                if best is None or found[0] > best[0]:
                    best = found
            if best:
                heard_s += best[0]
                worst = max(worst, abs(best[1]), key=abs)
                part = best[2]
        slack = EDGE_S * (len(references) + len(groups)) + STEP_S
        lead_s = film.lead / 25 + 0.3 if film.lead else 0
        if heard_s < wanted_s - slack - lead_s:
            problems.append(f"{heard_s:.1f} of {wanted_s:.1f} s of sound {stream + 1}")
        if worst > MAX_SKEW_S:
            problems.append(f"sound {stream + 1} is {worst * 1000:.0f} ms away from the pictures")
    return problems


def follow(references, stream, part, here, sound):
    """How many seconds of a decoded sound are those of the film, how far at most from their place, and the last part seen."""
    heard, skew = 0.0, 0.0
    # Without pictures, both beginnings count as the same time.
    if here is not None:
        offset = here[1]
    elif stream < len(references[part].sounds):
        offset = sound.start - references[part].sounds[stream].start
    else:
        offset = 0.0
    length = int(WINDOW_S * SOUND_HZ)
    step = int(STEP_S * SOUND_HZ)
    base_part = part
    for at in range(0, len(sound.samples) - length + 1, step):
        window = sound.samples[at : at + length]
        if silent(window):
            continue
        for number in range(part, len(references)):
            reference = references[number]
            if stream >= len(reference.sounds):
                continue
            own = reference.sounds[stream]
            shift = references[base_part].start - reference.start + sum(length_of(r) for r in references[base_part:number])
            # The clock goes on from part to part, unless it jumps.
            shift = shift if number > base_part and abs(shift) > STEP_S else 0.0
            expected = int((sound.start + at / SOUND_HZ - offset - shift - own.start) * SOUND_HZ)
            # Behind a change of the format within a group, ffmpeg's filters begin anew and lose up to this much.
            is_behind_change = number > base_part
            lag, alike = lag_of(window, own.samples, expected, MOST_LAG_BEHIND_CHANGE if is_behind_change else MOST_LAG)
            if alike >= LEAST_CORRELATION:
                heard += min(STEP_S, (len(sound.samples) - at) / SOUND_HZ)
                skew = max(skew, 0.0 if is_behind_change else abs(lag))
                part = number
                break
    return heard, skew, part


def length_of(reference):
    """From the first picture or sound of a part to the last."""
    times = reference.pictures.times if reference.pictures else []
    spans = [(s.start, s.start + s.seconds) for s in reference.sounds]
    if len(times) > 1:
        spans.append((times[0], times[-1] + (times[-1] - times[0]) / (len(times) - 1)))
    return max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)


# --- faces -------------------------------------------------------------------------------------------------------


class Server:
    """`millrace serve` on a store."""

    def __init__(self, millrace, store, log):
        self.rtsp, self.http = free_port(), free_port()
        arguments = [millrace, "serve", "--store", store, "--listen", f"127.0.0.1:{self.rtsp}", "--http", f"127.0.0.1:{self.http}", "--admission", "off"]
        self.log = open(log, "wb")
        self.process = subprocess.Popen([str(a) for a in arguments], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.get("/readyz")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server did not start; see {log}") from None
                time.sleep(0.1)

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=60) as reply:
            return reply.read()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(20)
        self.log.close()
        return status


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def relative(base, address):
    if address.startswith("/"):
        return address
    path = base.rsplit("/", 1)[0]
    for word in address.split("/"):
        path = path.rsplit("/", 1)[0] if word == ".." else f"{path}/{word}"
    return path


def pieces(server, path):
    """Groups of a media playlist between discontinuities: the init segment, and all media segments one behind the other. Some may be empty."""
    groups, init = [(b"", bytearray())], b""
    for line in server.get(path).decode().splitlines():
        if line.startswith("#EXT-X-MAP:"):
            init = server.get(relative(path, re.search('URI="([^"]+)"', line)[1]))
        elif line == "#EXT-X-DISCONTINUITY":
            groups.append((b"", bytearray()))
        elif line and not line.startswith("#"):
            groups[-1] = (init, groups[-1][1] + server.get(relative(path, line)))
    return groups


def decode_bytes(piece, folder, name, want_greys):
    init, media = piece
    if not media:
        return None, [], []
    file = folder / name
    file.write_bytes(init + media)
    return decode(file, folder, f"{name}.decoded", want_greys)


def ts_groups(server, film, folder):
    """The transport stream form: a variant of index.m3u8 whose segments have no init segment."""
    path = f"/titles/{film.title}/media.m3u8"
    groups = []
    for number, piece in enumerate(pieces(server, path)):
        groups.append(Group(f"ts {number}", *decode_bytes(piece, folder, f"{film.name}.ts{number}.ts", film.is_encoded), piece))
    return groups


def cmaf_groups(server, film, folder):
    path = f"/titles/{film.title}/cmaf.m3u8"
    master = server.get(path).decode()
    video, sounds, listed = None, [], master.splitlines()
    for at, line in enumerate(listed):
        if line.startswith("#EXT-X-STREAM-INF") and video is None:
            video = relative(path, listed[at + 1])
        if line.startswith("#EXT-X-MEDIA:TYPE=AUDIO") and (found := re.search('URI="([^"]+)"', line)):
            address = relative(path, found[1])
            if address not in sounds:
                sounds.append(address)
    of_pictures = pieces(server, video)
    of_video = [decode_bytes(piece, folder, f"{film.name}.v{number}.mp4", film.is_encoded) for number, piece in enumerate(of_pictures)]
    of_sounds = [
        [decode_bytes(data, folder, f"{film.name}.a{track}.{number}.mp4", False) for number, data in enumerate(pieces(server, address))]
        for track, address in enumerate(sounds)
    ]
    groups = []
    for number in range(max(len(of_video), *(len(s) for s in of_sounds), 0) if of_sounds else len(of_video)):
        pictures, heard, complaints = of_video[number] if number < len(of_video) else (None, [], [])
        heard, complaints = list(heard), list(complaints)
        for track in of_sounds:
            if number < len(track):
                heard += track[number][1]
                complaints += track[number][2]
        groups.append(Group(f"cmaf {number}", pictures, heard, complaints, of_pictures[number] if number < len(of_pictures) else None))
    return groups


def played_on(groups, folder, name):
    """Sums of the pictures as decoders show them that go on where the streams of two groups begin alike: there, the pictures before
    an access point in order of display may need those of the group before."""
    joined = []
    for init, media in (g.piece for g in groups if g.piece and g.piece[1]):
        if joined and joined[-1][0] == init:
            joined[-1][1].extend(media)
        else:
            joined.append((init, bytearray(media)))
    decoded = [decode_bytes(piece, folder, f"{name}.joined{number}", False)[0] for number, piece in enumerate(joined)]
    return [s for pictures in decoded if pictures for s in pictures.sums]


def judge(film, references, groups, folder):
    problems = compare_pictures(film, references, groups, folder) + compare_sound(film, references, groups)
    complaints = [c for g in groups for c in g.complaints]
    if complaints and not film.lead:
        problems.append(f"{len(complaints)} complaints by the decoder: {complaints[0][:120]}")
    return problems


class Check:
    """One film at all faces."""

    def __init__(self, arguments, server, store, folder):
        self.arguments, self.server, self.store, self.folder = arguments, server, store, folder

    def file(self, film, references, folder):
        data = self.store / "titles" / film.id / "data.ts"
        length, wanted = film.seconds, sum(length_of(reference) for reference in references)
        if abs(length - wanted) > MOST_LENGTH_OFF_S + film.lead / 25:
            return [f"the title lasts {length:.1f} s, the film {wanted:.1f} s"]
        if film.file.suffix == ".ts" and data.read_bytes() == film.file.read_bytes():
            return []
        return judge(film, references, [Group("file", *decode(data, folder, f"{film.name}.stored", film.is_encoded))], folder)

    def rtsp(self, film, references, folder):
        out = folder / f"{film.name}.played.ts"
        url = f"rtsp://127.0.0.1:{self.server.rtsp}/{film.title}"
        # Plays faster than a viewer would, because only the bytes count here.
        run([self.arguments.millrace, "play", "--quiet", "--transport", "tcp", "--speed", "4", "--output", out, url], seconds=180)
        data = (self.store / "titles" / film.id / "data.ts").read_bytes()
        got = out.read_bytes()
        return [] if got == data else [f"{len(got)} bytes of {len(data)}, or others"]

    def ts(self, film, references, folder):
        return judge(film, references, ts_groups(self.server, film, folder), folder)

    def cmaf(self, film, references, folder):
        return judge(film, references, cmaf_groups(self.server, film, folder), folder)

    def run(self, film):
        folder = self.folder / film.name
        folder.mkdir()
        begun = time.monotonic()
        references = [Reference(part, folder, f"part{n}", film.is_encoded) for n, part in enumerate(film.parts)]
        verdicts = {}
        for face in self.arguments.face or FACES:
            if face in film.without:
                continue
            try:
                verdicts[face] = getattr(self, face)(film, references, folder)
            except (OSError, RuntimeError, subprocess.TimeoutExpired, ValueError, IndexError, TypeError) as error:
                verdicts[face] = [f"{type(error).__name__}: {error}"]
        if not self.arguments.keep:
            shutil.rmtree(folder)
        return film, verdicts, time.monotonic() - begun


# --- the run -----------------------------------------------------------------------------------------------------


def parse_arguments():
    parser = argparse.ArgumentParser(description="Play odd films through every face of a server and compare.")
    parser.add_argument("--millrace", type=pathlib.Path, default=pathlib.Path("target/debug/millrace"), help="the program")
    parser.add_argument("--short", action="store_true", help="only the films of continuous integration")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only films with TEXT in their name")
    parser.add_argument("--face", action="append", choices=FACES, help="only this face; may be given more than once")
    parser.add_argument("--jobs", type=int, default=6, help="films at a time")
    parser.add_argument("--list", action="store_true", help="name the films and end")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write verdicts as JSON")
    parser.add_argument("--keep", action="store_true", help="keep films and decoded pictures")
    arguments = parser.parse_args()
    arguments.millrace = arguments.millrace.absolute()
    return arguments


def make_film(film, folder):
    try:
        film.make(film, folder)
        return None
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        return f"{film.name}: cannot be made: {error}"


def add_all(arguments, made, store):
    """Adds the films and learns what they are called in the store."""
    results = {}
    for film in made:
        result = subprocess.run(
            [str(arguments.millrace), "add", "--store", str(store), "--name", film.name, "--quiet", str(film.file)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=300,
        )
        if result.returncode:
            words = result.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            results[film.name] = {"add": [words[-1][:300]]}
    listed = json.loads(run([arguments.millrace, "ls", "--json", "--store", store]).stdout)
    ids = {title["name"]: (title["id"], title["duration_s"]) for title in listed}
    for film in made:
        film.title, film.id, film.seconds = film.name, *ids.get(film.name, (None, 0.0))
        if film.id is None and film.name not in results:
            results[film.name] = {"add": [f"the store has no title of this name; it has {sorted(ids)[:5]}"]}
    return results


def main():
    arguments = parse_arguments()
    chosen = [f for f in films() if (f.is_short or not arguments.short) and (not arguments.only or any(t in f.name for t in arguments.only))]
    if arguments.list:
        print("\n".join(film.name for film in chosen))
        return 0
    if not chosen:
        print("odd_films: no film has such a name; --list names them", file=sys.stderr)
        return 2
    work = pathlib.Path(tempfile.mkdtemp(prefix="millrace-odd-"))
    (work / "films").mkdir()
    (work / "decoded").mkdir()
    store = work / "store"
    verdicts = {}
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(max(1, min(arguments.jobs, os.cpu_count() or 1))) as pool:
        for film, fault in zip(chosen, pool.map(lambda f: make_film(f, work / "films"), chosen)):
            if fault:
                verdicts[film.name] = {"make": [fault]}
    made = [f for f in chosen if f.name not in verdicts]
    print(f"made {len(made)} films in {time.monotonic() - begun:.0f} s", flush=True)
    verdicts.update(add_all(arguments, made, store))
    print(f"added them; {time.monotonic() - begun:.0f} s", flush=True)
    for name, verdict in verdicts.items():
        print(f"FAIL {name:<32} {verdict}", flush=True)
    server = Server(arguments.millrace, store, work / "server.log")
    lock = threading.Lock()
    try:
        check = Check(arguments, server, store, work / "decoded")
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for film, found, seconds in pool.map(check.run, [f for f in made if f.name not in verdicts]):
                with lock:
                    verdicts[film.name] = found
                    bad = {face: problems for face, problems in found.items() if problems}
                    words = "; ".join(f"{face}: {', '.join(problems)}" for face, problems in bad.items())
                    print(f"{'FAIL' if bad else 'PASS'} {film.name:<32} {words or ' '.join(found)} ({seconds:.0f} s)", flush=True)
    finally:
        status = server.stop()
    failed = sum(any(v.values()) for v in verdicts.values()) + (status != 0)
    if status:
        print(f"FAIL the server ended with status {status}")
    if arguments.json:
        arguments.json.write_text(json.dumps(verdicts, indent=1))
    if arguments.keep or failed:
        print(f"films, store and logs: {work}")
    else:
        shutil.rmtree(work)
    print(f"odd films: {len(verdicts) - failed + (status != 0)} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
