//! The titles of a library, listed again and again: one request for some 150 titles, and one for each manifest that is new.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use millrace_core::ids::TitleId;
use millrace_store::format::manifest::{MANIFEST_FILE, Manifest};
use object_store::ObjectMeta;

use crate::error::ObjectError;
use crate::library::{ObjectLibrary, TITLES};
use crate::limits::{MANIFESTS_AHEAD, MAX_LISTED_OBJECTS, MAX_LISTED_TITLES};

/// A title of a library.
#[derive(Debug)]
pub struct PublishedTitle {
    /// Its manifest.
    pub manifest: Manifest,
    /// BLAKE3 of the manifest's object: another one means that the title has changed.
    pub manifest_blake3: String,
}

/// The titles of a library as they were listed last.
#[derive(Debug, Default)]
pub struct LibraryIndex {
    titles: BTreeMap<TitleId, ListedManifest>,
}

#[derive(Clone, Debug)]
struct ListedManifest {
    version: ManifestVersion,
    /// `None`: its manifest cannot be used.
    title: Option<Arc<PublishedTitle>>,
}

/// Properties of a manifest's object. As long as none of them changes, the manifest does not either.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ManifestVersion {
    tag: Option<String>,
    /// Nanoseconds since 1970; 0 if there are too many.
    modified: i64,
    bytes: u64,
}

impl ManifestVersion {
    fn of(meta: &ObjectMeta) -> Self {
        let modified = meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
        Self { tag: meta.e_tag.clone(), modified, bytes: meta.size }
    }
}

/// Manifests that a look into a library has found unusable for the first time, and why.
pub type UnusableManifests = Vec<(TitleId, ObjectError)>;

impl LibraryIndex {
    /// The titles.
    pub fn titles(&self) -> impl Iterator<Item = &Arc<PublishedTitle>> {
        self.titles.values().filter_map(|listed| listed.title.as_ref())
    }

    /// Whether the library has a title of this id, also if its manifest cannot be used.
    pub fn lists(&self, id: TitleId) -> bool {
        self.titles.contains_key(&id)
    }

    /// The title of this id.
    pub fn get(&self, id: TitleId) -> Option<&Arc<PublishedTitle>> {
        self.titles.get(&id)?.title.as_ref()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.titles.is_empty()
    }
}

impl ObjectLibrary {
    /// Lists the library, and reads the manifests that have changed since `known` was made.
    ///
    /// # Errors
    /// If the object store cannot be listed or read, or there are too many titles.
    pub fn relist(&self, known: &LibraryIndex) -> Result<(LibraryIndex, UnusableManifests), ObjectError> {
        let versions = self.run(self.manifest_versions())??;
        let mut titles = BTreeMap::new();
        let mut changed = Vec::new();
        for (id, version) in versions {
            match known.titles.get(&id).filter(|listed| listed.version == version) {
                Some(listed) => drop(titles.insert(id, listed.clone())),
                None => changed.push((id, version)),
            }
        }
        let read = stream::iter(changed)
            .map(|(id, version)| async move { (id, version, self.read_manifest(id).await) })
            .buffer_unordered(MANIFESTS_AHEAD)
            .collect::<Vec<_>>();
        let mut unusable = Vec::new();
        for (id, version, manifest) in self.run(read)? {
            let title = match manifest {
                Ok(Some(title)) => Some(Arc::new(title)),
                // Removed meanwhile.
                Ok(None) => continue,
                Err(error @ ObjectError::Wrong { .. }) => {
                    unusable.push((id, error));
                    None
                }
                Err(error) => return Err(error),
            };
            titles.insert(id, ListedManifest { version, title });
        }
        Ok((LibraryIndex { titles }, unusable))
    }

    /// The manifests that there are. They are found among all objects: a request lists a thousand of these, and a title has about six.
    async fn manifest_versions(&self) -> Result<BTreeMap<TitleId, ManifestVersion>, ObjectError> {
        let too_many = |max| ObjectError::TooMany { library: self.remote.library.clone(), max };
        let (mut found, mut objects) = (BTreeMap::new(), 0);
        let mut listed = self.store.list(Some(&self.path(&[TITLES])));
        loop {
            let meta = match listed.try_next().await {
                Ok(Some(meta)) => meta,
                Ok(None) => return Ok(found),
                // A directory without titles.
                Err(object_store::Error::NotFound { .. }) if self.s3.is_none() => return Ok(found),
                Err(error) => return Err(self.remote.error(&error)),
            };
            objects += 1;
            if objects > MAX_LISTED_OBJECTS {
                return Err(too_many(MAX_LISTED_TITLES));
            }
            let parts: Vec<_> = meta.location.parts().collect();
            let [.., id, file] = parts.as_slice() else { continue };
            let id: Option<TitleId> = id.as_ref().parse().ok().filter(|_| file.as_ref() == MANIFEST_FILE);
            // Below a title's directory there is no other.
            if let Some(id) = id.filter(|id| self.object(*id, MANIFEST_FILE) == meta.location) {
                found.insert(id, ManifestVersion::of(&meta));
                if found.len() > MAX_LISTED_TITLES {
                    return Err(too_many(MAX_LISTED_TITLES));
                }
            }
        }
    }
}
