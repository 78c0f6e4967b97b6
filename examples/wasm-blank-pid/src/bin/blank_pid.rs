//! Blanks one PID: its packets become null packets.
//!
//! ```sh
//! rustup target add wasm32-unknown-unknown
//! cargo build --release --target wasm32-unknown-unknown
//! millrace serve ~/films --transform 'blank=wasm:target/wasm32-unknown-unknown/release/wasm_blank_pid.wasm'
//! ```
//!
//! `blank_pid.wat` does the same in text form, and is what millrace's tests run. What a module has to export is in
//! `docs/ref/transforms.md`.

use std::sync::Mutex;

/// The PID that is blanked.
const PID: u16 = 0x101;
/// Bytes of a transport stream packet.
const PACKET: usize = 188;
/// A block has never more.
const BLOCK: usize = 256 * 1024;

/// Where blocks come. A module is instantiated for each block, so there is one at a time.
static ROOM: Mutex<[u8; BLOCK]> = Mutex::new([0; BLOCK]);

/// Where a block of `length` bytes is to be put.
#[no_mangle]
pub extern "C" fn alloc(length: i32) -> i32 {
    match usize::try_from(length) {
        Ok(length) if length <= BLOCK => ROOM.lock().map_or(0, |mut room| room.as_mut_ptr() as i32),
        _ => 0,
    }
}

/// Changes the block, whose first packet has the number `_first` in its title. Gives its length; anything else means that it is to stay as
/// it was.
#[no_mangle]
pub extern "C" fn transform(_place: i32, length: i32, _first: i64) -> i32 {
    let Ok(mut room) = ROOM.lock() else { return -1 };
    let Some(block) = usize::try_from(length).ok().and_then(|length| room.get_mut(..length)) else { return -1 };
    for packet in block.chunks_exact_mut(PACKET) {
        if u16::from_be_bytes([packet[1] & 0x1f, packet[2]]) == PID {
            packet.fill(0xff);
            packet[..4].copy_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
        }
    }
    length
}
