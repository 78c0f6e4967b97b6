//! The 64 bytes at the start of every file but the title itself: its kind, its version, its length,
//! checksums.

use super::bytes::{Fields, put};
use super::{FormatError, crc32c};

/// Length of a frame.
pub const FRAME_BYTES: usize = 64;
/// First bytes of every file. The two last ones show a text-mode transfer, as in PNG.
pub const MAGIC: [u8; 8] = *b"MILLRC\r\n";

/// Offsets in a frame.
mod at {
    pub(super) const MAGIC: usize = 0; // 8 bytes
    pub(super) const KIND: usize = 8; // 4 bytes of text
    pub(super) const VERSION: usize = 12; // u16
    pub(super) const FRAME_BYTES: usize = 14; // u16
    pub(super) const BODY_BYTES: usize = 16; // u64
    pub(super) const BODY_CRC: usize = 24; // u32
    pub(super) const RESERVED: usize = 28; // 32 zeros
    pub(super) const FRAME_CRC: usize = 60; // u32 over 0..60
}

const _: () = {
    assert!(at::RESERVED + 32 == at::FRAME_CRC);
    assert!(at::FRAME_CRC + 4 == FRAME_BYTES);
};

/// Kind of a file in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `volume.mrv`
    Superblock,
    /// `manifest.mrm`
    Manifest,
    /// `index.mri`
    Index,
    /// `meta-*.mrp`
    Meta,
    /// `sums.mrr`
    Sums,
    /// `members.mrm`
    Members,
    /// `crcs.mrc`, `parity.mrc`
    Crcs,
}

impl FileKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Superblock, Self::Manifest, Self::Index, Self::Meta, Self::Sums, Self::Members, Self::Crcs];

    /// As stored.
    pub fn tag(self) -> [u8; 4] {
        match self {
            Self::Superblock => *b"VOLU",
            Self::Manifest => *b"MANI",
            Self::Index => *b"INDX",
            Self::Meta => *b"META",
            Self::Sums => *b"SUMS",
            Self::Members => *b"MEMB",
            Self::Crcs => *b"CRCS",
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Manifest => "manifest",
            Self::Index => "index",
            Self::Meta => "metadata header",
            Self::Sums => "range sums header",
            Self::Members => "list of members",
            Self::Crcs => "CRC header",
        }
    }

    /// The newest format version this program knows. It reads every one from 1 to this.
    pub fn version(self) -> u16 {
        match self {
            // Version 2: a title may have range sums, which its list of files names. Version 3: it lies in stripes on several
            // members, or has parity. Version 4: there are CRCs of its packets.
            Self::Manifest => 5,
            // Version 2: the volume has several members, or parity.
            Self::Superblock => 2,
            // Version 2: origins of the time stamps, and the end of the last picture. Version 3: layouts.
            Self::Index => 3,
            Self::Meta | Self::Sums | Self::Members | Self::Crcs => 1,
        }
    }

    /// The versions that are read, for people.
    fn versions(self) -> &'static str {
        match self.version() {
            1 => "version 1",
            2 => "versions 1 and 2",
            3 => "versions 1 to 3",
            4 => "versions 1 to 4",
            _ => "versions 1 to 5",
        }
    }
}

/// A frame's fields, its own checksum verified. Whether the body is right is for [`open`] to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFrame {
    /// The contents of the file.
    pub kind: FileKind,
    /// Format version of the body.
    pub version: u16,
    /// Length of the body, which follows the frame to the end of the record.
    pub body_bytes: u64,
    /// CRC-32C of the body.
    pub body_crc: u32,
    /// CRC-32C of the frame's first 60 bytes.
    pub frame_crc: u32,
}

/// The frame of `body`, in the newest version of its kind.
pub fn seal(kind: FileKind, body: &[u8]) -> [u8; FRAME_BYTES] {
    seal_as(kind, kind.version(), body)
}

/// The frame of `body` in an older version: what older programs can read is written so that they do.
pub fn seal_as(kind: FileKind, version: u16, body: &[u8]) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    put(&mut frame, at::MAGIC, &MAGIC);
    put(&mut frame, at::KIND, &kind.tag());
    put(&mut frame, at::VERSION, &version.to_le_bytes());
    put(&mut frame, at::FRAME_BYTES, &(FRAME_BYTES as u16).to_le_bytes());
    put(&mut frame, at::BODY_BYTES, &(body.len() as u64).to_le_bytes());
    put(&mut frame, at::BODY_CRC, &crc32c(body).to_le_bytes());
    let crc = crc32c(&frame[..at::FRAME_CRC]);
    put(&mut frame, at::FRAME_CRC, &crc.to_le_bytes());
    frame
}

