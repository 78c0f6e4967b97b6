//! Recordings that are read while they are written: flushed packets can be read, readers wait for the others, and the end comes as an answer.

use std::sync::{Arc, mpsc};

use crate::cache_common::{Engine, StandingClock, World, stream};
use crate::members_support::Disks;
use millrace_core::ids::{RunSerial, TitleRef};
use millrace_core::packet::PacketMeta;
use millrace_core::seam::Want;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::{RtpHeader, sequence_of};
use millrace_store::StoreError;
use millrace_store::blocking::Timeout;
use millrace_store::cache::{GrowingTitle, ReadBackend, ReadFailure};
use millrace_store::volume::{RecordingNote, TitleInfo, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE};

const PER_EXTENT: u32 = 196;

fn note() -> RecordingNote {
    RecordingNote { name: "news".into(), title: "News".into(), source: "live:news".into(), began_unix_s: 5 }
}

/// A recording of a film, and how many of its packets have been written.
struct Recording {
    writer: TitleWriter,
    film: Film,
    written: u32,
}

impl Recording {
    fn begin(volume: &Volume, packets: u32) -> Self {
        let writer = TitleWriter::begin_recording(volume, &[SIZE], &note()).unwrap();
        Self { writer, film: Film::new(packets as usize * 7, 5), written: 0 }
    }

    fn write(&mut self, until: u32) {
        for packet in self.written..until {
            let at = packet as usize * usize::from(SIZE);
            self.writer.write_data(&self.film.bytes[at..at + usize::from(SIZE)]).unwrap();
            self.writer.push_meta(SIZE, self.film.meta(SIZE, packet)).unwrap();
        }
        self.written = until;
        self.writer.flush().unwrap();
    }

    fn commit(self) -> TitleInfo {
        self.writer.commit(self.film.finish("news")).unwrap()
    }
}

fn want(engine: &mut Engine, title: TitleRef, packet: u32) {
    let (extent, place) = (packet / PER_EXTENT, (packet % PER_EXTENT) as u16);
    let want = Want { stream: stream(0), run: RunSerial(0), title, extent, place, by: Instant(0), spare: 0 };
    assert!(engine.handle.want(&want));
}

/// The extent that the stream waits for has the film's bytes from its first packet on; returns the packet behind it.
fn read(engine: &mut Engine, film: &Film, info: &TitleInfo) -> u32 {
    let lease = engine.grant().lease.unwrap_or_else(|failure| panic!("{failure}"));
    let content = lease.content();
    for place in 0..content.packets {
        let packet = content.first_packet + place;
        let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
        let at = packet as usize * usize::from(SIZE);
        assert!(sent == &film.bytes[at..at + usize::from(SIZE)], "packet {packet}");
        let meta = film.meta(SIZE, packet);
        assert_eq!((header.sequence, header.ssrc), (sequence_of(packet), info.timeline.ssrc));
        let found: PacketMeta = lease.meta(place);
        assert_eq!((found.time(), found.flags()), (meta.time(), meta.flags()), "packet {packet}");
    }
    content.first_packet + content.packets
}

#[test]
fn record_of_recording_on_disk_that_hangs_is_given_up_until_it_answers() {
    let (_disks, volume) = Disks::volume(1, 0, 0);
    let mut recording = Recording::begin(&volume, PER_EXTENT * 9);
    recording.write(PER_EXTENT * 8);
    let media = Arc::clone(recording.writer.growing().unwrap());
    let time = recording.film.meta(SIZE, 5).time();
    assert_eq!(media.record_briefly(5).unwrap().time(), time);
    let (answer, hangs) = mpsc::channel::<()>();
    let members = volume.members();
    assert!(members.ask(0, Timeout::Brief, move |_| hangs.recv()).is_err());
    assert!(matches!(media.record_briefly(5), Err(StoreError::TimedOut { .. })));
    drop(answer);
    // The thread that hung comes back when it has a processor.
    while media.record_briefly(5).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(media.record_briefly(5).unwrap().time(), time);
}

