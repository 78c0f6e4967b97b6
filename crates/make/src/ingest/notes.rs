//! Notes on a title for the operator, in words.

use std::collections::BTreeMap;

use super::clock_source::ClockOrigin;
use super::framing::{Framing, Skipped};
use super::pass::Passed;

/// Everything that was odd about the stream.
pub(crate) fn notes(passed: &Passed) -> Vec<String> {
    let mut notes = Vec::new();
    match passed.framing {
        Framing::Plain => {}
        Framing::M2ts => {
            notes.push("192-byte packets: the 4 bytes before each TS packet were taken off".to_owned())
        }
        Framing::ReedSolomon => {
            notes.push(
                "204-byte packets: the 16 bytes of outer code behind each TS packet were taken off"
                    .to_owned(),
            );
        }
    }
    skipped(&passed.skipped, &mut notes);
    clock(passed, &mut notes);
    untold(passed, &mut notes);
    codec_changes(passed, &mut notes);
    packets(passed, &mut notes);
    notes
}

fn skipped(skipped: &Skipped, notes: &mut Vec<String>) {
    let &Skipped { before_bytes, bytes, places, first_offset, tail_bytes } = skipped;
    if before_bytes > 0 {
        notes.push(format!("{before_bytes} bytes before the first TS packet were left out"));
    }
    if places > 0 {
        notes.push(format!(
            "damaged: {bytes} bytes in {places} places were left out, the first at byte {first_offset} of the source"
        ));
    }
    if tail_bytes > 0 {
        notes.push(format!("the last {tail_bytes} bytes are no whole TS packet and were left out"));
    }
}

fn clock(passed: &Passed, notes: &mut Vec<String>) {
    let odd = &passed.indexed.oddities;
    match passed.indexed.clock {
        ClockOrigin::Announced(_) => {}
        ClockOrigin::Unannounced(pid) => {
            notes.push(format!("no PCR where the program map announces it; that of PID {pid} was taken"));
        }
        ClockOrigin::Stamps(pid) => {
            notes.push(format!("no PCR: the pace was estimated from the time stamps of PID {pid}"));
        }
    }
    if odd.jumps > 0 {
        notes.push(format!(
            "made of {} recordings, or interrupted: the clock begins again {}, first at byte {}; it plays on without a gap",
            odd.jumps + 1,
            times(odd.jumps),
            odd.first_jump
        ));
    }
    if odd.coasted > 0 {
        notes.push(format!(
            "no clock value came for 32 MiB {}; the pace there was estimated",
            times(odd.coasted)
        ));
    }
}

/// How often, in words.
fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Sound that players do not find, because the tables hide it.
fn untold(passed: &Passed, notes: &mut Vec<String>) {
    for (pid, codec) in &passed.indexed.untold {
        notes.push(format!(
            "the sound on PID {pid} is {codec}, but the program map calls it private data (stream type 0x06): VLC and GStreamer \
             stay silent; ffmpeg -i FILE -map 0 -c copy -f mpegts OUT.ts makes a copy that says what it is"
        ));
    }
}

/// Streams that change their codec: browsers choose their decoders by the first one. The first change of each PID counts.
fn codec_changes(passed: &Passed, notes: &mut Vec<String>) {
    let mut seen: BTreeMap<u16, Option<&str>> = BTreeMap::new();
    for stream in passed.indexed.index.layouts().flatten().filter(|stream| !stream.codec.is_empty()) {
        let before = *seen.entry(stream.pid).or_insert(Some(&stream.codec));
        if let Some(before) = before.filter(|before| *before != stream.codec) {
            seen.insert(stream.pid, None);
            notes.push(format!(
                "the stream on PID {} changes from {before} to {} at byte {} of the data: a player that lacks one of the \
                 decoders stops there, such as a browser at AC-3; convert the parts to one codec before they are joined",
                stream.pid, stream.codec, stream.byte
            ));
        }
    }
}

fn packets(passed: &Passed, notes: &mut Vec<String>) {
    let odd = &passed.indexed.oddities;
    if odd.programs > 1 {
        notes.push(format!(
            "{} programs: all are kept; time and access points are those of program {}",
            odd.programs, passed.indexed.program
        ));
    }
    if odd.bare_pictures > 0 {
        notes.push(format!(
            "no parameter sets (sequence header) come with {} pictures that decoding could start at, the first at byte {} of the \
             data: viewers cannot start or seek there; ffmpeg -i FILE -map 0 -c copy -bsf:v dump_extra=freq=keyframe OUT.ts makes \
             a copy that has them",
            odd.bare_pictures, odd.first_bare_picture
        ));
    }
    if odd.table_changes > 0 {
        notes.push(format!("the program map changes {}", times(odd.table_changes)));
    }
    if odd.breaks > 0 {
        notes.push(format!(
            "packets are missing in the source in {} places, the first before byte {} of the data",
            odd.breaks, odd.first_break
        ));
    }
    if odd.marked_damaged > 0 {
        notes.push(format!("{} TS packets are marked as damaged by the receiver", odd.marked_damaged));
    }
    if odd.scrambled > 0 {
        notes.push(format!("{} TS packets are scrambled; players need the key", odd.scrambled));
    }
    if odd.wrong_crcs > 0 {
        notes.push(format!("{} table sections have a wrong CRC and were ignored", odd.wrong_crcs));
    }
}