/// Frame and body as one file.
pub fn seal_file(kind: FileKind, body: &[u8]) -> Vec<u8> {
    [&seal(kind, body)[..], body].concat()
}

/// Reads the frame at the start of `file`: magic, checksum, kind. Neither version nor body is looked at.
pub fn peek(file: &[u8]) -> Result<FileFrame, FormatError> {
    let fields = Fields { record: "frame", bytes: file };
    let magic: [u8; 8] = fields.array(at::MAGIC, "magic")?;
    if magic != MAGIC {
        return Err(FormatError::value("frame", "magic", magic.escape_ascii(), MAGIC.escape_ascii()));
    }
    let frame_crc = fields.u32(at::FRAME_CRC, "frame checksum")?;
    let computed = crc32c(fields.slice(0, at::FRAME_CRC, "frame")?);
    if frame_crc != computed {
        return Err(FormatError::Checksum { record: "frame", what: "frame", found: frame_crc, computed });
    }
    let tag: [u8; 4] = fields.array(at::KIND, "kind")?;
    let kind = FileKind::ALL.into_iter().find(|k| k.tag() == tag).ok_or_else(|| {
        FormatError::value(
            "frame",
            "kind",
            tag.escape_ascii(),
            "one of VOLU, MANI, INDX, META, SUMS, MEMB, CRCS",
        )
    })?;
    let frame_bytes = fields.u16(at::FRAME_BYTES, "frame length")?;
    if usize::from(frame_bytes) != FRAME_BYTES {
        return Err(FormatError::value(kind.name(), "frame length", frame_bytes, FRAME_BYTES));
    }
    Ok(FileFrame {
        kind,
        version: fields.u16(at::VERSION, "version")?,
        body_bytes: fields.u64(at::BODY_BYTES, "body length")?,
        body_crc: fields.u32(at::BODY_CRC, "body checksum")?,
        frame_crc,
    })
}

/// The body of `file`, which must be a frame of this kind and a version this program reads, followed by exactly its
/// body, with both checksums right.
pub fn open(kind: FileKind, file: &[u8]) -> Result<&[u8], FormatError> {
    let record = kind.name();
    let frame = peek(file)?;
    if frame.kind != kind {
        return Err(FormatError::value(record, "kind", frame.kind.name(), record));
    }
    if !(1..=kind.version()).contains(&frame.version) {
        return Err(FormatError::Unsupported {
            record,
            field: "format version",
            found: u64::from(frame.version),
            supported: kind.versions(),
        });
    }
    let fields = Fields { record, bytes: file };
    fields.reserved(at::RESERVED, at::FRAME_CRC - at::RESERVED)?;
    let body = &file[FRAME_BYTES..];
    if frame.body_bytes != body.len() as u64 {
        let expected = format!("{} (the file's length without its frame)", body.len());
        return Err(FormatError::value(record, "body length", frame.body_bytes, expected));
    }
    let computed = crc32c(body);
    if frame.body_crc != computed {
        return Err(FormatError::Checksum { record, what: "body", found: frame.body_crc, computed });
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn seal_and_open_are_inverse(
            body in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0..FileKind::ALL.len(),
        ) {
            let kind = FileKind::ALL[kind];
            let file = seal_file(kind, &body);
            prop_assert_eq!(open(kind, &file), Ok(&body[..]));
            let other = FileKind::ALL.into_iter().find(|k| *k != kind).unwrap();
            prop_assert!(open(other, &file).is_err());
        }
    }

    #[test]
    fn another_version_is_named_and_not_called_damage() {
        let mut file = seal_file(FileKind::Index, b"body");
        file[at::VERSION] = 9;
        let crc = crc32c(&file[..at::FRAME_CRC]);
        put(&mut file, at::FRAME_CRC, &crc.to_le_bytes());
        let error = open(FileKind::Index, &file).unwrap_err();
        assert!(matches!(error, FormatError::Unsupported { found: 9, .. }), "{error}");
        assert!(error.to_string().contains("index: format version is 9"), "{error}");
    }

    #[test]
    fn truncation_and_extra_bytes_are_seen() {
        let file = seal_file(FileKind::Manifest, b"some body");
        for len in 0..file.len() {
            assert!(open(FileKind::Manifest, &file[..len]).is_err(), "{len}");
        }
        let longer = [&file[..], b"x"].concat();
        assert!(open(FileKind::Manifest, &longer).unwrap_err().to_string().contains("body length"));
    }
}
