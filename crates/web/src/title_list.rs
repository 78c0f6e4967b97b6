//! Cached lists of titles, as they are sent.

use std::sync::Arc;

use hyper::body::Bytes;

use crate::recent::Recent;

/// Cached lists of titles. Clients that see the same list share one.
pub(crate) type Lists = Recent<ListVersion, Arc<List>>;

/// Everything that a list depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListVersion {
    /// How often titles, pictures and rights have changed.
    pub(crate) versions: [u64; 3],
    /// The user, if users see different titles.
    pub(crate) user: Option<Arc<str>>,
    pub(crate) may: May,
}

/// Changes that a client may make to the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct May {
    pub(crate) upload: &'static str,
    pub(crate) manage: &'static str,
}

/// The bytes of a list, ready to be sent.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) plain: Bytes,
    /// By gzip, if that is worth it.
    pub(crate) gzip: Option<Bytes>,
    /// Hexadecimal digits that identify this version of the list.
    pub(crate) tag: String,
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.plain.len() + self.gzip.as_ref().map_or(0, Bytes::len)
    }
}
