//! Replays operations on a model of a file system that tracks which changes are durable and which
//! may still be lost.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_store::disk::FileId;

/// A path below one of the roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) root: usize,
    pub(super) path: PathBuf,
}

/// Something that was done.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A file created, or opened if it was there.
    Open(Place, FileId),
    Write(FileId, u64, Arc<[u8]>),
    SetLen(FileId, u64),
    SyncFile(FileId),
    SyncFailed(FileId),
    CreateDir(Place),
    SyncDir(Place),
    Rename(Place, Place),
    Remove(Place),
    /// A promise to a user.
    Mark(String),
}

impl Event {
    pub(super) fn describe(&self) -> String {
        let at = |place: &Place| format!("{}:{}", place.root, place.path.display());
        match self {
            Self::Open(place, _) => format!("create {}", at(place)),
            Self::Write(_, offset, bytes) => format!("write {} bytes at {offset}", bytes.len()),
            Self::SetLen(_, bytes) => format!("set length {bytes}"),
            Self::SyncFile(_) => "sync file".to_owned(),
            Self::SyncFailed(_) => "failed sync of file".to_owned(),
            Self::CreateDir(place) => format!("create directory {}", at(place)),
            Self::SyncDir(place) => format!("sync directory {}", at(place)),
            Self::Rename(from, to) => format!("rename {} to {}", at(from), at(to)),
            Self::Remove(place) => format!("remove {}", at(place)),
            Self::Mark(label) => format!("promise {label}"),
        }
    }
}

/// Directories and files as they were when recording began.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) dirs: BTreeMap<OsString, Tree>,
    pub(super) files: BTreeMap<OsString, Arc<[u8]>>,
}

/// Number of a file or directory in a model.
pub(super) type Node = usize;

/// A directory's names.
pub(super) type Names = BTreeMap<OsString, Node>;

/// A change of a file's content or length.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) what: What,
    /// Kept by a sync.
    pub(super) durable: bool,
    /// A sync of it failed: no later one keeps it for certain.
    doomed: bool,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Write(u64, Arc<[u8]>),
    SetLen(u64),
}

#[derive(Debug)]
pub(super) enum Kind {
    Dir {
        /// As they were when recording began.
        base: Names,
        /// As a running program sees them.
        now: Names,
    },
    File {
        base: Arc<[u8]>,
        changes: Vec<Change>,
    },
}

/// One name set to a node or removed.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) dir: Node,
    pub(super) name: OsString,
    pub(super) node: Option<Node>,
}

/// A change of names: whole or not at all.
#[derive(Debug)]
pub(super) struct NameChange {
    pub(super) slots: Vec<Slot>,
    /// Earlier changes of the same names, without which this one cannot be.
    pub(super) after: Vec<usize>,
    pub(super) durable: bool,
}

/// The file systems of all roots.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) nodes: Vec<Kind>,
    pub(super) roots: Vec<Node>,
    pub(super) names: Vec<NameChange>,
    /// The last change of each name.
    last: HashMap<(Node, OsString), usize>,
    openings: HashMap<FileId, Node>,
}

impl Model {
    pub(super) fn new(base: &[Tree]) -> Self {
        let mut model = Self {
            nodes: Vec::new(),
            roots: Vec::new(),
            names: Vec::new(),
            last: HashMap::new(),
            openings: HashMap::new(),
        };
        model.roots = base.iter().map(|tree| model.add_tree(tree)).collect();
        model
    }

    fn add(&mut self, kind: Kind) -> Node {
        self.nodes.push(kind);
        self.nodes.len() - 1
    }

    fn add_tree(&mut self, tree: &Tree) -> Node {
        let mut names = Names::new();
        for (name, below) in &tree.dirs {
            names.insert(name.clone(), self.add_tree(below));
        }
        for (name, bytes) in &tree.files {
            let node = self.add(Kind::File { base: bytes.clone(), changes: Vec::new() });
            names.insert(name.clone(), node);
        }
        self.add(Kind::Dir { base: names.clone(), now: names })
    }

