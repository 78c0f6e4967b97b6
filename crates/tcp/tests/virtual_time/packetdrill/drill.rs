//! Scripts in the language of packetdrill (segments that arrive, segments that have to go out, system calls, each at its time), run against
//! this crate's stack in virtual time.
//!
//! | file | holds |
//! | --- | --- |
//! | `text` | a script's text: position and errors |
//! | `script` | the elements of a script |
//! | `parse` | text into events |
//! | `segment` | segments: their notation, and their form on the wire |
//! | `setup` | options and shell commands of a script as settings of a stack |
//! | `machine` | the stack, its clock, the segments it has sent |
//! | `calls` | system calls, on sockets that the stack's connections stand behind |
//! | `run` | one event after the other |
//!
//! What differs from packetdrill, for all scripts:
//!
//! * Time is virtual: nothing waits, and a script takes the same course each time.
//! * The stack has no segmentation by hardware: a segment longer than the maximum segment size stands for a run of segments in order.
//! * `%{ }%` (Python about the kernel's state) is counted and passed over.
//! * A segment that nothing in the script has asked for is a fault, also behind the last event.
//! * Payloads are bytes of a stream that the place in it determines; each is compared.
//! * `(45000 > 8080)` before the flags names the ports of a segment, `[badsum]` before them spoils its checksum, the option `hex 0300` stands for
//!   any bytes, and the command `settings` sets what Linux has no sysctl for.

mod calls;
mod machine;
mod parse;
mod run;
mod script;
mod segment;
mod setup;
mod text;

pub(crate) use self::parse::parse;
pub(crate) use self::run::run;
pub(crate) use self::script::Dialect;
pub(crate) use self::setup::{Family, Start};
