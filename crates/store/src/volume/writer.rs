//! Writes a title: data, parity, metadata, index, manifest; then makes it visible at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::rendition::RenditionName;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::data::{DataWriter, SUM_STEP_BYTES, SizeWriter, sum_grains};
use super::growing::GrowingMedia;
use super::publish::{self, INGEST, Naming, UnpublishedTitle};
use super::recording::UnitFiles;
use super::state::{Volume, VolumeInner};
use super::stripe_writer::{StripeWriter, StripesDone};
use super::subtitles::NewSubtitles;
use super::workspace::Workspace;
use crate::crcs::CrcMaker;
use crate::dirs::{Dirs, copy_new, random, unix_ms, unix_s, write_new};
use crate::error::StoreError;
use crate::format::derived::Derived;
use crate::format::manifest::{
    self, CRC_FILE, DATA_FILE, FileEntry, INDEX_FILE, Manifest, PARITY_CRC_FILE, PARITY_META_FILE, Placement,
    SUMS_FILE,
};
use crate::format::title_info::{Chapter, ElementaryStream, Origin, SourceIdentity, TitleInfo};
use crate::index::{ClockPiece, TIME_STEP_PACKETS, TitleIndex};
use crate::meta::Finished;
use crate::sums::{GRAIN_BYTES, SumsWriter};

const DEFAULT_SIZE: u16 = DEFAULT_PACKET_BYTES as u16;

/// A title being written. It owns `tmp/<id>` in the store; dropped without [`TitleWriter::commit`], that is removed.
///
/// After any error the title is lost: its directory is removed at once, and every further call fails too.
#[derive(Debug)]
pub struct TitleWriter {
    volume: Arc<VolumeInner>,
    /// Members that the title is written on, by position, and the generation of the member list
    /// they come from.
    pub(super) homes: Vec<Dirs>,
    generation: u64,
    pub(super) workspace: Workspace,
    /// `None` after an error: open files would keep their space on the disk.
    files: Option<Files>,
    subtitles: Vec<NewSubtitles>,
    /// When the title begins on the clock of its source, in ticks.
    source_start: i64,
    chapters: Vec<Chapter>,
    /// For readers of the growing title.
    growing: Option<Arc<GrowingMedia>>,
    began_unix_ms: Option<u64>,
}

#[derive(Debug)]
struct Files {
    /// The title as one file, if there is only one member.
    data: Option<DataWriter>,
    /// Its stripes: units on several members, or parity.
    stripes: Option<StripeWriter>,
    sums: SumsWriter,
    crcs: CrcMaker,
    /// The default size first, the others ascending.
    sizes: Vec<SizeWriter>,
    /// Default-size packets whose metadata has come.
    metas: u64,
}

/// Information that is known only when the whole title has been read.
#[derive(Clone, Debug)]
pub struct FinishTitle {
    /// Wished name; made URL-safe and unique. Of a derived title the parent's counts.
    pub name: String,
    /// The file it was made from.
    pub source: SourceIdentity,
    /// Media time.
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
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// The title that it was made from, and how: decides its name.
    pub derived: Option<Derived>,
    /// Its name among its renditions, if it will have any.
    pub rendition: Option<RenditionName>,
    /// Display name, folder, hash of the source, and the title to replace.
    pub naming: Naming,
}

