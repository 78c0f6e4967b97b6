//! Maps: memory that programs and this process share.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU64;

use super::error::BpfError;
use super::sys::{F_MMAPABLE, MapForm, MapType, MappedWords, RawMap};

/// Anything that a program may refer to as a map.
pub trait AsMap {
    /// Number of the descriptor.
    fn fd_number(&self) -> i32;
}

/// A hash map of byte strings of fixed lengths.
#[derive(Debug)]
pub struct Map {
    raw: RawMap,
    name: String,
}

impl Map {
    /// A hash map with room for `entries`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn hash(name: &str, key_bytes: u32, value_bytes: u32, entries: u32) -> Result<Self, BpfError> {
        let form =
            MapForm { name, kind: MapType::Hash, key_bytes, value_bytes, entries, flags: 0, copies: 1 };
        let raw = create(&form)?;
        Ok(Self { raw, name: name.to_owned() })
    }

    fn fault(&self, what: &str, source: io::Error) -> BpfError {
        BpfError::call(format!("{what} map {}", self.name), source)
    }

    /// The value of `key`, or `None`.
    ///
    /// # Errors
    /// When the key has another length than the map's.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        let mut value = vec![0; self.raw.value_bytes()];
        match self.raw.lookup(key, &mut value) {
            Ok(()) => Ok(Some(value)),
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(self.fault("look up in", source)),
        }
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// When the map is full, or a length is not the map's.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), BpfError> {
        self.raw.update(key, value).map_err(|source| self.fault("write to", source))
    }

    /// Removes `key`; returns whether it was there.
    ///
    /// # Errors
    /// When the key has another length than the map's.
    pub fn delete(&self, key: &[u8]) -> Result<bool, BpfError> {
        match self.raw.delete(key) {
            Ok(()) => Ok(true),
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(source) => Err(self.fault("remove from", source)),
        }
    }
}

/// An array whose values are words in this process's memory: reading takes no system call.
#[derive(Debug)]
pub struct MappedArray {
    raw: RawMap,
    memory: MappedWords,
    words_per_entry: usize,
}

impl MappedArray {
    /// An array of `entries` values of `words_per_entry` 64-bit words, all zero.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(name: &str, words_per_entry: u32, entries: u32) -> Result<Self, BpfError> {
        let form = MapForm {
            name,
            kind: MapType::Array,
            key_bytes: 4,
            value_bytes: words_per_entry.saturating_mul(8),
            entries,
            flags: F_MMAPABLE,
            copies: 1,
        };
        let raw = create(&form)?;
        let words_per_entry = words_per_entry as usize;
        let memory = MappedWords::new(&raw, words_per_entry * entries as usize)
            .map_err(|source| BpfError::call(format!("map {name} into memory"), source))?;
        Ok(Self { raw, memory, words_per_entry })
    }

    /// The words of one value; `None` beyond the end.
    pub fn entry(&self, index: u32) -> Option<&[AtomicU64]> {
        let start = (index as usize).checked_mul(self.words_per_entry)?;
        self.memory.words().get(start..start.checked_add(self.words_per_entry)?)
    }
}

/// One value for each processor, so that programs need no lock; read as the sum.
#[derive(Debug)]
pub struct PerCpuArray {
    raw: RawMap,
    words: usize,
}

impl PerCpuArray {
    /// One entry of `words` 64-bit words for each processor.
    ///
    /// # Errors
    /// When the kernel refuses, or does not say how many processors there may be.
    pub fn new(name: &str, words: u32) -> Result<Self, BpfError> {
        let form = MapForm {
            name,
            kind: MapType::PerCpuArray,
            key_bytes: 4,
            value_bytes: words.saturating_mul(8),
            entries: 1,
            flags: 0,
            copies: possible_processors()?,
        };
        Ok(Self { raw: create(&form)?, words: words as usize })
    }

    /// Every word, summed over the processors.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn sums(&self) -> Result<Vec<u64>, BpfError> {
        let mut bytes = vec![0; self.raw.value_bytes()];
        self.raw
            .lookup(&[0; 4], &mut bytes)
            .map_err(|source| BpfError::call("read a per-processor map", source))?;
        let mut sums = vec![0u64; self.words];
        for one in bytes.chunks_exact(self.words * 8) {
            for (sum, word) in sums.iter_mut().zip(one.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
        Ok(sums)
    }
}

/// AF_XDP sockets by number of the receive queue, for [`Helper::RedirectMap`](super::Helper::RedirectMap). A socket that
/// is closed leaves its place empty.
#[derive(Debug)]
pub struct SocketMap {
    raw: RawMap,
    name: String,
}

impl SocketMap {
    /// Places for the queues `0..queues`, all empty.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(name: &str, queues: u32) -> Result<Self, BpfError> {
        let (key_bytes, value_bytes) = (4, 4);
        let form = MapForm {
            name,
            kind: MapType::Xsk,
            key_bytes,
            value_bytes,
            entries: queues,
            flags: 0,
            copies: 1,
        };
        Ok(Self { raw: create(&form)?, name: name.to_owned() })
    }

    /// Packets of a queue may go to this socket from now on.
    ///
    /// # Errors
    /// When there is no such place, or the descriptor is not an AF_XDP socket's.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
        let fault =
            |source| BpfError::call(format!("give queue {queue} a socket in map {}", self.name), source);
        self.raw.update(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes()).map_err(fault)
    }

    /// Empties a queue's place, if it is not empty.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn clear(&self, queue: u32) -> Result<(), BpfError> {
        let fault = |source| BpfError::call(format!("empty queue {queue} in map {}", self.name), source);
        self.raw.delete(&queue.to_ne_bytes()).map_err(fault)
    }
}

macro_rules! as_map {
    ($($of:ty),*) => {$(
        impl AsMap for $of {
            fn fd_number(&self) -> i32 {
                self.raw.fd().as_raw_fd()
            }
        }
    )*};
}
as_map!(Map, MappedArray, PerCpuArray, SocketMap);

fn create(form: &MapForm<'_>) -> Result<RawMap, BpfError> {
    RawMap::create(form).map_err(|source| BpfError::call(format!("make map {}", form.name), source))
}

/// Processors that this machine may ever have: per-processor values come in that number.
fn possible_processors() -> Result<usize, BpfError> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let fault = |source| BpfError::call(format!("read the number of processors from {PATH}"), source);
    let text = std::fs::read_to_string(PATH).map_err(fault)?;
    count_in_ranges(&text).ok_or_else(|| fault(io::Error::other(format!("unexpected text {text:?}"))))
}

/// Numbers in a list like `0-3,8`.
fn count_in_ranges(text: &str) -> Option<usize> {
    text.trim().split(',').try_fold(0usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
