//! Power cuts while a recording is written and becomes a title: in every state, the flushed media is in the title or can be read to
//! make one of it.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::crash_support::{assert_sound, each_state, scratch};
use crate::sim::Sim;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{RecordingNote, TitleWriter, Volume};
use millrace_testkit::titles::{Film, SIZE};

/// Two full stripes of three members, and some more.
const TS_PACKETS: usize = 600;

fn note() -> RecordingNote {
    RecordingNote { name: "news".into(), title: "News".into(), source: "live:news".into(), began_unix_s: 5 }
}

/// The media that is left of the recording, wherever it is.
fn media(volume: &Volume, what: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(title) = volume.find("news").unwrap_or_else(|e| panic!("{what}: {e}")) {
        bytes.resize(title.bytes as usize, 0);
        let mut reader = millrace_store::volume::MediaReader::open(volume, title.id).unwrap();
        reader.read_exact(0, &mut bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        let left = volume.interrupted_recordings().unwrap();
        assert!(left.is_empty(), "{what}: it is a title and {left:?}");
        return Some(bytes);
    }
    let mut found = volume.interrupted_recordings().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(found.len() <= 1, "{what}: {found:?}");
    let recording = found.pop()?;
    recording.media().unwrap_or_else(|e| panic!("{what}: {e}")).read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

#[test]
fn power_cut_while_recording_leaves_all_that_was_flushed() {
    for members in [1, 3] {
        let dir = scratch();
        let roots: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let parity = usize::from(members > 1);
        let geometry = Geometry::choose(members, parity, 0).unwrap();
        drop(Volume::create(&roots, geometry).unwrap());
        let film = Film::new(TS_PACKETS, 3);
        let stripe =
            geometry.stripes(1).max(1) as usize * usize::from(geometry.k) * geometry.unit_packets as usize;
        let unflushed = if members == 1 { 0 } else { stripe * usize::from(SIZE) };
        let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<&Path>>()).unwrap();
        let volume = Volume::open_members_on(&roots, sim.disk()).unwrap();
        let mut writer = TitleWriter::begin_recording(&volume, &[SIZE], &note()).unwrap();
        sim.mark("begun");
        for part in film.bytes.chunks(TS_PACKETS / 2 * TS_PACKET_BYTES) {
            writer.write_data(part).unwrap();
            writer.flush().unwrap();
            sim.mark("flushed half");
        }
        for packet in 0..film.packets(SIZE) {
            writer.push_meta(SIZE, film.meta(SIZE, packet)).unwrap();
        }
        writer.commit(film.finish("news")).unwrap();
        sim.mark("committed");
        drop(volume);
        // Those that are rebuilt name these as their places.
        roots.iter().for_each(|root| std::fs::rename(root, root.with_extension("done")).unwrap());
        let mut seen = [0; 4];
        each_state(&sim.recording(), members, 2, |left| {
            let what = &left.what;
            let volume = Volume::open_members(left.roots).unwrap_or_else(|e| panic!("{what}: {e}"));
            let media = media(&volume, what);
            let halves = left.marks.iter().filter(|mark| **mark == "flushed half").count();
            let is_committed = left.marks.contains(&"committed");
            let least = match (halves, is_committed) {
                (_, true) => film.bytes.len(),
                (halves, false) => (halves * film.bytes.len() / 2).saturating_sub(unflushed),
            };
            let length = media.as_ref().map_or(0, Vec::len);
            assert!(length >= least, "{what}: {length} bytes are left of {least} that were flushed");
            let media = media.unwrap_or_default();
            // Behind that, a file may have its length without its bytes.
            assert!(media[..least] == film.bytes[..least], "{what}: other bytes");
            assert!(media.is_empty() || left.marks.contains(&"begun"), "{what}: there before it began");
            left.roots.iter().for_each(|root| assert_sound(root, what));
            seen[if is_committed { 3 } else { halves }] += 1;
        });
        assert!(seen.iter().all(|count| *count > 0), "{members} members: {seen:?}");
    }
}