impl TitleWriter {
    /// Begins a title with range sums, CRCs and metadata for `packet_sizes`: multiples of 188 up to 9024. The default size (1316) is always
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
        let homes = volume.all_members(INGEST)?;
        let (geometry, generation) = (volume.members.geometry(), volume.members.generation());
        let workspace = Workspace::create_on(&homes)?;
        let disk = workspace.disk();
        let data = match homes.len() {
            1 => Some(DataWriter::create(disk, &workspace.path().join(DATA_FILE))?),
            _ => None,
        };
        let paths: Vec<&Path> = workspace.paths().collect();
        let stripes = StripeWriter::create(&geometry, &homes, &paths)?;
        let sums = SumsWriter::create(disk, &workspace.path().join(SUMS_FILE), GRAIN_BYTES)?;
        let crcs = CrcMaker::create(disk, &workspace.path().join(CRC_FILE))?;
        let sizes = sizes
            .into_iter()
            .map(|size| SizeWriter::create(disk, &workspace.path().join(manifest::meta_file(size)), size))
            .collect::<Result<_, _>>()?;
        let files = Some(Files { data, stripes, sums, crcs, sizes, metas: 0 });
        let (subtitles, source_start, chapters) = (Vec::new(), 0, Vec::new());
        Ok(Self {
            volume,
            homes,
            generation,
            workspace,
            files,
            subtitles,
            source_start,
            chapters,
            growing: None,
            began_unix_ms: None,
        })
    }

    /// The title's identity.
    pub fn id(&self) -> TitleId {
        self.workspace.id()
    }

    /// Where it is written, one directory on each member.
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.workspace.paths().map(Path::to_path_buf).collect()
    }

    /// When the title begins on the clock of its source, in ticks ([`TitleInfo::source_start`]).
    pub fn begins_at(&mut self, source_start: i64) {
        self.source_start = source_start;
    }

    /// The first packet comes at this moment, unless one came before.
    pub fn begins_now(&mut self) {
        self.began_unix_ms.get_or_insert_with(unix_ms);
    }

    /// The chapters of the title, by start, ascending.
    pub fn has_chapters(&mut self, chapters: Vec<Chapter>) {
        self.chapters = chapters;
    }

    /// Keeps subtitles with the title. Each label may be there once.
    pub fn add_subtitles(&mut self, track: NewSubtitles) {
        self.subtitles.push(track);
    }

    /// Returns the bytes taken until now; 0 after an error.
    pub fn bytes(&self) -> u64 {
        self.files.as_ref().map_or(0, Files::bytes)
    }

    /// Appends whole TS packets to the data file: copied, summed and hashed in one pass while hot in cache, written in
    /// pieces of 1 MiB. Any number of TS packets at a time will do; a few hundred are best.
    pub fn write_data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.or_give_up(|id, files| files.write_data(id, ts))
    }

    /// Appends the metadata of the next packet of size `packet_bytes`: flags and media time. Its sum is not used: the
    /// writer puts in the sum of the bytes it has written itself, so a stored sum is always that of the stored bytes.
    /// May come before or after the packet's data; media time may not run back.
    pub fn push_meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.or_give_up(|id, files| files.push_meta(id, packet_bytes, meta))
    }

    /// Makes the media durable that has come until now; of a title on several members, that of full stripes.
    ///
    /// # Errors
    /// If a disk refuses.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        let growing = self.growing.clone();
        self.or_give_up(|_, files| {
            let whole = files.data.as_mut().map(DataWriter::flush).transpose()?;
            let stripes = files.stripes.as_mut().map(StripeWriter::flush).transpose()?;
            if let Some(growing) = growing {
                growing.grow(files.sizes[0].grown(whole.or(stripes).unwrap_or(0))?);
            }
            Ok(())
        })
    }

    /// Lets others read the media while it is written.
    pub(super) fn let_grow(&mut self) -> Result<(), StoreError> {
        let units = UnitFiles::open(&self.volume, &self.homes, self.id())?;
        let meta = self.workspace.path().join(manifest::meta_file(DEFAULT_SIZE));
        let members = Arc::clone(&self.volume.members);
        self.growing =
            Some(Arc::new(GrowingMedia::new(self.id(), random_timeline()?, units, &meta, members)?));
        Ok(())
    }

    /// The media, readable while it is written; `None` unless it is a recording.
    pub fn growing(&self) -> Option<&Arc<GrowingMedia>> {
        self.growing.as_ref()
    }

    /// The title as it is now, as far as its readers have got it: properties and index. `finish` describes all that has come.
    ///
    /// # Errors
    /// The parts of its index contradict each other; nothing has come.
    pub fn as_it_grows(&self, finish: FinishTitle) -> Result<(TitleInfo, TitleIndex), StoreError> {
        let id = self.id();
        let files = self.files.as_ref().ok_or_else(|| gave_up(id))?;
        let growing = self.growing.as_ref().ok_or_else(|| bad(id, "it is no recording".to_owned()))?;
        let packets = growing.packets();
        let bytes = u64::from(packets) * DEFAULT_PACKET_BYTES as u64;
        let last = packets.checked_sub(1).ok_or_else(|| bad(id, "nothing has come".to_owned()))?;
        let record = growing.record(last).map_err(StoreError::io("read", self.workspace.path()))?;
        let steps = packets.div_ceil(TIME_STEP_PACKETS) as usize;
        let times = files.sizes[0].times().iter().take(steps).copied().collect();
        let place = ClockPiece { byte: bytes - DEFAULT_PACKET_BYTES as u64, time: record.time() };
        let index = finish.index.clone().cut_at(place).complete(times, bytes, record.time())?;
        let media = Finished { bytes, blake3: blake3::Hash::from_bytes([0; 32]) };
        let sizes = vec![DEFAULT_SIZE];
        let finish = FinishTitle { duration: record.time(), ..finish };
        let info = describe(id, finish, media, sizes, growing.timeline());
        Ok((TitleInfo { blake3: String::new(), began_unix_ms: self.began_unix_ms, ..info }, index))
    }

    /// After an error, closes and removes the files at once, so that half-written media on a full
    /// disk does not obstruct other work until the writer is dropped.
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
    /// Durable means: every file, then the directory, on all members; then a rename on each; the two directories it touches. A
    /// crash before the first rename leaves nothing but directories below `tmp` that the next open sweeps, one behind it
    /// a title that the next open completes.
    pub fn commit(self, finish: FinishTitle) -> Result<TitleInfo, StoreError> {
        let id = self.id();
        let mut titles = publish::publish(vec![self.complete(finish)?])?;
        titles.pop().ok_or_else(|| gave_up(id))
    }

    /// Does the same for a title and its renditions, the title first: all become visible or none
    /// does. Each has its name in [`FinishTitle::rendition`]; the title's name determines the names
    /// that they get.
    ///
    /// The renditions are renamed first, the title last. Renditions that a crash leaves before that
    /// have no parent, and the next open removes them.
    ///
    /// # Errors
    /// As [`TitleWriter::commit`].
    pub fn commit_ladder(ladder: Vec<(Self, FinishTitle)>) -> Result<Vec<TitleInfo>, StoreError> {
        let mut ready: Vec<UnpublishedTitle> = Vec::with_capacity(ladder.len());
        for (writer, mut finish) in ladder {
            if let (Some(best), Some(name)) = (ready.first(), finish.rendition) {
                finish.derived = Some(Derived::as_rendition(best.manifest.title.id, name));
                finish.rendition = None;
            }
            ready.push(writer.complete(finish)?);
        }
        publish::publish(ready)
    }

    /// Writes the rest and makes all of it durable, but for the manifest.
    fn complete(self, finish: FinishTitle) -> Result<UnpublishedTitle, StoreError> {
        let Self { volume, homes, generation, workspace, files, subtitles, source_start, chapters, .. } =
            self;
        let (growing, began_unix_ms) = (self.growing, self.began_unix_ms);
        let id = workspace.id();
        let bad = |what: String| bad(id, what);
        let files = files.ok_or_else(|| gave_up(id))?;
        let last_time = files.sizes[0].last_time();
        if files.bytes() == 0 {
            return Err(bad("no data was written".to_owned()));
        }
        if finish.duration < last_time || finish.duration.0 > PacketMeta::MAX_TICKS {
            return Err(bad(format!("duration is {}; its last packet is at {last_time}", finish.duration)));
        }
        let Written { media, same, own, sizes, times } = files.finish(id)?;
        let mut same = same;
        let index = finish.index.clone().complete(times, media.bytes, finish.duration)?;
        same.push(write_index(&workspace, &index)?);
        let naming = finish.naming.clone();
        let timeline = growing.map_or_else(random_timeline, |growing| Ok(growing.timeline()))?;
        let mut info = describe(id, finish, media, sizes, timeline);
        (info.source_start, info.chapters) = (source_start, chapters);
        info.began_unix_ms = began_unix_ms;
        for track in &subtitles {
            track.write(workspace.disk(), workspace.path(), &mut info, &mut same)?;
        }
        same.sort_by(|a, b| a.name.cmp(&b.name));
        copy_to_others(&workspace, &homes, &same)?;
        let manifest = Manifest { placement: placement(&volume, own, info.bytes)?, title: info, files: same };
        Ok(UnpublishedTitle { volume, homes, generation, workspace, manifest, naming })
    }
}