    /// Applies an event. An impossible one (for a path that does not exist) did not happen in the
    /// model either: it results from operations past the recording.
    pub(super) fn replay(&mut self, event: &Event) {
        match event {
            Event::Open(place, file) => self.open(place, *file),
            Event::Write(file, at, bytes) => self.change(*file, What::Write(*at, bytes.clone())),
            Event::SetLen(file, bytes) => self.change(*file, What::SetLen(*bytes)),
            Event::SyncFile(file) => self.each_change(*file, |change| change.durable |= !change.doomed),
            Event::SyncFailed(file) => self.each_change(*file, |change| change.doomed |= !change.durable),
            Event::CreateDir(place) => self.create_dir(place),
            Event::SyncDir(place) => self.sync_dir(place),
            Event::Rename(from, to) => self.rename(from, to),
            Event::Remove(place) => {
                if let Some((dir, name)) = self.parent(place) {
                    self.set(vec![(dir, name, None)]);
                }
            }
            Event::Mark(_) => {}
        }
    }

    fn lookup(&self, dir: Node, name: &OsStr) -> Option<Node> {
        match &self.nodes[dir] {
            Kind::Dir { now, .. } => now.get(name).copied(),
            Kind::File { .. } => None,
        }
    }

    fn walk(&self, root: usize, path: &Path) -> Option<Node> {
        path.iter().try_fold(*self.roots.get(root)?, |dir, name| self.lookup(dir, name))
    }

    fn parent(&self, place: &Place) -> Option<(Node, OsString)> {
        let dir = self.walk(place.root, place.path.parent()?)?;
        Some((dir, place.path.file_name()?.to_owned()))
    }

    /// Changes names: all of them at once.
    fn set(&mut self, slots: Vec<(Node, OsString, Option<Node>)>) {
        let number = self.names.len();
        let mut change = NameChange { slots: Vec::new(), after: Vec::new(), durable: false };
        for (dir, name, node) in slots {
            if let Kind::Dir { now, .. } = &mut self.nodes[dir] {
                match node {
                    Some(node) => now.insert(name.clone(), node),
                    None => now.remove(&name),
                };
            }
            change.after.extend(self.last.insert((dir, name.clone()), number));
            change.slots.push(Slot { dir, name, node });
        }
        self.names.push(change);
    }

    fn open(&mut self, place: &Place, file: FileId) {
        let Some((dir, name)) = self.parent(place) else { return };
        let node = self.lookup(dir, &name).unwrap_or_else(|| {
            let node = self.add(Kind::File { base: Arc::new([]), changes: Vec::new() });
            self.set(vec![(dir, name, Some(node))]);
            node
        });
        self.openings.insert(file, node);
    }

    fn create_dir(&mut self, place: &Place) {
        let Some((dir, name)) = self.parent(place) else { return };
        let node = self.add(Kind::Dir { base: Names::new(), now: Names::new() });
        self.set(vec![(dir, name, Some(node))]);
    }

    fn rename(&mut self, from: &Place, to: &Place) {
        let (Some((dir, name)), Some((to_dir, to_name))) = (self.parent(from), self.parent(to)) else {
            return;
        };
        if let Some(node) = self.lookup(dir, &name) {
            self.set(vec![(dir, name, None), (to_dir, to_name, Some(node))]);
        }
    }

    fn changes(&mut self, file: FileId) -> Option<&mut Vec<Change>> {
        match &mut self.nodes[*self.openings.get(&file)?] {
            Kind::File { changes, .. } => Some(changes),
            Kind::Dir { .. } => None,
        }
    }

    fn change(&mut self, file: FileId, what: What) {
        if let Some(changes) = self.changes(file) {
            changes.push(Change { what, durable: false, doomed: false });
        }
    }

    fn each_change(&mut self, file: FileId, with: impl FnMut(&mut Change)) {
        if let Some(changes) = self.changes(file) {
            changes.iter_mut().for_each(with);
        }
    }

    fn sync_dir(&mut self, place: &Place) {
        let Some(synced) = self.walk(place.root, &place.path) else { return };
        for number in 0..self.names.len() {
            // The last slot of a rename is where it leads to.
            if self.names[number].slots.last().is_some_and(|slot| slot.dir == synced) {
                self.keep(number);
            }
        }
    }

    /// Makes a change of names durable, with those that it rests on.
    fn keep(&mut self, number: usize) {
        let mut keep = vec![number];
        while let Some(number) = keep.pop() {
            if !std::mem::replace(&mut self.names[number].durable, true) {
                keep.extend(&self.names[number].after);
            }
        }
    }
}
