//! Writes a title: data, meta-data, index, manifest; then makes it visible at once.

use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::data::{DataWriter, SizeWriter};
use super::dirs::{random, rename, sync_dir, unix_s, write_new};
use super::lock::StoreLock;
use super::name;
use super::workspace::Workspace;
use super::{ElementaryStream, Inner, SourceIdentity, TitleInfo, Volume};
use crate::error::StoreError;
use crate::format::manifest::{
    self, DATA_FILE, FileEntry, INDEX_FILE, MANIFEST_FILE, Manifest, Placement, SUMS_FILE,
};
use crate::index::TitleIndex;
use crate::meta::Finished;
use crate::sums::{GRAIN_BYTES, SumsWriter};

const DEFAULT_SIZE: u16 = DEFAULT_PACKET_BYTES as u16;

/// A title being written. It owns `tmp/<id>` in the store; dropped without [`TitleWriter::commit`], that is removed.
///
/// After any error the title is lost: its directory is removed at once, and every further call fails too.
#[derive(Debug)]
pub struct TitleWriter {
    volume: Arc<Inner>,
    workspace: Workspace,
    /// `None` after an error: open files would keep their space on the disk.
    files: Option<Files>,
}

#[derive(Debug)]
struct Files {
    data: DataWriter,
    sums: SumsWriter,
    /// The default size first, the others ascending.
    sizes: Vec<SizeWriter>,
}

/// What is only known when all of a title has been read.
#[derive(Clone, Debug)]
pub struct FinishTitle {
    /// Wished name; made URL-safe and unique.
    pub name: String,
    /// The file it was made from.
    pub source: SourceIdentity,
    /// Film time.
    pub duration: MediaTicks,
    /// Mean bit rate.
    pub mean_rate: BitRate,
    /// Highest bit rate over windows of 1 s.
    pub peak_rate: BitRate,
    /// Whether the rate is constant.
    pub constant_rate: bool,
    /// Elementary streams.
    pub streams: Vec<ElementaryStream>,
    /// The index; its time index, length and duration are filled in at commit.
    pub index: TitleIndex,
    /// What the operator should know.
    pub notes: Vec<String>,
}

impl TitleWriter {
    /// Begins a title with range sums and with meta-data for `packet_sizes`: multiples of 188 up to 9024. The default size (1316) is always
    /// written, also if it is not named.
    pub fn begin(volume: &Volume, packet_sizes: &[u16]) -> Result<Self, StoreError> {
        let mut sizes = vec![DEFAULT_SIZE];
        sizes.extend(packet_sizes.iter().copied().filter(|&size| size != DEFAULT_SIZE));
        sizes[1..].sort_unstable();
        sizes.dedup();
        for &size in &sizes {
            let packet_bytes = usize::from(size);
            WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
        }
        let volume = Arc::clone(&volume.inner);
        let workspace = Workspace::create(&volume.dirs)?;
        let disk = workspace.disk();
        let data = DataWriter::create(disk, &workspace.path().join(DATA_FILE))?;
        let sums = SumsWriter::create(disk, &workspace.path().join(SUMS_FILE), GRAIN_BYTES)?;
        let sizes = sizes
            .into_iter()
            .map(|size| SizeWriter::create(disk, &workspace.path().join(manifest::meta_file(size)), size))
            .collect::<Result<_, _>>()?;
        Ok(Self { volume, workspace, files: Some(Files { data, sums, sizes }) })
    }

    /// The title's identity.
    pub fn id(&self) -> TitleId {
        self.workspace.id()
    }

    /// Bytes taken so far; 0 after an error.
    pub fn bytes(&self) -> u64 {
        self.files.as_ref().map_or(0, |files| files.data.bytes())
    }

    /// Appends whole TS packets to the data file: copied, summed and hashed in one pass while hot in cache, written in
    /// pieces of 1 MiB. Any number of TS packets at a time will do; a few hundred are best.
    pub fn write_data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.or_give_up(|id, files| files.write_data(id, ts))
    }

    /// Appends the meta-data of the next packet of size `packet_bytes`: flags and media time. Its sum is not used: the
    /// writer puts in the sum of the bytes it has written itself, so a stored sum is always that of the stored bytes.
    /// May come before or after the packet's data; media time may not run back.
    pub fn push_meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.or_give_up(|id, files| files.push_meta(id, packet_bytes, meta))
    }

    /// A half-written film on a full disk must not stand in the way of others until somebody drops the writer: after
    /// an error its files are closed and removed at once.
    fn or_give_up(
        &mut self,
        step: impl FnOnce(TitleId, &mut Files) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let id = self.id();
        let files = self.files.as_mut().ok_or_else(|| gave_up(id))?;
        let result = step(id, files);
        if result.is_err() {
            self.files = None;
            self.workspace.remove();
        }
        result
    }

    /// Makes the title durable, visible and catalogued under a unique name (suffix `-2`, `-3` ...).
    ///
    /// Durable means: every file, then the directory; a rename; the two directories it touches. A crash at any moment
    /// leaves either the whole title or nothing but a directory below `tmp` that the next open sweeps.
    pub fn commit(self, finish: FinishTitle) -> Result<TitleInfo, StoreError> {
        let Self { volume, workspace, files } = self;
        let id = workspace.id();
        let bad = |what: String| bad(id, what);
        let Files { data, sums, sizes } = files.ok_or_else(|| gave_up(id))?;
        let last_time = sizes[0].last_time();
        if data.bytes() == 0 {
            return Err(bad("no data was written".to_owned()));
        }
        if finish.duration < last_time || finish.duration.0 > PacketMeta::MAX_TICKS {
            return Err(bad(format!("duration is {}; its last packet is at {last_time}", finish.duration)));
        }
        let data = data.finish()?;
        let mut files = vec![entry(DATA_FILE.to_owned(), data)];
        files.push(entry(SUMS_FILE.to_owned(), sums.finish(id, data.bytes)?));
        let mut times = Vec::new();
        let mut packet_sizes = Vec::new();
        for size in sizes {
            let packet_bytes = size.packet_bytes();
            let (writer, size_times) = size.end()?.map_err(|unpaired| {
                bad(format!(
                    "packets of {packet_bytes} bytes: {} without meta-data, {} meta-data too many",
                    unpaired.packets, unpaired.metas
                ))
            })?;
            let done = writer.finish(id, packet_bytes, data.bytes)?;
            files.push(entry(manifest::meta_file(packet_bytes), done));
            packet_sizes.push(packet_bytes);
            if packet_bytes == DEFAULT_SIZE {
                times = size_times;
            }
        }
        packet_sizes.sort_unstable();
        let index = finish.index.clone().complete(times, data.bytes, finish.duration)?;
        files.push(write_index(&workspace, &index)?);
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let info = describe(id, finish, data, packet_sizes)?;
        publish(&volume, workspace, info, files)
    }
}

