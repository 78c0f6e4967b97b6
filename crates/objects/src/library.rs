//! A library: the titles in an object store.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use millrace_core::ids::TitleId;
use millrace_store::format::manifest::{MANIFEST_FILE, Manifest};
use millrace_store::limits::MAX_MANIFEST_BYTES;
use object_store::aws::AmazonS3;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;

use crate::access::{self, AccessOptions, Environment, Objects};
use crate::error::{ObjectError, Remote};
use crate::library_url::LibraryUrl;
use crate::limits::{CANCEL_LOOK, MANIFESTS_AHEAD, MAX_LISTED_TITLES};
use crate::listing::PublishedTitle;

/// Beginning of the names of all titles' objects, after the prefix of the library.
pub(crate) const TITLES: &str = "t";

/// Titles in an object store. Its functions block; they return within a tenth of a second when they are cancelled.
pub struct ObjectLibrary {
    pub(crate) url: LibraryUrl,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) s3: Option<Arc<AmazonS3>>,
    pub(crate) remote: Remote,
    pub(crate) environment: Environment,
    cancel: Arc<AtomicBool>,
    runtime: Runtime,
}

impl std::fmt::Debug for ObjectLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectLibrary").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The titles of a library.
#[derive(Debug, Default)]
pub struct LibraryListing {
    /// Their manifests, by name.
    pub titles: Vec<Manifest>,
    /// Titles whose manifest cannot be used, and why.
    pub unreadable: Vec<(TitleId, ObjectError)>,
}

impl LibraryListing {
    /// The titles that were made from a title and are published with it: other speeds, other renditions.
    pub fn derived_from(&self, parent: TitleId) -> impl Iterator<Item = &Manifest> {
        self.titles
            .iter()
            .filter(move |manifest| manifest.title.derived.is_some_and(|derived| derived.parent == parent))
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferProgress {
    /// Bytes transferred or found transferred.
    pub bytes_done: u64,
    /// All bytes.
    pub bytes_total: u64,
    /// Bytes of those done that an interrupted transfer has left.
    pub bytes_left_before: u64,
}

impl ObjectLibrary {
    /// Opens a library. The object store is not asked for anything yet. Setting `cancel` ends every function.
    ///
    /// # Errors
    /// If the settings cannot be used, or there is no such directory.
    pub fn open(
        url: &LibraryUrl,
        options: &AccessOptions,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Self, ObjectError> {
        // One thread beside the caller's, which reads and writes disks meanwhile.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("objects")
            .enable_all()
            .build()
            .map_err(ObjectError::Threads)?;
        let Objects { store, s3, remote } = access::open(url, options)?;
        let (url, environment, cancel) = (url.clone(), options.environment.clone(), Arc::clone(cancel));
        Ok(Self { url, store, s3, remote, environment, cancel, runtime })
    }

    /// Where it is.
    pub fn url(&self) -> &LibraryUrl {
        &self.url
    }

    /// Its titles.
    ///
    /// # Errors
    /// If the object store cannot be listed, or there are too many.
    pub fn list(&self) -> Result<LibraryListing, ObjectError> {
        let ids = self.run(self.title_ids())??;
        let manifests = stream::iter(ids)
            .map(|id| async move { (id, self.read_manifest(id).await) })
            .buffer_unordered(MANIFESTS_AHEAD)
            .collect::<Vec<_>>();
        let mut listing = LibraryListing::default();
        for (id, manifest) in self.run(manifests)? {
            match manifest {
                Ok(Some(title)) => listing.titles.push(title.manifest),
                // Being published, or removed meanwhile.
                Ok(None) => {}
                Err(error @ ObjectError::Wrong { .. }) => listing.unreadable.push((id, error)),
                Err(error) => return Err(error),
            }
        }
        listing.titles.sort_by(|a, b| (&a.title.name, a.title.id.0).cmp(&(&b.title.name, b.title.id.0)));
        Ok(listing)
    }

    async fn title_ids(&self) -> Result<Vec<TitleId>, ObjectError> {
        let listed = self.store.list_with_delimiter(Some(&self.path(&[TITLES]))).await;
        let listed = match listed {
            // A directory without titles.
            Err(object_store::Error::NotFound { .. }) if self.s3.is_none() => return Ok(Vec::new()),
            listed => listed.map_err(|error| self.remote.error(&error))?,
        };
        let ids: Vec<TitleId> = listed
            .common_prefixes
            .iter()
            .filter_map(|path| path.filename().and_then(|name| name.parse().ok()))
            .collect();
        match ids.len() > MAX_LISTED_TITLES {
            true => Err(ObjectError::TooMany { library: self.url.to_string(), max: MAX_LISTED_TITLES }),
            false => Ok(ids),
        }
    }

    /// The manifest of a title; `None` if the title is not there.
    pub(crate) async fn read_manifest(&self, id: TitleId) -> Result<Option<PublishedTitle>, ObjectError> {
        let path = self.object(id, MANIFEST_FILE);
        let Some(bytes) = self.read_small(&path).await? else { return Ok(None) };
        let manifest =
            Manifest::decode(&bytes).map_err(|error| self.remote.wrong(&path, error.to_string()))?;
        if manifest.title.id != id || !manifest.placement.geometry().is_single() {
            return Err(self.remote.wrong(&path, "is not the manifest of this title"));
        }
        let manifest_blake3 = blake3::hash(&bytes).to_hex().to_string();
        Ok(Some(PublishedTitle { manifest, manifest_blake3 }))
    }

    /// A whole object of at most the length of a manifest; `None` if it is not there.
    pub(crate) async fn read_small(&self, path: &ObjectPath) -> Result<Option<Bytes>, ObjectError> {
        let failed = |error| self.remote.error(&error);
        let found = match self.store.get(path).await {
            Err(error @ object_store::Error::NotFound { .. }) => {
                return match failed(error) {
                    ObjectError::Missing { .. } => Ok(None),
                    error => Err(error),
                };
            }
            found => found.map_err(failed)?,
        };
        if found.meta.size > MAX_MANIFEST_BYTES {
            return Err(self.remote.wrong(path, format!("is longer than {MAX_MANIFEST_BYTES} bytes")));
        }
        found.bytes().await.map(Some).map_err(failed)
    }

    /// The name of an object of a title.
    pub(crate) fn object(&self, id: TitleId, file: &str) -> ObjectPath {
        self.path(&[TITLES, &id.to_string(), file])
    }

    pub(crate) fn path(&self, parts: &[&str]) -> ObjectPath {
        let prefix = self.url.prefix();
        prefix.parts().chain(parts.iter().map(|part| object_store::path::PathPart::from(*part))).collect()
    }

    /// Waits for something, as long as the user does.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, ObjectError> {
        self.runtime.block_on(async {
            tokio::pin!(work);
            loop {
                if self.cancel.load(Ordering::Relaxed) {
                    return Err(ObjectError::Cancelled);
                }
                if let Ok(done) = tokio::time::timeout(CANCEL_LOOK, &mut work).await {
                    return Ok(done);
                }
            }
        })
    }

    /// Runs something beside the caller.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(work)
    }
}
