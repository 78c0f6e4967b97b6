//! Titles from a volume to an object store. The manifest goes last, so that a title is whole once it is there.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use millrace_core::ids::TitleId;
use millrace_store::StoreError;
use millrace_store::format::manifest::{DATA_FILE, FileEntry, MANIFEST_FILE};
use millrace_store::volume::{TitleExport, Volume};
use object_store::path::Path as ObjectPath;
use object_store::{Attribute, Attributes, GetOptions, ObjectStoreExt, PutOptions};

use crate::error::ObjectError;
use crate::library::{ObjectLibrary, TransferProgress};
use crate::limits::{MAX_OBJECT_BYTES, PART_BYTES};
use crate::ranges::RangeReader;
use crate::upload::{PartsUpload, part_bytes};

/// The attribute of an object with the BLAKE3 of its content.
const BLAKE3: &str = "blake3";

/// Result of publishing a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It was there, with everything.
    Already,
    /// Bytes sent, without those of objects that were there.
    Sent(u64),
}

impl ObjectLibrary {
    /// Publishes a title. Objects that are there with the right length and attribute are not sent again, unless `overwrite` is set: they may have been
    /// damaged there.
    ///
    /// # Errors
    /// If the volume or the object store fails, or the title is damaged. The title is not visible there then, unless it was before.
    pub fn publish(
        &self,
        volume: &Volume,
        id: TitleId,
        overwrite: bool,
        tell: &mut dyn FnMut(TransferProgress),
    ) -> Result<Published, ObjectError> {
        let mut export = TitleExport::open(volume, id)?;
        let files = export.manifest().files.clone();
        let mut progress =
            TransferProgress { bytes_total: files.iter().map(|file| file.bytes).sum(), ..<_>::default() };
        let manifest = Bytes::from(export.manifest().encode());
        let manifest_path = self.object(id, MANIFEST_FILE);
        // First, because an error response to GET has a body with the cause; one to HEAD has none.
        let is_there = self.run(self.read_small(&manifest_path))??.is_some_and(|found| found == manifest);
        let mut sent = 0;
        for entry in &files {
            let path = self.object(id, &entry.name);
            if !overwrite && self.has_object(&path, entry)? {
                progress.bytes_done += entry.bytes;
                tell(progress);
                continue;
            }
            let mut more = |bytes| {
                progress.bytes_done += bytes;
                tell(progress);
            };
            let source: &mut ReadAt<'_> = match &*entry.name {
                DATA_FILE => &mut |at, out: &mut [u8]| export.read_media(at, out),
                _ => &mut reader(export.open_file(entry)?, entry),
            };
            self.put(&path, id, entry, source, &mut more)?;
            sent += entry.bytes;
        }
        if is_there && sent == 0 {
            return Ok(Published::Already);
        }
        let put = self.run(self.store.put(&manifest_path, manifest.into()))?;
        put.map_err(|error| self.remote.error(&error))?;
        Ok(Published::Sent(sent))
    }

    /// Whether an object is there with the content of the entry. Object stores that keep no attributes are asked for the content.
    fn has_object(&self, path: &ObjectPath, entry: &FileEntry) -> Result<bool, ObjectError> {
        let head = GetOptions { head: true, ..GetOptions::default() };
        let found = match self.run(self.store.get_opts(path, head))? {
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            found => found.map_err(|error| self.remote.error(&error))?,
        };
        if found.meta.size != entry.bytes {
            return Ok(false);
        }
        if self.s3.is_some() {
            let attribute = found.attributes.get(&Attribute::Metadata(BLAKE3.into()));
            return Ok(attribute.is_some_and(|value| **value == *entry.blake3));
        }
        let mut hasher = blake3::Hasher::new();
        let mut ranges = RangeReader::new(&self.store, path, entry.bytes);
        while let Some((_, bytes)) = self.run(ranges.next())? {
            let Ok(bytes) = bytes else { return Ok(false) };
            hasher.update(&bytes);
        }
        Ok(hasher.finalize().to_hex().as_str() == entry.blake3)
    }

    /// Sends an object and compares its content with the manifest's on the way: wrong content does not become visible.
    fn put(
        &self,
        path: &ObjectPath,
        id: TitleId,
        entry: &FileEntry,
        source: &mut ReadAt<'_>,
        more: &mut dyn FnMut(u64),
    ) -> Result<(), ObjectError> {
        if entry.bytes > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLong { id, bytes: entry.bytes, max: MAX_OBJECT_BYTES });
        }
        let mut attributes = Attributes::new();
        if self.s3.is_some() {
            attributes.insert(Attribute::Metadata(BLAKE3.into()), entry.blake3.clone().into());
            let kind = if entry.name == DATA_FILE { "video/mp2t" } else { "application/octet-stream" };
            attributes.insert(Attribute::ContentType, kind.into());
        }
        if entry.bytes <= PART_BYTES {
            let mut bytes = vec![0; entry.bytes as usize];
            source(0, &mut bytes)?;
            if blake3::hash(&bytes).to_hex().as_str() != entry.blake3 {
                return Err(ObjectError::Damaged { id });
            }
            let options = PutOptions { attributes, ..PutOptions::default() };
            let put = self.run(self.store.put_opts(path, bytes.into(), options))?;
            put.map_err(|error| self.remote.error(&error))?;
            more(entry.bytes);
            return Ok(());
        }
        let mut upload = PartsUpload::begin(self, path, entry.bytes, &entry.blake3, attributes)?;
        let mut hasher = blake3::Hasher::new();
        let step = part_bytes(entry.bytes);
        for (part, at) in (0..entry.bytes).step_by(step as usize).enumerate() {
            let mut bytes = vec![0; step.min(entry.bytes - at) as usize];
            source(at, &mut bytes)?;
            hasher.update(&bytes);
            let len = bytes.len() as u64;
            upload.send(part, bytes.into())?;
            more(len);
        }
        if hasher.finalize().to_hex().as_str() != entry.blake3 {
            upload.abort();
            return Err(ObjectError::Damaged { id });
        }
        upload.complete()
    }
}

/// Reads bytes of an object's source from an offset.
type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), StoreError> + 'a;

fn reader(file: File, entry: &FileEntry) -> impl FnMut(u64, &mut [u8]) -> Result<(), StoreError> + use<> {
    let name = std::path::PathBuf::from(&entry.name);
    move |at, out| file.read_exact_at(out, at).map_err(StoreError::io("read", &name))
}
