//! Large objects go up in parts. A record of the parts that S3 has taken lets the same command continue after an interruption; until the last
//! step nothing of the object is visible.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as ObjectPath;
use object_store::{Attributes, MultipartUpload, PutMultipartOptions};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::access::Environment;
use crate::error::ObjectError;
use crate::library::ObjectLibrary;
use crate::limits::{MAX_PARTS, MAX_UPLOAD_RECORD_BYTES, PART_BYTES, PARTS_AHEAD};

/// Length of the parts of an object: as few as possible of them may be lost, and no more than S3 takes.
pub(crate) fn part_bytes(object_bytes: u64) -> u64 {
    object_bytes.div_ceil(MAX_PARTS).next_multiple_of(1 << 20).max(PART_BYTES)
}

/// Progress of an upload that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadRecord {
    /// The object, with its library and the server.
    object: String,
    /// Its content.
    blake3: String,
    part_bytes: u64,
    upload: String,
    /// ETags of parts that have arrived, by their numbers.
    parts: BTreeMap<usize, String>,
}

impl UploadRecord {
    /// Reads a record; `None` if it is none.
    pub fn decode(text: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(text).ok()?;
        let fits =
            record.part_bytes >= PART_BYTES && record.parts.keys().all(|&part| (part as u64) < MAX_PARTS);
        fits.then_some(record)
    }

    /// The record as a file.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has only text, numbers and number keys")
    }
}

/// An object on its way up.
pub(crate) struct PartsUpload<'a> {
    library: &'a ObjectLibrary,
    path: ObjectPath,
    target: UploadTarget,
    ahead: VecDeque<(usize, JoinHandle<object_store::Result<Option<PartId>>>)>,
}

enum UploadTarget {
    S3 { store: Arc<AmazonS3>, record: UploadRecord, file: Option<PathBuf> },
    Other(Box<dyn MultipartUpload>),
}

impl<'a> PartsUpload<'a> {
    /// Begins an upload, or continues the one that was interrupted.
    pub(crate) fn begin(
        library: &'a ObjectLibrary,
        path: &ObjectPath,
        object_bytes: u64,
        blake3: &str,
        attributes: Attributes,
    ) -> Result<Self, ObjectError> {
        let failed = |error| library.remote.error(&error);
        let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
        let target = match &library.s3 {
            None => {
                let upload = library.run(library.store.put_multipart_opts(path, options))?;
                UploadTarget::Other(upload.map_err(failed)?)
            }
            Some(store) => {
                let object = format!("{} {path} at {}", library.remote.library, library.remote.endpoint);
                let file = record_file(&library.environment, &object);
                let fits = |record: &UploadRecord| {
                    (&*record.object, &*record.blake3, record.part_bytes)
                        == (&*object, blake3, part_bytes(object_bytes))
                };
                let record = match file.as_ref().and_then(read_record).filter(fits) {
                    Some(record) => record,
                    None => UploadRecord {
                        upload: library.run(store.create_multipart_opts(path, options))?.map_err(failed)?,
                        blake3: blake3.to_owned(),
                        part_bytes: part_bytes(object_bytes),
                        parts: BTreeMap::new(),
                        object,
                    },
                };
                UploadTarget::S3 { store: Arc::clone(store), record, file }
            }
        };
        Ok(Self { library, path: path.clone(), target, ahead: VecDeque::new() })
    }

