#!/usr/bin/python3
"""Plays one RTSP film with GStreamer's playbin as a person would: pictures and sound on the clock, with pauses, seeks
and other speeds at given times, until the end of the stream. Prints one JSON object:

  pictures             MD5 of each picture shown, in order: of its planes without padding, as FFmpeg's framemd5 has it
  frames_while_paused  pictures shown between a pause and the resume after it
  sounds               sound buffers played
  first_s              seconds from the start to the first picture
  first_after_seek_s   place in the film of the first picture after the last seek
  lost                 packets the jitter buffers missed or got too late. Says nothing after a seek over UDP: udpsrc
                       then still reads a datagram from before it, and the sequence numbers seem to have jumped
  received             packets the jitter buffers passed on
  end_s                seconds from the start to the end of the stream; null if it did not come
  wall_s               seconds in all
  rates                of each change of speed the speed, the place in the film, and how many pictures had been shown
  errors, warnings     what the pipeline said
  hangs                whether the pipeline could not be closed

Status 0 whenever the report is complete: whether it is a good one is for the caller to judge.
"""

import argparse
import hashlib
import json
import os
import threading
import time

import gi

gi.require_version("Gst", "1.0")
from gi.repository import GLib, Gst  # noqa: E402  (the version must be chosen first)

PROTOCOLS = {"udp": "udp", "tcp": "tcp", "any": "tcp+udp-mcast+udp"}

# A sink may still show the picture it was given before the pause.
PAUSE_SETTLES_S = 0.3


def parse_step(text):
    """'4:pause', '7:resume', '5:seek=8', '5:rate=-4' or '5:rendition=180p' as (seconds, word, value)."""
    at, _, action = text.partition(":")
    word, _, value = action.partition("=")
    with_value = ("seek", "rate", "rendition")
    if word not in ("pause", "resume", *with_value) or (word in with_value) != bool(value):
        words = "SECONDS:pause, SECONDS:resume, SECONDS:seek=SECONDS, SECONDS:rate=SPEED or SECONDS:rendition=NAME"
        raise argparse.ArgumentTypeError(f"'{text}' is not {words}")
    return float(at), word, value if word == "rendition" else float(value or 0)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Play an RTSP film with GStreamer and report what happened.")
    parser.add_argument("url")
    parser.add_argument("--transport", choices=sorted(PROTOCOLS), default="udp")
    parser.add_argument("--limit", type=float, required=True, help="give up after so many seconds")
    parser.add_argument("--latency", type=int, help="jitter buffer in milliseconds (GStreamer's own: 2000)")
    parser.add_argument("--step", type=parse_step, action="append", default=[], help="SECONDS:pause|resume|seek=T|rate=X|rendition=NAME")
    return parser.parse_args()


