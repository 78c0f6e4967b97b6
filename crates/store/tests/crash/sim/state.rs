//! The state that a power cut leaves: decides which of the changes that are not durable are lost,
//! and writes the rest.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use super::model::{Change, Kind, Model, Names, Node, What};

/// A disk writes a sector whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Splitmix64's finish over two words: any two inputs give unrelated outputs.
fn mix(seed: u64, word: u64) -> u64 {
    let mut x = seed ^ word.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// How it is decided what becomes of changes that are not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All lost.
    Lost,
    /// All kept.
    Kept,
    /// Names kept, content and lengths lost.
    NamesOnly,
    /// Names and lengths kept, content zeros.
    Lengths,
    /// Content kept, names lost.
    ContentOnly,
    /// Each name and each write for itself, by this seed: lost, kept, torn, or zeros.
    Seeded(u64),
}

impl Fate {
    /// Those that are not seeded.
    pub const PLAIN: [Self; 5] = [Self::Lost, Self::Kept, Self::NamesOnly, Self::Lengths, Self::ContentOnly];
}

/// What becomes of one write.
enum Left {
    Nothing,
    All,
    /// The length, with zeros.
    Length,
    /// Some of its sectors, by this seed.
    Sectors(u64),
}

/// How likely a change survives, in eighths: a seed leans to one side or the other, so that both ends are seen often.
fn lean(seed: u64, what: u64) -> u64 {
    [1, 4, 7][(mix(seed, what) % 3) as usize]
}

impl Fate {
    fn keeps_name(self, number: usize) -> bool {
        match self {
            Self::Lost | Self::ContentOnly => false,
            Self::Kept | Self::NamesOnly | Self::Lengths => true,
            Self::Seeded(seed) => mix(mix(seed, 1), number as u64) % 8 < lean(seed, 2),
        }
    }

    fn of_write(self, node: Node, number: usize) -> Left {
        match self {
            Self::Lost | Self::NamesOnly => Left::Nothing,
            Self::Kept | Self::ContentOnly => Left::All,
            Self::Lengths => Left::Length,
            Self::Seeded(seed) => {
                let chance = mix(mix(mix(seed, 3), node as u64), number as u64);
                match chance % 8 < lean(seed, 4) {
                    true => Left::All,
                    false => match mix(chance, 5) % 3 {
                        0 => Left::Nothing,
                        1 => Left::Length,
                        _ => Left::Sectors(mix(chance, 6)),
                    },
                }
            }
        }
    }
}

/// Remaining state of all roots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrashState {
    roots: Vec<BTreeMap<PathBuf, Option<Vec<u8>>>>,
}

impl CrashState {
    pub(super) fn decide(model: &Model, fate: Fate) -> Self {
        let mut kept: Vec<bool> = Vec::new();
        for (number, change) in model.names.iter().enumerate() {
            let possible = change.after.iter().all(|&before| kept[before]);
            kept.push(change.durable || possible && fate.keeps_name(number));
        }
        let mut dirs: BTreeMap<Node, Names> = BTreeMap::new();
        for (node, kind) in model.nodes.iter().enumerate() {
            if let Kind::Dir { base, .. } = kind {
                dirs.insert(node, base.clone());
            }
        }
        for slot in
            model.names.iter().zip(kept).filter(|(_, kept)| *kept).flat_map(|(change, _)| &change.slots)
        {
            let names = dirs.entry(slot.dir).or_default();
            match slot.node {
                Some(node) => names.insert(slot.name.clone(), node),
                None => names.remove(&slot.name),
            };
        }
        let roots = model.roots.iter().map(|&root| {
            let mut found = BTreeMap::new();
            gather(model, fate, &dirs, root, Path::new(""), &mut found);
            found
        });
        Self { roots: roots.collect() }
    }

    /// Writes it into the directories `roots`, in the order of the recording's; they must be empty.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rebuild(&self, roots: &[&Path]) -> io::Result<()> {
        for (entries, root) in self.roots.iter().zip(roots) {
            for (path, content) in entries {
                match content {
                    None => fs::create_dir(root.join(path))?,
                    Some(bytes) => fs::write(root.join(path), bytes)?,
                }
            }
        }
        Ok(())
    }

    /// The same for the same state, to look at each state once.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Paths in root `root`, directories among them, in order.
    pub fn paths(&self, root: usize) -> impl Iterator<Item = &Path> {
        self.roots.get(root).into_iter().flat_map(BTreeMap::keys).map(PathBuf::as_path)
    }

    /// Returns the content of the file at `path` in root `root`.
    pub fn content(&self, root: usize, path: &Path) -> Option<&[u8]> {
        self.roots.get(root)?.get(path)?.as_deref()
    }
}

fn gather(
    model: &Model,
    fate: Fate,
    dirs: &BTreeMap<Node, Names>,
    dir: Node,
    path: &Path,
    found: &mut BTreeMap<PathBuf, Option<Vec<u8>>>,
) {
    for (name, &node) in dirs.get(&dir).into_iter().flatten() {
        let path = path.join(name);
        match &model.nodes[node] {
            Kind::Dir { .. } => {
                found.insert(path.clone(), None);
                gather(model, fate, dirs, node, &path, found);
            }
            Kind::File { base, changes } => {
                found.insert(path, Some(content(base, changes, node, fate)));
            }
        }
    }
}

fn content(base: &[u8], changes: &[Change], node: Node, fate: Fate) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for (number, change) in changes.iter().enumerate() {
        let left = if change.durable { Left::All } else { fate.of_write(node, number) };
        match (&change.what, left) {
            (_, Left::Nothing) | (What::SetLen(_), Left::Sectors(_)) => {}
            (What::SetLen(len), _) => bytes.resize(*len as usize, 0),
            (What::Write(at, new), Left::All) => put(&mut bytes, *at as usize, new),
            (What::Write(at, new), Left::Length) => {
                let end = *at as usize + new.len();
                bytes.resize(bytes.len().max(end), 0);
            }
            (What::Write(at, new), Left::Sectors(seed)) => {
                let mut at = *at as usize;
                let mut rest: &[u8] = new;
                while !rest.is_empty() {
                    let (now, later) = rest.split_at((SECTOR_BYTES - at % SECTOR_BYTES).min(rest.len()));
                    if mix(seed, (at / SECTOR_BYTES) as u64).is_multiple_of(2) {
                        put(&mut bytes, at, now);
                    }
                    at += now.len();
                    rest = later;
                }
            }
        }
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    let end = at + new.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[at..end].copy_from_slice(new);
}
