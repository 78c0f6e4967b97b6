//! Finds the title made from a file: by path, length and modification time without reading the
//! file, or else by its content, even if the file was moved.
//!
//! Only a file with the length of another title's source is read.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use crate::format::title_info::{SourceIdentity, TitleInfo};

/// Where all titles of a store came from.
#[derive(Debug, Default)]
pub struct Sources {
    titles: HashMap<TitleId, KnownSource>,
    by_path: HashMap<PathBuf, TitleId>,
    by_bytes: HashMap<u64, Vec<TitleId>>,
}

/// Where one title came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownSource {
    /// The title.
    pub id: TitleId,
    /// Its name.
    pub name: String,
    /// The file that it was made from.
    pub source: SourceIdentity,
    /// Other files with this content.
    pub copies: Vec<SourceIdentity>,
    /// BLAKE3 of the content, if known.
    pub blake3: Option<String>,
}

/// Whether a title has the content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceMatch {
    /// No title has this content.
    New,
    /// This title, from this very file.
    Same(KnownSource),
    /// A title was made from a file at this path, which has the same content and another modification time now.
    Touched(KnownSource, String),
    /// A title was made from a file at this path, which has other content now.
    Changed(KnownSource),
    /// A title was made from a file elsewhere that has this content.
    Elsewhere(KnownSource, String),
}

impl KnownSource {
    fn of(info: &TitleInfo) -> Self {
        Self {
            id: info.id,
            name: info.name.clone(),
            source: info.source.clone(),
            copies: info.origin.copies.clone(),
            blake3: info.source_blake3().map(str::to_owned),
        }
    }

    fn identities(&self) -> impl Iterator<Item = &SourceIdentity> {
        std::iter::once(&self.source).chain(&self.copies)
    }
}