class Player:
    """One pipeline and what is seen of it. Callbacks of the sinks come on other threads than the rest."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.start = time.monotonic()
        self.lock = threading.Lock()
        self.paused_since = None
        self.awaits_seek = False
        self.jitter_buffers = []
        self.source = None
        self.report = {
            "pictures": [],
            "frames_while_paused": 0,
            "sounds": 0,
            "first_s": None,
            "first_after_seek_s": None,
            "end_s": None,
            "errors": [],
            "warnings": [],
            "rates": [],
        }
        self.loop = GLib.MainLoop()
        self.pipeline = self.build()

    def elapsed(self):
        return round(time.monotonic() - self.start, 3)

    def build(self):
        pipeline = Gst.ElementFactory.make("playbin", None)
        pipeline.set_property("uri", self.arguments.url)
        pipeline.set_property("video-sink", self.sink(self.on_picture))
        pipeline.set_property("audio-sink", self.sink(self.on_sound))
        pipeline.connect("source-setup", self.on_source)
        pipeline.connect("deep-element-added", self.on_element)
        bus = pipeline.get_bus()
        bus.add_signal_watch()
        bus.connect("message::eos", self.on_end)
        bus.connect("message::error", self.on_error)
        bus.connect("message::warning", self.on_warning)
        return pipeline

    @staticmethod
    def sink(callback):
        sink = Gst.ElementFactory.make("fakesink", None)
        sink.set_property("sync", True)
        sink.set_property("signal-handoffs", True)
        sink.connect("handoff", callback)
        return sink

    def on_source(self, _pipeline, source):
        self.source = source
        Gst.util_set_object_arg(source, "protocols", PROTOCOLS[self.arguments.transport])
        if self.arguments.latency is not None:
            source.set_property("latency", self.arguments.latency)

    def on_element(self, _pipeline, _bin, element):
        factory = element.get_factory()
        if factory is not None and factory.get_name() == "rtpjitterbuffer":
            self.jitter_buffers.append(element)

    def on_picture(self, _sink, buffer, pad):
        picture = hashlib.md5(buffer.extract_dup(0, buffer.get_size())).hexdigest()
        with self.lock:
            report = self.report
            report["pictures"].append(picture)
            if report["first_s"] is None:
                report["first_s"] = self.elapsed()
            if self.paused_since is not None and self.elapsed() > self.paused_since + PAUSE_SETTLES_S:
                report["frames_while_paused"] += 1
            if self.awaits_seek:
                self.awaits_seek = False
                report["first_after_seek_s"] = self.place(buffer, pad)

    @staticmethod
    def place(buffer, pad):
        """Where in the film a buffer belongs, in seconds."""
        event = pad.get_sticky_event(Gst.EventType.SEGMENT, 0)
        place = event.parse_segment().to_stream_time(Gst.Format.TIME, buffer.pts)
        return round(place / Gst.SECOND, 3)

    def on_sound(self, _sink, _buffer, _pad):
        with self.lock:
            self.report["sounds"] += 1

    def on_end(self, _bus, _message):
        self.report["end_s"] = self.elapsed()
        self.loop.quit()

    def on_error(self, _bus, message):
        error, detail = message.parse_error()
        last = (detail or "").strip().splitlines()[-1:] or [""]
        self.report["errors"].append(f"{message.src.get_name()}: {error.message} {last[0]}".strip())
        self.loop.quit()

    def on_warning(self, _bus, message):
        warning, _detail = message.parse_warning()
        self.report["warnings"].append(f"{message.src.get_name()}: {warning.message}")

    def act(self, word, value):
        if word == "pause":
            self.pipeline.set_state(Gst.State.PAUSED)
            with self.lock:
                self.paused_since = self.elapsed()
        elif word == "resume":
            with self.lock:
                self.paused_since = None
            self.pipeline.set_state(Gst.State.PLAYING)
        elif word == "rate":
            self.change_rate(value)
        elif word == "rendition":
            # rtspsrc's own way to SET_PARAMETER.
            if not self.source.emit("set-parameter", "rendition", value, "text/parameters", Gst.Promise.new()):
                self.report["errors"].append(f"the rendition {value} was not asked for")
                self.loop.quit()
        else:
            with self.lock:
                self.awaits_seek = True
            flags = Gst.SeekFlags.FLUSH | Gst.SeekFlags.KEY_UNIT
            if not self.pipeline.seek_simple(Gst.Format.TIME, flags, int(value * Gst.SECOND)):
                self.report["errors"].append(f"the seek to {value} s was refused")
                self.loop.quit()
        return GLib.SOURCE_REMOVE

    def change_rate(self, rate):
        """Another speed from here: with TRICKMODE rtspsrc sends Scale, without it Speed."""
        known, here = self.pipeline.query_position(Gst.Format.TIME)
        flags = Gst.SeekFlags.FLUSH | (Gst.SeekFlags.TRICKMODE if rate != 1.0 else Gst.SeekFlags.KEY_UNIT)
        kept, to = Gst.SeekType.NONE, Gst.SeekType.SET
        begin, end = ((to, here), (kept, -1)) if rate > 0 else ((to, 0), (to, here))
        if not known or not self.pipeline.seek(rate, Gst.Format.TIME, flags, *begin, *end):
            self.report["errors"].append(f"the rate {rate} was refused")
            self.loop.quit()
        with self.lock:
            self.report["rates"].append([rate, round(here / Gst.SECOND, 3), len(self.report["pictures"])])

    def give_up(self):
        self.loop.quit()
        return GLib.SOURCE_REMOVE

    def run(self):
        for at, word, value in self.arguments.step:
            GLib.timeout_add(int(at * 1000), self.act, word, value)
        GLib.timeout_add(int(self.arguments.limit * 1000), self.give_up)
        self.pipeline.set_state(Gst.State.PLAYING)
        self.loop.run()
        self.finish()

    def finish(self):
        statistics = [element.get_property("stats") for element in self.jitter_buffers]

        def total(*names):
            return sum(entry.get_value(name) for entry in statistics for name in names)

        # rtspsrc adds a jitter buffer for each stream; none at all means that nothing was received as RTP.
        self.report["lost"] = total("num-lost", "num-late") if statistics else None
        self.report["received"] = total("num-pushed")
        self.report["wall_s"] = self.elapsed()
        closing = threading.Thread(target=self.pipeline.set_state, args=(Gst.State.NULL,), daemon=True)
        closing.start()
        closing.join(4)
        self.report["hangs"] = closing.is_alive()


def main():
    arguments = parse_arguments()
    Gst.init(None)
    player = Player(arguments)
    player.run()
    with player.lock:
        print(json.dumps(player.report), flush=True)
    # A pipeline that hangs must not keep this process.
    os._exit(0)


if __name__ == "__main__":
    main()
