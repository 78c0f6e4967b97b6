//! Titles of this experiment: made up, in a store for the engine, and beside it as the other senders read them: a file of the transport
//! stream for TCP, which is the store's own, and one of complete datagrams for UDP.
//!
//! All packets of a block have the same time, so the engine sends them together, and never two blocks at once.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::random::SplitMix;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{FinishTitle, Naming, SourceIdentity, TitleWriter, Volume};
use rustix::fs::{Mode, OFlags};

use super::{Blocks, SendPlan, Transport};

/// Where a read past the kernel's cache has to begin, in the file and in memory: any disk's sector, and a page.
const ALIGN_BYTES: usize = 4096;

/// Titles in a folder.
#[derive(Clone, Debug)]
pub struct TitleFolder {
    /// The folder.
    pub dir: PathBuf,
    /// How many there are.
    pub titles: u32,
    /// Blocks that make up the titles.
    pub blocks: Blocks,
    /// Length of each.
    pub seconds: u64,
}

impl TitleFolder {
    /// Makes `titles` titles of at least `seconds` seconds.
    ///
    /// # Errors
    /// When the disk is full or not there.
    pub fn make(dir: &Path, blocks: Blocks, seconds: u64, titles: u32) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
        let volume = Volume::open_or_create(&store(dir))?;
        for title in 0..titles {
            make_title(dir, &volume, blocks, seconds, title)
                .with_context(|| format!("make title {title} in {}", dir.display()))?;
        }
        Ok(Self { dir: dir.to_owned(), titles, blocks, seconds })
    }

    /// Bytes of the files that are sent by `transport`.
    pub fn bytes(&self, transport: Transport) -> u64 {
        let length = |title| path(&self.dir, transport, title).metadata().map_or(0, |meta| meta.len());
        (0..self.titles).map(length).sum()
    }

    /// Sees to it that the kernel has nothing of them in its cache.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn forget(&self) -> anyhow::Result<()> {
        for transport in [Transport::Udp, Transport::Tcp] {
            for title in 0..self.titles {
                let path = path(&self.dir, transport, title);
                let file = File::open(&path).with_context(|| path.display().to_string())?;
                file.sync_all()?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            }
        }
        Ok(())
    }
}

/// The store in `dir`.
pub(super) fn store(dir: &Path) -> PathBuf {
    dir.join("store")
}

/// Name of a title in it.
pub(super) fn name(title: u32) -> String {
    format!("title-{title}")
}

/// The file of a title that is sent by `transport`.
pub(super) fn path(dir: &Path, transport: Transport, title: u32) -> PathBuf {
    dir.join(name(title)).with_extension(if transport == Transport::Udp { "rtp" } else { "ts" })
}

/// Transport packets that differ from all others, of this title and of others.
fn fill(bytes: &mut [u8], random: &mut SplitMix) {
    for packet in bytes.chunks_exact_mut(TS_PACKET_BYTES) {
        packet
            .chunks_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]));
        packet[..4].copy_from_slice(&[0x47, 0x01, 0x00, 0x10]);
    }
}

fn make_title(dir: &Path, volume: &Volume, blocks: Blocks, seconds: u64, title: u32) -> anyhow::Result<()> {
    let size = blocks.datagram_bytes;
    let count = (seconds * 1_000_000_000).div_ceil(blocks.interval_ns.max(1)).max(1);
    let mut writer = TitleWriter::begin(volume, &[size])?;
    let mut random = SplitMix::numbered(2003, u64::from(title));
    let mut block = vec![0; blocks.bytes() as usize];
    let mut default_packets = 0;
    for n in 0..count {
        fill(&mut block, &mut random);
        writer.write_data(&block)?;
        let meta = PacketMeta::new(0, 0, blocks.time(n));
        if usize::from(size) != DEFAULT_PACKET_BYTES {
            (0..blocks.datagrams).try_for_each(|_| writer.push_meta(size, meta))?;
        }
        // Every title is prepared for packets of the default size too.
        let until = ((n + 1) * blocks.bytes()).div_ceil(DEFAULT_PACKET_BYTES as u64);
        (default_packets..until).try_for_each(|_| writer.push_meta(DEFAULT_PACKET_BYTES as u16, meta))?;
        default_packets = until;
    }
    let ts = path(dir, Transport::Tcp, title);
    let info = writer.commit(FinishTitle {
        name: name(title),
        source: SourceIdentity {
            path: ts.clone(),
            bytes: count * blocks.bytes(),
            modified_unix_ns: u64::from(title),
        },
        duration: blocks.time(count),
        mean_rate: blocks.rate(),
        peak_rate: blocks.rate(),
        constant_rate: true,
        streams: Vec::new(),
        index: TitleIndex::default(),
        notes: Vec::new(),
        derived: None,
        rendition: None,
        naming: Naming::default(),
    })?;
    let files = volume.open_title(info.id, usize::from(size))?;
    std::fs::hard_link(&files.data_path, &ts)?;
    let mut wire = BufWriter::with_capacity(1 << 20, File::create(path(dir, Transport::Udp, title))?);
    let mut payload = vec![0; usize::from(size)];
    for packet in 0..files.packets() {
        files.data.read_exact_at(&mut payload, u64::from(packet) * u64::from(size))?;
        let time = blocks.time(u64::from(packet) / u64::from(blocks.datagrams));
        wire.write_all(&files.timeline().header(packet, time).emit())?;
        wire.write_all(&payload)?;
    }
    wire.flush()?;
    Ok(())
}