    /// Sends a part, unless it has arrived already. Waits until few enough are on their way.
    pub(crate) fn send(&mut self, part: usize, bytes: Bytes) -> Result<(), ObjectError> {
        while self.ahead.len() >= PARTS_AHEAD {
            self.wait_for_one()?;
        }
        match &mut self.target {
            UploadTarget::S3 { record, .. } if record.parts.contains_key(&part) => {}
            UploadTarget::S3 { store, record, .. } => {
                let (store, path, id) = (Arc::clone(store), self.path.clone(), record.upload.clone());
                let send = async move { store.put_part(&path, &id, part, bytes.into()).await.map(Some) };
                self.ahead.push_back((part, self.library.spawn(send)));
            }
            UploadTarget::Other(upload) => {
                let sent = upload.put_part(bytes.into());
                self.ahead.push_back((part, self.library.spawn(async { sent.await.map(|()| None) })));
            }
        }
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<(), ObjectError> {
        let Some((part, task)) = self.ahead.front_mut() else { return Ok(()) };
        let (part, result) = (*part, self.library.run(task)?);
        self.ahead.pop_front();
        let arrived = result.unwrap_or_else(|error| Err(error.into()));
        let arrived = arrived.map_err(|error| self.failed(&error))?;
        if let (UploadTarget::S3 { record, file, .. }, Some(arrived)) = (&mut self.target, arrived) {
            record.parts.insert(part, arrived.content_id);
            write_record(file.as_ref(), record);
        }
        Ok(())
    }

    /// Makes the object visible.
    pub(crate) fn complete(mut self) -> Result<(), ObjectError> {
        while !self.ahead.is_empty() {
            self.wait_for_one()?;
        }
        let library = self.library;
        let done = match &mut self.target {
            UploadTarget::S3 { store, record, .. } => {
                let parts = record.parts.values().map(|tag| PartId { content_id: tag.clone() }).collect();
                library.run(store.complete_multipart(&self.path, &record.upload, parts))?.map(drop)
            }
            UploadTarget::Other(upload) => library.run(upload.complete())?.map(drop),
        };
        done.map_err(|error| self.failed(&error))?;
        self.forget_record();
        Ok(())
    }

    /// Gives the upload up: its content was wrong.
    pub(crate) fn abort(mut self) {
        // Parts that cannot be removed now are removed by the bucket's rules.
        match &mut self.target {
            UploadTarget::S3 { store, record, .. } => {
                let _ = self.library.run(store.abort_multipart(&self.path, &record.upload));
            }
            UploadTarget::Other(upload) => {
                let _ = self.library.run(upload.abort());
            }
        }
        self.forget_record();
    }

    /// An upload that S3 does not know any more cannot be continued: the next attempt begins a new one.
    fn failed(&self, error: &object_store::Error) -> ObjectError {
        let text = format!("{error:?}");
        if ["NoSuchUpload", "InvalidPart", "EntityTooSmall"].iter().any(|code| text.contains(code)) {
            self.forget_record();
        }
        self.library.remote.error(error)
    }

    fn forget_record(&self) {
        if let UploadTarget::S3 { file: Some(file), .. } = &self.target {
            // A record that stays does not fit the next upload, or is found out of date by it.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Drop for PartsUpload<'_> {
    fn drop(&mut self) {
        self.ahead.iter().for_each(|(_, task)| task.abort());
    }
}

/// Where the record of an upload is kept: with the user's other states of programs.
fn record_file(environment: &Environment, object: &str) -> Option<PathBuf> {
    let var = |name| environment.get(name).map(PathBuf::from);
    let state = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")))?;
    let name = blake3::hash(object.as_bytes()).to_hex();
    Some(state.join("millrace/uploads").join(format!("{}.json", &name.as_str()[..32])))
}

fn read_record(file: &PathBuf) -> Option<UploadRecord> {
    let is_short = std::fs::metadata(file).ok()?.len() <= MAX_UPLOAD_RECORD_BYTES;
    is_short.then(|| std::fs::read(file).ok()).flatten().and_then(|text| UploadRecord::decode(&text))
}

/// Without a record the next attempt sends everything again: nothing else depends on it.
fn write_record(file: Option<&PathBuf>, record: &UploadRecord) {
    let Some((file, dir)) = file.and_then(|file| Some((file, file.parent()?))) else { return };
    let new = file.with_extension("new");
    let written = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&new, record.encode()))
        .and_then(|()| std::fs::rename(&new, file));
    if let Err(error) = written {
        tracing::debug!("{}: cannot keep a record of the upload: {error}", file.display());
    }
}

#[cfg(test)]
mod tests {
    use super::part_bytes;
    use crate::limits::{MAX_OBJECT_BYTES, MAX_PARTS, PART_BYTES};

    #[test]
    fn part_length_fits_every_object() {
        for bytes in [1, PART_BYTES, 160 << 30, MAX_OBJECT_BYTES] {
            let part = part_bytes(bytes);
            assert!(part >= PART_BYTES && bytes.div_ceil(part) <= MAX_PARTS, "{bytes}: {part}");
        }
    }
}