/// The files of a title when everything is written and durable.
struct Written {
    media: Finished,
    /// Files that all members have; they are on the first.
    same: Vec<FileEntry>,
    /// By position: files that only that member has.
    own: Vec<Vec<FileEntry>>,
    /// Packet sizes, ascending.
    sizes: Vec<u16>,
    /// Media time of default-size packets 0, 256, 512 ...
    times: Vec<MediaTicks>,
}

fn bad(id: TitleId, what: String) -> StoreError {
    StoreError::BadTitle { id, what }
}

fn gave_up(id: TitleId) -> StoreError {
    bad(id, "an earlier step failed".to_owned())
}

impl Files {
    /// Returns the bytes of media taken until now.
    fn bytes(&self) -> u64 {
        let stripes = self.stripes.as_ref().map_or(0, StripeWriter::bytes);
        self.data.as_ref().map_or(stripes, DataWriter::bytes)
    }

    /// Writes the rest and makes all of it durable.
    fn finish(self, id: TitleId) -> Result<Written, StoreError> {
        let Self { data, stripes, sums, crcs, sizes, .. } = self;
        let data = data.map(DataWriter::finish).transpose()?;
        let stripes = stripes.map(|stripes| stripes.finish(id)).transpose()?;
        let media = data.or(stripes.as_ref().and_then(|stripes| stripes.media)).ok_or_else(|| gave_up(id))?;
        let mut same: Vec<FileEntry> =
            data.map(|data| entry(DATA_FILE.to_owned(), data)).into_iter().collect();
        let own =
            stripes.map_or_else(Vec::new, |stripes| add_stripe_files(stripes, data.is_some(), &mut same));
        same.push(entry(SUMS_FILE.to_owned(), sums.finish(id, media.bytes)?));
        same.push(entry(CRC_FILE.to_owned(), crcs.finish(id, media.bytes)?));
        let mut times = Vec::new();
        let mut packet_sizes = Vec::new();
        for size in sizes {
            let packet_bytes = size.packet_bytes();
            let (writer, size_times) = size.end()?.map_err(|unpaired| {
                let (packets, metas) = (unpaired.packets, unpaired.metas);
                let what = format!("{packets} without metadata, {metas} metadata too many");
                bad(id, format!("packets of {packet_bytes} bytes: {what}"))
            })?;
            let done = writer.finish(id, packet_bytes, media.bytes)?;
            same.push(entry(manifest::meta_file(packet_bytes), done));
            packet_sizes.push(packet_bytes);
            if packet_bytes == DEFAULT_SIZE {
                times = size_times;
            }
        }
        packet_sizes.sort_unstable();
        Ok(Written { media, same, own, sizes: packet_sizes, times })
    }

