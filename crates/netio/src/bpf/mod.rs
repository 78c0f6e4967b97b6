//! BPF programs written, loaded and attached from Rust: no compiler, no library, nothing to install.
//!
//! | file | holds |
//! | --- | --- |
//! | `insn` | one instruction: registers, operations, encoding |
//! | `asm` | [`Assembler`]: instructions in order, labels, jump fix-ups |
//! | `map` | [`Map`], [`MappedArray`], [`PerCpuArray`], [`SocketMap`]: state shared with a program |
//! | `program` | [`BpfProgram`]: loading (the verifier's words go into the error), test runs |
//! | `link` | [`InterfaceLink`]: a program at an interface, gone when dropped |
//! | `sys` | the `bpf` system call and `mmap`, the only `unsafe` here |
//!
//! Everything needs `CAP_BPF` and, for the network, `CAP_NET_ADMIN`; root has both.

mod asm;
mod error;
mod insn;
mod link;
mod map;
mod program;
mod sys;

pub use asm::{Assembler, Helper, Label};
pub use error::{AsmError, BpfError};
pub use insn::{Alu, Cond, Insn, Operand, Reg, Width};
pub use link::{InterfaceLink, interface_index};
pub use map::{AsMap, Map, MappedArray, PerCpuArray, SocketMap};
pub use program::{BpfProgram, ProgramType, TestRun, TestRunResult};