impl Sources {
    /// Those of `titles`; derived ones have none of their own.
    pub fn new<'a>(titles: impl IntoIterator<Item = &'a TitleInfo>) -> Self {
        let mut sources = Self::default();
        titles.into_iter().for_each(|info| sources.insert(info));
        sources
    }

    /// Adds or replaces a title.
    pub fn insert(&mut self, info: &TitleInfo) {
        self.remove(info.id);
        if let Some(old) = info.origin.replaces {
            self.remove(old);
        }
        if info.derived.is_some() {
            return;
        }
        let known = KnownSource::of(info);
        self.by_path.insert(known.source.path.clone(), known.id);
        for copy in &known.copies {
            // A copy that was changed has a title of its own.
            self.by_path.entry(copy.path.clone()).or_insert(known.id);
        }
        self.by_bytes.entry(known.source.bytes).or_default().push(known.id);
        self.titles.insert(known.id, known);
    }

    /// Forgets a title.
    pub fn remove(&mut self, id: TitleId) {
        let Some(known) = self.titles.remove(&id) else { return };
        for identity in known.identities() {
            if self.by_path.get(&identity.path) == Some(&id) {
                self.by_path.remove(&identity.path);
            }
        }
        if let Some(ids) = self.by_bytes.get_mut(&known.source.bytes) {
            ids.retain(|other| *other != id);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &KnownSource> {
        self.titles.values()
    }

    /// The title that a file at this path was made into, or is a copy of the source of.
    pub fn at_path(&self, path: &Path) -> Option<&KnownSource> {
        self.titles.get(self.by_path.get(path)?)
    }

    /// Finds the title of the file `identity`. `hash` reads it and returns its BLAKE3; it is called only if another file of its length is known.
    ///
    /// # Errors
    /// The error of `hash`.
    pub fn look_up(
        &self,
        identity: &SourceIdentity,
        hash: &mut dyn FnMut() -> io::Result<String>,
    ) -> io::Result<SourceMatch> {
        let at_path = self.at_path(&identity.path);
        if let Some(known) = at_path.filter(|known| known.identities().any(|of| of == identity)) {
            return Ok(SourceMatch::Same(known.clone()));
        }
        let candidates: Vec<&KnownSource> = self.of_length(identity.bytes).collect();
        if !candidates.is_empty() {
            let blake3 = hash()?;
            // Titles of older versions do not know the content of their source: the time of its last change stands for it.
            let has_content = |known: &&KnownSource| match &known.blake3 {
                Some(of) => *of == blake3,
                None => known.source.modified_unix_ns == identity.modified_unix_ns,
            };
            let same: Vec<&KnownSource> = candidates.into_iter().filter(has_content).collect();
            if let Some(known) = at_path.and_then(|at| same.iter().find(|known| known.id == at.id)) {
                return Ok(SourceMatch::Touched((*known).clone(), blake3));
            }
            if let Some(known) = same.first() {
                return Ok(SourceMatch::Elsewhere((*known).clone(), blake3));
            }
        }
        // A copy of another title's source that has changed is a film of its own.
        let changed = at_path.filter(|known| known.source.path == identity.path);
        Ok(changed.map_or(SourceMatch::New, |known| SourceMatch::Changed(known.clone())))
    }

    /// Titles whose source has this length, those added first before others.
    fn of_length(&self, bytes: u64) -> impl Iterator<Item = &KnownSource> {
        let ids = self.by_bytes.get(&bytes).into_iter().flatten();
        ids.filter_map(|id| self.titles.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::hand_made::info;

    fn identity(path: &str, bytes: u64, modified_unix_ns: u64) -> SourceIdentity {
        SourceIdentity { path: path.into(), bytes, modified_unix_ns }
    }

    fn title(number: u8, source: SourceIdentity, blake3: Option<&str>) -> TitleInfo {
        let mut info = info(TitleId([number; 16]), b"some media");
        (info.source, info.origin.blake3) = (source, blake3.map(str::to_owned));
        info
    }

    #[test]
    fn file_is_found_by_identity_without_reading_it() {
        let sources = Sources::new(&[title(1, identity("/a", 5, 7), Some("x"))]);
        let mut read = || panic!("the file is read");
        let found = |path: &str, bytes, at, read: &mut dyn FnMut() -> io::Result<String>| {
            sources.look_up(&identity(path, bytes, at), read).unwrap()
        };
        assert!(matches!(found("/a", 5, 7, &mut read), SourceMatch::Same(known) if known.id.0[0] == 1));
        assert_eq!(found("/b", 6, 7, &mut read), SourceMatch::New);
        assert!(matches!(found("/a", 6, 8, &mut read), SourceMatch::Changed(_)));
    }

    #[test]
    fn file_of_known_length_is_found_by_its_content() {
        let sources = Sources::new(&[
            title(1, identity("/a", 5, 7), Some("x")),
            title(2, identity("/b", 5, 7), Some("y")),
            title(3, identity("/old", 9, 7), None),
        ]);
        let found = |path: &str, bytes, at, content: &str| {
            sources.look_up(&identity(path, bytes, at), &mut || Ok(content.to_owned())).unwrap()
        };
        assert!(matches!(found("/c", 5, 9, "y"), SourceMatch::Elsewhere(known, _) if known.id.0[0] == 2));
        assert!(matches!(found("/a", 5, 9, "x"), SourceMatch::Touched(..)));
        assert!(matches!(found("/a", 5, 9, "z"), SourceMatch::Changed(_)));
        assert_eq!(found("/c", 5, 7, "z"), SourceMatch::New);
        assert!(matches!(found("/c", 9, 7, "any"), SourceMatch::Elsewhere(..)), "moved, of an older version");
        assert_eq!(found("/c", 9, 8, "any"), SourceMatch::New);
    }

    #[test]
    fn copies_are_found_and_a_removed_title_is_not() {
        let mut first = title(1, identity("/a", 5, 7), Some("x"));
        first.origin.copies.push(identity("/copy", 5, 8));
        let mut sources = Sources::new([&first]);
        let mut read = || Ok("z".to_owned());
        assert!(matches!(
            sources.look_up(&identity("/copy", 5, 8), &mut read).unwrap(),
            SourceMatch::Same(_)
        ));
        assert_eq!(sources.look_up(&identity("/copy", 5, 9), &mut read).unwrap(), SourceMatch::New);
        let mut second = title(2, identity("/a", 6, 9), Some("y"));
        second.origin.replaces = Some(first.id);
        sources.insert(&second);
        assert!(sources.at_path(Path::new("/copy")).is_none());
        assert_eq!(sources.at_path(Path::new("/a")).unwrap().id, second.id);
        sources.remove(second.id);
        assert!(sources.at_path(Path::new("/a")).is_none() && sources.iter().next().is_none());
    }
}
