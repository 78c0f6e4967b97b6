//! Media as the reference senders see them: blocks of seven transport packets, in a file or in memory, with or without
//! RTP headers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};

use super::BlockPace;

/// Seven transport packets.
pub const BLOCK_BYTES: usize = 7 * 188;
/// An RTP header without extensions.
pub const HEADER_BYTES: usize = 12;
/// Bytes of one datagram on the wire.
pub const DATAGRAM_BYTES: usize = HEADER_BYTES + BLOCK_BYTES;
/// Most blocks of one burst: the largest UDP message is 65,507 bytes, however it is cut.
pub(super) const MAX_BURST_BLOCKS: u64 = 48;
/// Media of this size or less are read into memory once; larger files are read as they play.
const IN_MEMORY_BYTES: u64 = 256 << 20;

/// An RTP header: version 2, payload type 33 (MP2T, RFC 3551).
pub(super) fn rtp_header(sequence: u16, ticks: u32, ssrc: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0x80, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&sequence.to_be_bytes());
    header[4..8].copy_from_slice(&ticks.to_be_bytes());
    header[8..12].copy_from_slice(&ssrc.to_be_bytes());
    header
}

/// A media file, read block by block through the page cache.
pub(super) struct MediaFile {
    file: File,
    blocks: u64,
}

impl MediaFile {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
        ensure!(blocks > 0, "{}: shorter than one block of {BLOCK_BYTES} bytes", path.display());
        Ok(Self { file, blocks })
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Fills `into`, a whole number of blocks, from block `first` on.
    pub(super) fn read(&self, first: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(into, first * BLOCK_BYTES as u64)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

/// Media in memory or, if there is too much of them, in their file.
pub(super) enum ReferenceMedia {
    Memory(Vec<u8>),
    File(MediaFile),
}

impl ReferenceMedia {
    /// Opens all files; into memory if all of them fit.
    pub(super) fn open_all<'a>(
        paths: impl Iterator<Item = &'a std::path::PathBuf>,
    ) -> anyhow::Result<Vec<Self>> {
        let files = paths.map(|path| MediaFile::open(path)).collect::<anyhow::Result<Vec<_>>>()?;
        let bytes: u64 = files.iter().map(|file| file.blocks * BLOCK_BYTES as u64).sum();
        if bytes > IN_MEMORY_BYTES {
            return Ok(files.into_iter().map(ReferenceMedia::File).collect());
        }
        let mut media = Vec::new();
        for file in files {
            let mut bytes = vec![0; file.blocks as usize * BLOCK_BYTES];
            file.read(0, &mut bytes).context("read a media file into memory")?;
            media.push(Self::Memory(bytes));
        }
        Ok(media)
    }

    pub(super) fn blocks(&self) -> u64 {
        match self {
            Self::Memory(bytes) => (bytes.len() / BLOCK_BYTES) as u64,
            Self::File(file) => file.blocks(),
        }
    }
}

/// A media file as complete datagrams, one after the other: nothing is left to do when it is sent. Its sequence numbers and
/// times are those of the media, the same for all its viewers.
pub(super) fn wire_form(path: &Path, pace: BlockPace, ssrc: u32) -> anyhow::Result<Vec<u8>> {
    let file = MediaFile::open(path)?;
    let mut wire = vec![0; file.blocks as usize * DATAGRAM_BYTES];
    for (n, datagram) in (0u64..).zip(wire.chunks_exact_mut(DATAGRAM_BYTES)) {
        let (header, block) = datagram.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&rtp_header(n as u16, pace.ticks(n), ssrc));
        file.read(n, block).with_context(|| format!("{}: block {n}", path.display()))?;
    }
    Ok(wire)
}
