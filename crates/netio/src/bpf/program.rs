//! Programs in the kernel.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::asm::Assembler;
use super::error::BpfError;
use super::sys::{LoadForm, prog_load, prog_test_run, prog_verified_insns};
use crate::limits::{VERIFIER_LOG_BYTES, VERIFIER_SHOWN_BYTES};

/// The purpose of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramType {
    /// Packets that an interface received, as the stack gets them (`BPF_TCX_INGRESS`).
    TcxIngress,
    /// Packets that an interface received, before the stack (`BPF_XDP`).
    Xdp,
    /// The same, and the program accepts a packet that consists of several pieces, and sees the
    /// first of them (`BPF_F_XDP_HAS_FRAGS`): needed where the MTU is larger than a page.
    XdpFrags,
}

impl ProgramType {
    /// `enum bpf_prog_type`.
    fn program_type(self) -> u32 {
        match self {
            Self::TcxIngress => 3,
            Self::Xdp | Self::XdpFrags => 6,
        }
    }

    /// `enum bpf_attach_type`.
    pub(super) fn attach_type(self) -> u32 {
        match self {
            Self::TcxIngress => 46,
            Self::Xdp | Self::XdpFrags => 37,
        }
    }

    /// Flags of `BPF_PROG_LOAD`.
    fn flags(self) -> u32 {
        const HAS_FRAGS: u32 = 1 << 5;
        if self == Self::XdpFrags { HAS_FRAGS } else { 0 }
    }
}

/// A program that the kernel accepted.
#[derive(Debug)]
pub struct BpfProgram {
    fd: OwnedFd,
    kind: ProgramType,
    name: String,
}

/// One test run.
#[derive(Clone, Copy, Debug)]
pub struct TestRun<'a> {
    /// The frame, from its Ethernet header.
    pub packet: &'a [u8],
    /// The context (`struct __sk_buff` or `struct xdp_md`), or nothing.
    pub context: &'a [u8],
    /// How often.
    pub repeat: u32,
}

/// The result of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRunResult {
    /// The return value of the program.
    pub result: i32,
    /// Nanoseconds of one run on average.
    pub duration_ns: u32,
}

impl BpfProgram {
    /// Loads a program.
    ///
    /// # Errors
    /// When it cannot be assembled, or the kernel refuses it; the error contains the verifier's
    /// words.
    pub fn load(name: &str, kind: ProgramType, assembler: Assembler) -> Result<Self, BpfError> {
        let insns =
            assembler.finish().map_err(|source| BpfError::Assemble { name: name.to_owned(), source })?;
        let code: Vec<u8> = insns.into_iter().flat_map(|insn| insn.bytes()).collect();
        let form = LoadForm {
            name,
            program_type: kind.program_type(),
            attach_type: kind.attach_type(),
            flags: kind.flags(),
            code: &code,
        };
        // Without a log first: writing one makes the verifier many times slower.
        let source = match prog_load(&form, &mut []) {
            Ok(fd) => return Ok(Self { fd, kind, name: name.to_owned() }),
            Err(source) => source,
        };
        if source.raw_os_error() == Some(libc::EPERM) {
            return Err(BpfError::call(format!("load the program {name}"), source));
        }
        let mut log = vec![0; VERIFIER_LOG_BYTES];
        match prog_load(&form, &mut log) {
            Ok(fd) => Ok(Self { fd, kind, name: name.to_owned() }),
            Err(_) => Err(BpfError::Verifier { name: name.to_owned(), source, log: end_of(&log) }),
        }
    }

    /// Runs the program on a packet that goes nowhere.
    ///
    /// # Errors
    /// When the kernel refuses the packet or the context.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestRunResult, BpfError> {
        let raw = prog_test_run(self.as_fd(), run.packet, run.context, run.repeat)
            .map_err(|source| BpfError::call(format!("test the program {}", self.name), source))?;
        Ok(TestRunResult { result: raw.result.cast_signed(), duration_ns: raw.duration_ns })
    }

    /// Instructions that the verifier looked at, on all paths together. It gives up at a million.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn verified_insns(&self) -> Result<u32, BpfError> {
        let fault = |source| BpfError::call(format!("ask about the program {}", self.name), source);
        prog_verified_insns(self.as_fd()).map_err(fault)
    }

    /// Returns its purpose.
    pub fn kind(&self) -> ProgramType {
        self.kind
    }

    /// Name that it was loaded with.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for BpfProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The last lines of a log that ends in zeros.
fn end_of(log: &[u8]) -> String {
    let length = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let start = length.saturating_sub(VERIFIER_SHOWN_BYTES);
    String::from_utf8_lossy(&log[start..length]).trim_end().to_owned()
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
