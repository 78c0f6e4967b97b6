//! The `bpf` system call and the mapping of a map into memory, behind types that cannot be misused.
//!
//! The kernel trusts the caller that a key or value has the length that the map declares;
//! [`RawMap`] knows the lengths and checks.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Commands of `bpf(2)`.
#[derive(Clone, Copy)]
#[repr(i32)]
enum BpfCommand {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgLoad = 5,
    ProgTestRun = 10,
    ObjectInfo = 15,
    LinkCreate = 28,
    LinkDetach = 34,
}

/// Kinds of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum MapType {
    Hash = 1,
    Array = 2,
    PerCpuArray = 6,
    /// AF_XDP sockets.
    Xsk = 17,
}

/// The map can be mapped into memory.
pub(super) const F_MMAPABLE: u32 = 1 << 10;

/// `union bpf_attr`, with the fields that we use. The kernel takes any length if the part that it
/// does not know is zero.
#[repr(C, align(8))]
struct Attr {
    bytes: [u8; Attr::BYTES],
}

impl Attr {
    const BYTES: usize = 80;
    const NAME_BYTES: usize = 16;

    fn new() -> Self {
        Self { bytes: [0; Self::BYTES] }
    }

    fn u32(mut self, at: usize, value: u32) -> Self {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.u32(at, fd.as_raw_fd().cast_unsigned())
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Where `bytes` lies; 0 if it is empty.
    fn slice(self, at: usize, bytes: &[u8]) -> Self {
        if bytes.is_empty() { self } else { self.u64(at, bytes.as_ptr().expose_provenance() as u64) }
    }

    fn slice_mut(self, at: usize, bytes: &mut [u8]) -> Self {
        if bytes.is_empty() { self } else { self.u64(at, bytes.as_mut_ptr().expose_provenance() as u64) }
    }

    /// Sets a name for people, with the characters that the kernel allows.
    fn name(mut self, at: usize, name: &str) -> Self {
        let allowed = name.bytes().filter(|b| b.is_ascii_alphanumeric() || *b == b'_');
        let to = &mut self.bytes[at..at + Self::NAME_BYTES - 1];
        to.iter_mut().zip(allowed).for_each(|(to, byte)| *to = byte);
        self
    }

    fn read_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }

    /// # Safety
    /// Every pointer in the attribute must be good for as many bytes as the command reads or writes there.
    unsafe fn call(&mut self, command: BpfCommand) -> io::Result<i32> {
        let attr = (&raw mut self.bytes).cast::<c_void>();
        // SAFETY: `attr` is good for BYTES bytes; its pointers are good by this function's
        // contract.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, attr, Self::BYTES) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as i32) }
    }

    /// # Safety
    /// As [`Self::call`], and the command must return a new descriptor.
    unsafe fn call_for_fd(&mut self, command: BpfCommand) -> io::Result<OwnedFd> {
        // SAFETY: by this function's contract.
        let fd = unsafe { self.call(command) }?;
        // SAFETY: the kernel just made this descriptor for us and no other code knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A map and the lengths of its keys and values.
#[derive(Debug)]
pub(super) struct RawMap {
    fd: OwnedFd,
    key_bytes: usize,
    /// Length of what one look-up returns: all processors' values of a per-processor map.
    value_bytes: usize,
}

/// Properties of a map to create.
#[derive(Clone, Copy)]
pub(super) struct MapForm<'a> {
    pub(super) name: &'a str,
    pub(super) kind: MapType,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
    /// Values of one look-up: 1, or the number of possible processors.
    pub(super) copies: usize,
}

impl RawMap {
    pub(super) fn create(form: &MapForm<'_>) -> io::Result<Self> {
        let mut attr = Attr::new()
            .u32(0, form.kind as u32)
            .u32(4, form.key_bytes)
            .u32(8, form.value_bytes)
            .u32(12, form.entries)
            .u32(16, form.flags)
            .name(28, form.name);
        // SAFETY: the attribute holds no pointer; the command returns a new descriptor.
        let fd = unsafe { attr.call_for_fd(BpfCommand::MapCreate) }?;
        // Values of a per-processor map are padded to eight bytes each.
        let one = if form.kind == MapType::PerCpuArray {
            form.value_bytes.next_multiple_of(8)
        } else {
            form.value_bytes
        };
        Ok(Self { fd, key_bytes: form.key_bytes as usize, value_bytes: one as usize * form.copies })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    pub(super) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn check(&self, key: &[u8], value_bytes: Option<usize>) -> io::Result<()> {
        let fits = key.len() == self.key_bytes && value_bytes.is_none_or(|v| v == self.value_bytes);
        if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    pub(super) fn lookup(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        self.check(key, Some(value.len()))?;
        let mut attr = Attr::new().fd(0, self.fd()).slice(8, key).slice_mut(16, value);
        // SAFETY: key and value are as long as the map's, which was just checked.
        unsafe { attr.call(BpfCommand::MapLookup) }.map(drop)
    }

    pub(super) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, Some(value.len()))?;
        let mut attr = Attr::new().fd(0, self.fd()).slice(8, key).slice(16, value);
        // SAFETY: key and value are as long as the map's, which was just checked; both are only read.
        unsafe { attr.call(BpfCommand::MapUpdate) }.map(drop)
    }