/// The file of a stream, read block by block.
pub(super) struct BlockReader {
    file: File,
    unit: usize,
    count: u64,
    direct: Option<Direct>,
    block: Vec<u8>,
}

/// Reads of one size past the kernel's cache.
struct Direct {
    /// With room to begin at a whole page.
    memory: Vec<u8>,
    begin: usize,
    bytes: usize,
    /// The chunk that lies there.
    chunk: Option<u64>,
    length: usize,
}

impl BlockReader {
    /// Opens the file of stream `index`.
    pub(super) fn open(plan: &SendPlan, index: u32) -> anyhow::Result<Self> {
        let path = path(&plan.dir, plan.transport, index % plan.titles);
        let flags = if plan.read_bytes > 0 { OFlags::DIRECT } else { OFlags::empty() };
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty())
            .with_context(|| format!("{}: cannot be read", path.display()))?;
        let file = File::from(file);
        let unit = plan.blocks.block_bytes(plan.transport);
        let count = file.metadata()?.len() / unit as u64;
        ensure!(count > 0, "{}: shorter than one block of {unit} bytes", path.display());
        let direct = (plan.read_bytes > 0).then(|| Direct::new(plan.read_bytes));
        Ok(Self { file, unit, count, direct, block: vec![0; unit] })
    }

    pub(super) fn blocks(&self) -> u64 {
        self.count
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// All of it.
    pub(super) fn whole(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.count as usize * self.unit];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Block `n`.
    pub(super) fn read(&mut self, n: u64) -> std::io::Result<&[u8]> {
        let mut block = std::mem::take(&mut self.block);
        let result = self.read_into(n, &mut block);
        self.block = block;
        result.map(|()| self.block.as_slice())
    }

    /// Block `n` where it is wanted.
    pub(super) fn read_into(&mut self, n: u64, into: &mut [u8]) -> std::io::Result<()> {
        let at = n * self.unit as u64;
        match &mut self.direct {
            None => self.file.read_exact_at(into, at),
            Some(direct) => direct.read(&self.file, at, into),
        }
    }
}

impl Direct {
    fn new(bytes: usize) -> Self {
        let bytes = bytes.next_multiple_of(ALIGN_BYTES);
        let memory = vec![0; bytes + ALIGN_BYTES];
        let begin = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        Self { memory, begin, bytes, chunk: None, length: 0 }
    }

    /// Fills `into` from byte `at` on, with as few reads as it takes.
    fn read(&mut self, file: &File, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let place = at + filled as u64;
            let (chunk, offset) = (place / self.bytes as u64, (place % self.bytes as u64) as usize);
            if self.chunk != Some(chunk) {
                let memory = &mut self.memory[self.begin..self.begin + self.bytes];
                self.length = rustix::io::pread(file.as_fd(), memory, chunk * self.bytes as u64)?;
                self.chunk = Some(chunk);
            }
            let there = &self.memory[self.begin..self.begin + self.length];
            let part = there
                .get(offset..)
                .filter(|part| !part.is_empty())
                .ok_or(std::io::ErrorKind::UnexpectedEof)?;
            let taken = part.len().min(into.len() - filled);
            into[filled..filled + taken].copy_from_slice(&part[..taken]);
            filled += taken;
        }
        Ok(())
    }
}