#[test]
fn reader_of_recording_gets_what_is_flushed_waits_and_learns_of_the_end() {
    // With several members the mark is at the end of a stripe.
    for (members, tolerance, network, extents) in [(1, 0, 0, 9), (1, 0, 2, 9), (4, 1, 0, 60)] {
        let (_disks, volume) = Disks::volume(members, tolerance, network);
        let mut world =
            World::new(ReadBackend::Threads, 16, 0, 1, Arc::new(StandingClock::default())).unwrap();
        let mut engine = world.engines.remove(0);
        // Some extents, and a part of one.
        let all = extents * PER_EXTENT + 33;
        let mut recording = Recording::begin(&volume, all);
        let media = Arc::clone(recording.writer.growing().unwrap());
        let title = world.cache.open_source(Box::new(GrowingTitle(Arc::clone(&media)))).unwrap();
        want(&mut engine, title, 0);
        assert_eq!((media.packets(), engine.handle.poll().is_none()), (0, true), "nothing is there yet");
        recording.write(2 * PER_EXTENT - 1);
        recording.write((extents - 2) * PER_EXTENT + 100);
        let readable = media.packets();
        assert!(readable >= PER_EXTENT && readable.is_multiple_of(PER_EXTENT), "{members}: {readable}");
        let (info, index) = recording.writer.as_it_grows(recording.film.finish("news")).unwrap();
        assert!(info.is_growing() && info.packets == readable && index.data_bytes() == info.bytes);
        let mut next = read(&mut engine, &recording.film, &info);
        while next < readable {
            want(&mut engine, title, next);
            next = read(&mut engine, &recording.film, &info);
        }
        want(&mut engine, title, next);
        recording.write(all);
        if media.packets() > next {
            next = read(&mut engine, &recording.film, &info);
            want(&mut engine, title, next);
        }
        let film = Film::new(all as usize * 7, 5);
        let title_info = recording.commit();
        assert_eq!((title_info.id, title_info.timeline), (info.id, info.timeline));
        media.finish(title_info.packets);
        while next < all {
            next = read(&mut engine, &film, &info);
            want(&mut engine, title, next);
        }
        assert_eq!((next, engine.grant().lease.err()), (all, Some(ReadFailure::Ended)), "{members}");
        // It may look back, and others may come.
        want(&mut engine, title, 0);
        assert_eq!(read(&mut engine, &film, &info), PER_EXTENT);
    }
}

#[test]
fn reader_of_recording_that_is_given_up_gets_what_there_is() {
    let (_disks, volume) = Disks::volume(1, 0, 0);
    let mut world = World::new(ReadBackend::Threads, 16, 0, 1, Arc::new(StandingClock::default())).unwrap();
    let mut engine = world.engines.remove(0);
    let mut recording = Recording::begin(&volume, 900);
    recording.write(PER_EXTENT + 5);
    let media = Arc::clone(recording.writer.growing().unwrap());
    let title = world.cache.open_source(Box::new(GrowingTitle(Arc::clone(&media)))).unwrap();
    let (info, _) = recording.writer.as_it_grows(recording.film.finish("news")).unwrap();
    want(&mut engine, title, 0);
    assert_eq!(read(&mut engine, &recording.film, &info), PER_EXTENT);
    want(&mut engine, title, PER_EXTENT);
    recording.writer.discard();
    media.abandon();
    assert_eq!(engine.grant().lease.err(), Some(ReadFailure::Ended));
    want(&mut engine, title, 0);
    assert_eq!(read(&mut engine, &recording.film, &info), PER_EXTENT, "the files are open");
    world.cache.close_title(title);
    want(&mut engine, title, PER_EXTENT);
    assert_eq!(engine.grant().lease.err(), Some(ReadFailure::NoTitle));
}