    pub(super) fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check(key, None)?;
        let mut attr = Attr::new().fd(0, self.fd()).slice(8, key);
        // SAFETY: the key is as long as the map's, which was just checked.
        unsafe { attr.call(BpfCommand::MapDelete) }.map(drop)
    }
}

/// The words of a mapped array. The kernel's side writes them at any time, so they are atomics.
#[derive(Debug)]
pub(super) struct MappedWords {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone and is only lent out as atomics.
unsafe impl Send for MappedWords {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps the first `words` words of a map that was made with [`F_MMAPABLE`].
    pub(super) fn new(map: &RawMap, words: usize) -> io::Result<Self> {
        let (bytes, fd) = (words * 8, map.fd.as_raw_fd());
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Self { base, words })
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the kernel refuses to map more than the array has, the mapping is page-aligned, starts as zeros, is
        // never unmapped before drop, and whoever else writes it writes whole words.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no borrow of it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}

/// A program to load.
pub(super) struct LoadForm<'a> {
    pub(super) name: &'a str,
    pub(super) program_type: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) code: &'a [u8],
}

/// Helpers check the licence of their caller.
const LICENCE: &CStr = c"Dual MIT/GPL";

/// Loads a program; the verifier writes to `log`, if that is not empty.
pub(super) fn prog_load(form: &LoadForm<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = Attr::new()
        .u32(0, form.program_type)
        .u32(4, (form.code.len() / 8) as u32)
        .slice(8, form.code)
        .slice(16, LICENCE.to_bytes_with_nul())
        .u32(24, u32::from(!log.is_empty()))
        .u32(28, log.len() as u32)
        .slice_mut(32, log)
        .u32(44, form.flags)
        .name(48, form.name)
        .u32(68, form.attach_type);
    // SAFETY: the code holds the number of instructions given, the licence ends in zero, the log
    // has the length given; the command returns a new descriptor.
    unsafe { attr.call_for_fd(BpfCommand::ProgLoad) }
}

/// The result of a test run.
pub(super) struct RawRun {
    pub(super) result: u32,
    pub(super) duration_ns: u32,
}

/// Runs a program on a packet `repeat` times.
pub(super) fn prog_test_run(
    program: BorrowedFd<'_>,
    packet: &[u8],
    context: &[u8],
    repeat: u32,
) -> io::Result<RawRun> {
    let mut attr = Attr::new()
        .fd(0, program)
        .u32(8, packet.len() as u32)
        .slice(16, packet)
        .u32(32, repeat)
        .u32(40, context.len() as u32)
        .slice(48, context);
    // SAFETY: packet and context have the lengths given and are only read; the lengths of the
    // outputs are zero.
    unsafe { attr.call(BpfCommand::ProgTestRun) }?;
    Ok(RawRun { result: attr.read_u32(4), duration_ns: attr.read_u32(36) })
}

/// `struct bpf_prog_info` up to the number of instructions that the verifier looked at.
const PROG_INFO_BYTES: usize = 220;

/// Instructions that the verifier looked at, on all paths together.
pub(super) fn prog_verified_insns(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut info = [0; PROG_INFO_BYTES];
    let mut attr = Attr::new().fd(0, program).u32(4, info.len() as u32).slice_mut(8, &mut info);
    // SAFETY: `info` has the length given. Its fields are zero, so the kernel follows no pointer in
    // it.
    unsafe { attr.call(BpfCommand::ObjectInfo) }?;
    Ok(u32::from_ne_bytes(std::array::from_fn(|i| info[PROG_INFO_BYTES - 4 + i])))
}

/// Attaches a program to an interface of this thread's network namespace.
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    interface_index: u32,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let mut attr = Attr::new().fd(0, program).u32(4, interface_index).u32(8, attach_type);
    // SAFETY: the attribute holds no pointer; the command returns a new descriptor.
    unsafe { attr.call_for_fd(BpfCommand::LinkCreate) }
}

/// Takes the program of a link off its interface, whoever else holds a descriptor of the link.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = Attr::new().fd(0, link);
    // SAFETY: the attribute holds no pointer.
    unsafe { attr.call(BpfCommand::LinkDetach) }.map(drop)
}

/// Bytes of `struct bpf_link_info` up to the interface of a tcx or XDP link, and where that stands.
#[cfg(test)]
const LINK_INFO: (usize, usize) = (24, 16);

/// The number of the interface that a link's program is attached to; 0 if it is attached to none.
#[cfg(test)]
pub(super) fn link_interface(link: BorrowedFd<'_>) -> io::Result<u32> {
    let (len, at) = LINK_INFO;
    let mut info = [0; LINK_INFO.0];
    let mut attr = Attr::new().fd(0, link).u32(4, len as u32).slice_mut(8, &mut info);
    // SAFETY: `info` has the length given. Its fields are zero, so the kernel follows no pointer in
    // it.
    unsafe { attr.call(BpfCommand::ObjectInfo) }?;
    Ok(u32::from_ne_bytes(std::array::from_fn(|i| info[at + i])))
}