    fn write_data(&mut self, id: TitleId, ts: &[u8]) -> Result<(), StoreError> {
        if !ts.len().is_multiple_of(TS_PACKET_BYTES) {
            return Err(bad(id, format!("{} bytes of data are not whole TS packets of 188", ts.len())));
        }
        let smallest = self.sizes.iter().map(SizeWriter::packet_bytes).min().unwrap_or(DEFAULT_SIZE);
        if (self.bytes() + ts.len() as u64).div_ceil(u64::from(smallest)) > MAX_TITLE_PACKETS {
            return Err(bad(id, format!("more than {MAX_TITLE_PACKETS} packets of {smallest} bytes")));
        }
        // Copied while it is in the first-level cache.
        for ts in ts.chunks(SUM_STEP_BYTES) {
            sum_grains(ts, &mut self.sums, &mut self.sizes)?;
            self.crcs.take(ts)?;
            self.data.as_mut().map_or(Ok(()), |data| data.append(ts))?;
            self.stripes.as_mut().map_or(Ok(()), |stripes| stripes.append(ts))?;
        }
        self.settle()
    }

    /// Writes the records whose two halves have both arrived.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.sizes.iter_mut().try_for_each(SizeWriter::settle)?;
        self.stripes.as_mut().map_or(Ok(()), StripeWriter::settle)
    }

    fn push_meta(&mut self, id: TitleId, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        let Some(size) = self.sizes.iter_mut().find(|s| s.packet_bytes() == packet_bytes) else {
            return Err(bad(id, format!("metadata for packets of {packet_bytes} bytes, a size not begun")));
        };
        if size.push(meta) {
            size.settle()?;
            if packet_bytes == DEFAULT_SIZE
                && let Some(stripes) = &mut self.stripes
            {
                stripes.push_time(self.metas, meta.time());
                self.metas += 1;
                return stripes.settle();
            }
            return Ok(());
        }
        let before = size.last_time();
        Err(bad(id, format!("media time runs back from {before} to {}", meta.time())))
    }
}

