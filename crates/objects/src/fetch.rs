//! Titles from an object store into a volume. A wrong range is requested once more, since it may have been damaged on the way;
//! if it is wrong again, the object is.

use bytes::Bytes;
use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_store::format::manifest::{DATA_FILE, FileEntry, Manifest};
use millrace_store::volume::{ImportStep, ImportedTitle, TitleImport, TitleInfo, Volume};
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use std::ops::Range;
use std::sync::Arc;

use crate::error::ObjectError;
use crate::library::{ObjectLibrary, TransferProgress};
use crate::limits::RANGE_BYTES;
use crate::listing::PublishedTitle;
use crate::ranges::RangeReader;

impl ObjectLibrary {
    /// Fetches a title, and behind it titles that are derived from it: all become visible at once, or none does. Those that the volume
    /// has are left out. Returns the titles that were added.
    ///
    /// # Errors
    /// If the object store or the volume fails, or an object is wrong. Nothing has changed then.
    pub fn fetch(
        &self,
        volume: &Volume,
        titles: &[Manifest],
        tell: &mut dyn FnMut(TransferProgress),
    ) -> Result<Vec<TitleInfo>, ObjectError> {
        let mut imports = Vec::new();
        for manifest in titles {
            imports.extend(TitleImport::begin(volume, manifest.clone())?);
        }
        let first = titles.first().map(|first| first.title.id);
        self.fetch_imports(imports, first, tell)
    }

    /// The same as copies for viewers, which may be removed again. If it fails, the media fetched until then stay, and the next call goes on behind them.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub fn fetch_cached(
        &self,
        volume: &Volume,
        titles: &[Arc<PublishedTitle>],
        tell: &mut dyn FnMut(TransferProgress),
    ) -> Result<Vec<TitleInfo>, ObjectError> {
        let mut imports = Vec::new();
        for title in titles {
            if let Some(import) = TitleImport::begin(volume, title.manifest.clone())? {
                let mut import = import.marked_as_copy(&title.manifest_blake3);
                import.keep()?;
                imports.push(import);
            }
        }
        self.fetch_imports(imports, titles.first().map(|first| first.manifest.title.id), tell)
    }

    fn fetch_imports(
        &self,
        imports: Vec<TitleImport>,
        first: Option<TitleId>,
        tell: &mut dyn FnMut(TransferProgress),
    ) -> Result<Vec<TitleInfo>, ObjectError> {
        let bytes_total = imports.iter().flat_map(|i| &i.manifest().files).map(|file| file.bytes).sum();
        let mut progress = TransferProgress { bytes_total, ..TransferProgress::default() };
        let mut more = |bytes: u64, was_there: bool| {
            progress.bytes_done += bytes;
            progress.bytes_left_before += if was_there { bytes } else { 0 };
            tell(progress);
        };
        let mut ready = Vec::new();
        for mut import in imports {
            for entry in import.manifest().files.clone() {
                if entry.name != DATA_FILE {
                    let was_there = import.has_file(&entry.name);
                    if !was_there {
                        self.fetch_file(&import, &entry)?;
                    }
                    more(entry.bytes, was_there);
                }
            }
            self.fetch_media(&mut import, &mut more)?;
            ready.push(import.complete()?);
        }
        // Titles whose parent is here already stand by themselves.
        let has_parent = first.is_some() && first == ready.first().map(ImportedTitle::id);
        if ready.is_empty() {
            return Ok(Vec::new());
        }
        if has_parent {
            return Ok(ImportedTitle::publish(ready)?);
        }
        let mut added = Vec::new();
        for title in ready {
            added.extend(ImportedTitle::publish(vec![title])?);
        }
        Ok(added)
    }

    /// A file beside the media, whole.
    fn fetch_file(&self, import: &TitleImport, entry: &FileEntry) -> Result<(), ObjectError> {
        let path = self.object(import.manifest().title.id, &entry.name);
        for is_again in [false, true] {
            let mut file = import.begin_file(&entry.name)?;
            let mut ranges = RangeReader::new(&self.store, &path, entry.bytes);
            while let Some((range, bytes)) = self.run(ranges.next())? {
                file.append(&self.bytes_of(&path, range, bytes)?)?;
            }
            if file.finish()? {
                return Ok(());
            }
            if !is_again {
                tracing::warn!(
                    "{}: {path} does not have the BLAKE3 of its manifest; requesting it again",
                    self.remote.library
                );
            }
        }
        Err(self.remote.wrong(&path, "does not have the BLAKE3 of its manifest"))
    }

    fn fetch_media(
        &self,
        import: &mut TitleImport,
        more: &mut dyn FnMut(u64, bool),
    ) -> Result<(), ObjectError> {
        let mut start = 0;
        loop {
            self.run(std::future::ready(()))?;
            match import.take_left(RANGE_BYTES as usize)? as u64 {
                0 => break,
                taken => {
                    start += taken;
                    more(taken, true);
                }
            }
        }
        let info = &import.manifest().title;
        let path = self.object(info.id, DATA_FILE);
        let mut ranges = RangeReader::starting_at(start, &self.store, &path, info.bytes);
        while let Some((range, bytes)) = self.run(ranges.next())? {
            let bytes = self.bytes_of(&path, range.clone(), bytes)?;
            let len = bytes.len() as u64;
            if let ImportStep::Wrong { packet } = import.write_media(&bytes)? {
                let at = u64::from(packet) * DEFAULT_PACKET_BYTES as u64;
                tracing::warn!("{}: {path} is wrong at byte {at}; requesting it again", self.remote.library);
                let again = self.run(self.store.get_range(&path, range.clone()))?;
                let again = self.bytes_of(&path, range, again)?;
                if let ImportStep::Wrong { packet } = import.write_media(&again)? {
                    let at = u64::from(packet) * DEFAULT_PACKET_BYTES as u64;
                    return Err(self.remote.wrong(&path, format!("is wrong at byte {at}")));
                }
            }
            more(len, false);
        }
        Ok(())
    }

    /// The bytes of a range, all of them. Fewer are requested once more: the response may have been cut.
    fn bytes_of(
        &self,
        path: &ObjectPath,
        range: Range<u64>,
        bytes: object_store::Result<Bytes>,
    ) -> Result<Bytes, ObjectError> {
        let is_whole = |bytes: &Bytes| bytes.len() as u64 == range.end - range.start;
        let again = match bytes {
            Ok(bytes) if is_whole(&bytes) => return Ok(bytes),
            _ => self.run(self.store.get_range(path, range.clone()))?,
        };
        let failed = |error| self.remote.error(&error);
        let again = match again {
            Ok(bytes) if is_whole(&bytes) => return Ok(bytes),
            Err(error) if failed_for_good(&error) => return Err(failed(error)),
            again => again,
        };
        // Object stores report in different ways that an object has no such bytes; all know its length.
        let bytes = self.run(self.store.head(path))?.map_err(failed)?.size;
        match bytes < range.end {
            true => {
                Err(self.remote.wrong(path, format!("has {bytes} bytes, fewer than its manifest promises")))
            }
            false => again.map_err(failed).and_then(|_| Err(self.remote.wrong(path, "is sent incompletely"))),
        }
    }
}

/// Whether the length of the object has nothing to do with an error.
fn failed_for_good(error: &object_store::Error) -> bool {
    use object_store::Error::{NotFound, PermissionDenied, Unauthenticated};
    matches!(error, NotFound { .. } | PermissionDenied { .. } | Unauthenticated { .. })
}