fn bad(id: TitleId, what: String) -> StoreError {
    StoreError::BadTitle { id, what }
}

fn gave_up(id: TitleId) -> StoreError {
    bad(id, "an earlier step failed".to_owned())
}

impl Files {
    fn write_data(&mut self, id: TitleId, ts: &[u8]) -> Result<(), StoreError> {
        if !ts.len().is_multiple_of(TS_PACKET_BYTES) {
            return Err(bad(id, format!("{} bytes of data are not whole TS packets of 188", ts.len())));
        }
        let smallest = self.sizes.iter().map(SizeWriter::packet_bytes).min().unwrap_or(DEFAULT_SIZE);
        if (self.data.bytes() + ts.len() as u64).div_ceil(u64::from(smallest)) > MAX_TITLE_PACKETS {
            return Err(bad(id, format!("more than {MAX_TITLE_PACKETS} packets of {smallest} bytes")));
        }
        self.data.append(ts, &mut self.sums, &mut self.sizes)?;
        self.sizes.iter_mut().try_for_each(SizeWriter::settle)
    }

    fn push_meta(&mut self, id: TitleId, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        let Some(size) = self.sizes.iter_mut().find(|s| s.packet_bytes() == packet_bytes) else {
            return Err(bad(id, format!("meta-data for packets of {packet_bytes} bytes, a size not begun")));
        };
        if size.push(meta) {
            return size.settle();
        }
        let before = size.last_time();
        Err(bad(id, format!("media time runs back from {before} to {}", meta.time())))
    }
}

fn entry(name: String, file: Finished) -> FileEntry {
    FileEntry { name, bytes: file.bytes, blake3: file.blake3.to_hex().to_string() }
}

fn write_index(workspace: &Workspace, index: &TitleIndex) -> Result<FileEntry, StoreError> {
    let bytes = crate::format::index::encode(index);
    write_new(workspace.disk(), &workspace.path().join(INDEX_FILE), &bytes)?;
    let done = Finished { bytes: bytes.len() as u64, blake3: blake3::hash(&bytes) };
    Ok(entry(INDEX_FILE.to_owned(), done))
}

/// All that is known but the name, which is decided when the title becomes visible.
fn describe(
    id: TitleId,
    finish: FinishTitle,
    data: Finished,
    packet_sizes: Vec<u16>,
) -> Result<TitleInfo, StoreError> {
    let ssrc = u32::from_le_bytes(random()?);
    let timestamp_base = u32::from_le_bytes(random()?);
    Ok(TitleInfo {
        id,
        name: finish.name,
        bytes: data.bytes,
        packets: data.bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) as u32,
        packet_sizes,
        duration: finish.duration,
        mean_rate: finish.mean_rate,
        peak_rate: finish.peak_rate,
        constant_rate: finish.constant_rate,
        streams: finish.streams,
        timeline: Timeline { ssrc, timestamp_base },
        source: finish.source,
        added_unix_s: unix_s(),
        blake3: data.blake3.to_hex().to_string(),
        notes: finish.notes,
    })
}

/// Name, manifest, rename, catalogue: under the store's lock, so that no other process takes the name meanwhile.
fn publish(
    volume: &Inner,
    workspace: Workspace,
    mut info: TitleInfo,
    files: Vec<FileEntry>,
) -> Result<TitleInfo, StoreError> {
    let (dirs, id) = (&volume.dirs, info.id);
    let lock = StoreLock::take(dirs)?;
    info.name = {
        let mut catalogue = volume.catalogue();
        catalogue.refresh()?;
        name::unique(&info.name, |name| catalogue.has_name(name))?
    };
    let block = &volume.superblock;
    let placement = Placement::single(block.volume, block.member, block.geometry, info.packets);
    let manifest = Manifest { title: info, placement, files };
    manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
    write_new(&dirs.disk, &workspace.path().join(MANIFEST_FILE), &manifest.encode())?;
    workspace.unmark(&lock)?;
    sync_dir(&dirs.disk, workspace.path())?;
    rename(&dirs.disk, workspace.path(), &dirs.title(id))?;
    workspace.forget();
    sync_dir(&dirs.disk, &dirs.titles)?;
    sync_dir(&dirs.disk, &dirs.tmp)?;
    // The title is there whatever becomes of the catalogue, which is only a cache and finds it at its next refresh.
    let _ = volume.catalogue().put(&manifest.title);
    Ok(manifest.title)
}