fn entry(name: String, file: Finished) -> FileEntry {
    FileEntry { name, bytes: file.bytes, blake3: file.blake3.to_hex().to_string() }
}

/// Adds the files that stripes were written to: those that all members have to `same`; returns those that only one has, by position.
/// Of a title that is one plain file everything is in one list.
pub(super) fn add_stripe_files(
    stripes: StripesDone,
    is_plain: bool,
    same: &mut Vec<FileEntry>,
) -> Vec<Vec<FileEntry>> {
    same.extend(stripes.parity_meta.map(|meta| entry(PARITY_META_FILE.to_owned(), meta)));
    same.extend(stripes.parity_crcs.map(|crcs| entry(PARITY_CRC_FILE.to_owned(), crcs)));
    let named = |(name, done): (&str, Finished)| entry(name.to_owned(), done);
    let mut own: Vec<Vec<FileEntry>> =
        stripes.members.into_iter().map(|files| files.into_iter().map(named).collect()).collect();
    if is_plain {
        same.extend(own.drain(..).flatten());
    }
    own
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
    timeline: Timeline,
) -> TitleInfo {
    TitleInfo {
        id,
        name: finish.name,
        title: finish.naming.title,
        bytes: data.bytes,
        packets: data.bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) as u32,
        packet_sizes,
        duration: finish.duration,
        mean_rate: finish.mean_rate,
        peak_rate: finish.peak_rate,
        constant_rate: finish.constant_rate,
        streams: finish.streams,
        timeline,
        source: finish.source,
        origin: Origin { blake3: finish.naming.source_blake3, ..Origin::default() },
        added_unix_s: unix_s(),
        blake3: data.blake3.to_hex().to_string(),
        notes: finish.notes,
        derived: finish.derived,
        rendition: finish.rendition,
        subtitles: Vec::new(),
        source_start: 0,
        chapters: Vec::new(),
        began_unix_ms: None,
    }
}

fn random_timeline() -> Result<Timeline, StoreError> {
    let ssrc = u32::from_le_bytes(random()?);
    Ok(Timeline { ssrc, timestamp_base: u32::from_le_bytes(random()?) })
}

/// Where its units lie: on all members of the volume.
pub(super) fn placement(
    volume: &VolumeInner,
    own: Vec<Vec<FileEntry>>,
    bytes: u64,
) -> Result<Placement, StoreError> {
    let members = &volume.members;
    let uuids: Vec<_> = (0..members.len()).filter_map(|slot| members.member(slot)).collect();
    let mut placement = Placement::new(members.volume(), &uuids, members.geometry(), bytes);
    for (member, files) in placement.members.iter_mut().zip(own) {
        member.files = files;
    }
    Ok(placement)
}

/// Copies the files that are the same for all members from the first to the others, durably.
pub(super) fn copy_to_others(
    workspace: &Workspace,
    homes: &[Dirs],
    same: &[FileEntry],
) -> Result<(), StoreError> {
    for (home, path) in homes.iter().zip(workspace.paths()).skip(1) {
        for file in same {
            copy_new(&home.disk, &workspace.path().join(&file.name), &path.join(&file.name))?;
        }
    }
    Ok(())
}
