use super::*;
use std::io::Write;

const PAYLOAD: usize = 1316;
const BASE: u64 = 1 << 32;

/// TS packets with noise that never repeats.
fn film(ts_packets: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ts_packets * TS_PACKET_BYTES);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..ts_packets {
        bytes.extend([0x47, 0x01]);
        for _ in 2..TS_PACKET_BYTES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.push(state as u8);
        }
    }
    bytes
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Sends `film[from..]` as packets numbered from `ext`.
fn send(verifier: &mut Verifier, film: &[u8], from: usize, ext: u64, packets: usize) {
    for (number, payload) in film[from..].chunks(PAYLOAD).take(packets).enumerate() {
        verifier.payload(ext + number as u64, payload).unwrap();
    }
}

#[test]
fn verifier_accepts_title_with_short_last_packet() {
    let film = film(703);
    let file = file(&film);
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &film, 0, BASE, usize::MAX);
    let result = v.finish().unwrap();
    assert_eq!((result.checked_bytes, result.different_bytes), (film.len() as u64, 0));
    assert_eq!(result.starts, [Some(0)]);
}

#[test]
fn verifier_locates_single_flipped_byte() {
    let film = film(700);
    let file = file(&film);
    for position in [0, 5, 1316 * 3 + 7, film.len() - 1] {
        let mut damaged = film.clone();
        damaged[position] ^= 0x10;
        let mut v = Verifier::open(file.path()).unwrap();
        send(&mut v, &damaged, 0, BASE, usize::MAX);
        let result = v.finish().unwrap();
        let expected = Difference {
            position: position as u64,
            sequence: (position / PAYLOAD) as u16,
            expected: Some(film[position]),
            got: damaged[position],
        };
        assert_eq!(result.first_difference, Some(expected));
        assert_eq!((result.different_bytes, result.unaligned_bytes), (1, 0));
    }
}

#[test]
fn verifier_locates_start_by_sequence_number_and_by_content() {
    let film = film(7000);
    let file = file(&film);
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &film, 500 * PAYLOAD, BASE + 500, 100); // numbers say where
    v.begin_run().unwrap();
    send(&mut v, &film, 33 * TS_PACKET_BYTES, BASE + 40_000, 100); // they do not, and no multiple of a payload either
    v.begin_run().unwrap();
    send(&mut v, &film, 900 * PAYLOAD, BASE + 500, 3); // they lie; and the run is shorter than what is looked at
    let result = v.finish().unwrap();
    assert_eq!(result.starts, [Some(500 * 1316), Some(33 * 188), Some(900 * 1316)]);
    assert_eq!((result.checked_bytes, result.different_bytes), (203 * 1316, 0));
}

#[test]
fn verifier_with_damaged_first_packet_finds_start() {
    let film = film(7000);
    let file = file(&film);
    let mut damaged = film.clone();
    damaged[100 * PAYLOAD + 9] ^= 1;
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &damaged, 100 * PAYLOAD, BASE + 60_000, 50);
    let result = v.finish().unwrap();
    assert_eq!(result.starts, [Some(100 * 1316)]);
    assert_eq!(result.first_difference.unwrap().position, 100 * 1316 + 9);
    assert_eq!(result.different_bytes, 1);
}

#[test]
fn gaps_keep_the_place_and_repeats_are_differences() {
    let film = film(7000);
    let file = file(&film);
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &film, 0, BASE, 4);
    v.gap(3); // while not aligned yet
    send(&mut v, &film, 7 * PAYLOAD, BASE + 7, 20);
    v.gap(2);
    send(&mut v, &film, 29 * PAYLOAD, BASE + 29, 20);
    assert_eq!(v.result.different_bytes, 0);
    // The server sends packet 48 again as 49: every byte of its content is at the wrong place.
    send(&mut v, &film, 48 * PAYLOAD, BASE + 49, 1);
    let result = v.finish().unwrap();
    assert_eq!(result.first_difference.unwrap().sequence, 49);
    assert!(result.different_bytes > 1000);
}

#[test]
fn stuffing_at_the_start_is_told_apart_by_what_follows() {
    let mut film = film(7000);
    let stuffing = vec![0x47u8; 4 * PAYLOAD];
    for at in [0, 200 * PAYLOAD, 600 * PAYLOAD] {
        film[at..at + stuffing.len()].copy_from_slice(&stuffing);
    }
    let file = file(&film);
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &film, 600 * PAYLOAD, BASE + 9, 100);
    assert_eq!(v.finish().unwrap().starts, [Some(600 * 1316)]);
}

#[test]
fn verifier_counts_unknown_bytes_unaligned_and_excess_different() {
    let film = film(70);
    let file = file(&film);
    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &vec![7; 20 * PAYLOAD], 0, BASE, 20);
    let result = v.finish().unwrap();
    assert_eq!((result.checked_bytes, result.unaligned_bytes), (0, 20 * 1316));
    assert_eq!(result.starts, [None]);

    let mut v = Verifier::open(file.path()).unwrap();
    send(&mut v, &film, 0, BASE, 10);
    send(&mut v, &film, 0, BASE + 10, 1);
    let result = v.finish().unwrap();
    let first = result.first_difference.unwrap();
    assert_eq!((first.position, first.expected, result.different_bytes), (film.len() as u64, None, 1316));

    assert!(Verifier::open(Path::new("/nonexistent/film.ts")).is_err());
}
