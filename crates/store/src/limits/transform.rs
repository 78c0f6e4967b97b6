//! Bounds of transformations at fill time.

use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};

/// Transformations that an operator may name. Each of them makes another track of every title that it is asked for with: titles are in
/// memory once for each.
pub const MAX_TRANSFORMS: usize = 16;
/// Steps of one transformation: there are three kinds, and a chain of more than twice as many is a mistake.
pub const MAX_TRANSFORM_STEPS: usize = 8;
/// Longest name of a transformation: it stands in URLs.
pub const MAX_TRANSFORM_NAME: usize = 32;
/// Longest description of one, for the same reason as any line of a command.
pub const MAX_TRANSFORM_TEXT: usize = 4096;
/// Of these, at least this many bytes are examined, even when all tables have come: a fifth of a
/// second of the fastest titles, in which each stream has a few time stamps.
pub const MIN_TABLE_LOOK_BYTES: usize = 2 << 20;
/// Read at a time meanwhile: whole default-size packets, near a megabyte.
pub const TABLE_READ_BYTES: usize = 797 * DEFAULT_PACKET_BYTES;

const _: () = assert!(TABLE_READ_BYTES.is_multiple_of(TS_PACKET_BYTES));
/// Failures of one title in one transformation are logged once in this time: a module that fails does so with every block, several times a
/// second for each viewer.
pub const TRANSFORM_WARN_EVERY_NS: u64 = 60_000_000_000;
/// Titles whose last logged failure is remembered; beyond this number the oldest is forgotten.
pub const MAX_TRANSFORM_WARNED: usize = 64;

// Modules.

/// Longest module: what compilers make of a few thousand lines.
pub const MAX_WASM_MODULE_BYTES: u64 = 1 << 20;
/// Memory of an instance: an extent, a copy of it, and the megabyte of stack that compilers take; each block has a new instance, whose
/// memory is made for it.
pub const MAX_WASM_MEMORY_BYTES: usize = 4 << 20;
/// Entries of its tables: addresses of functions; a module has hundreds.
pub const MAX_WASM_TABLE_ELEMENTS: usize = 4096;
/// Calls within calls: nothing that walks a list of packets needs a tenth of it.
pub const MAX_WASM_RECURSION: usize = 1000;
/// Values of those calls.
pub const MAX_WASM_STACK_BYTES: usize = 1 << 20;
/// Work for one block, about one unit for each instruction: enough to look at each byte of an
/// extent some forty times. `docs/design/0028-transformations.md` has the figure for the time this
/// takes.
pub const WASM_FUEL: u64 = 10_000_000;
/// The cost of a line of text, taken from this work.
pub const WASM_LOG_FUEL: u64 = 10_000;
/// Lines that an instance may say, and that wait to be taken.
pub const MAX_WASM_LINES: usize = 4;
/// Longest of them.
pub const MAX_WASM_LINE_BYTES: usize = 200;
