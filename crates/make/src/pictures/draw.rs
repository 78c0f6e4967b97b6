//! JPEGs of pictures, by the ffmpeg program.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use millrace_core::ids::TitleId;
use millrace_core::time::MEDIA_HZ;
use millrace_core::units::ByteLen;
use millrace_media::ts_write::{PacketWriter, Pes, StreamEntry, Tables};
use millrace_store::StoreError;
use millrace_store::limits::pictures::{MAX_JPEG_BYTES, SHEET_COLUMNS};
use millrace_store::pictures::{PictureFiles, TILE};

use super::PicturesError;
use super::stills::Still;
use crate::ingest::Sandbox;
use crate::ingest::bounds::ProcessBounds;
use crate::ingest::child::{ChildStop, HelperProgram};
use crate::ingest::plan::INPUT;
use crate::ingest::sandbox::HelperFiles;
use crate::limits::pictures::{MAX_WORK_BYTES, PICTURES_MEMORY, PICTURES_SILENCE, PICTURES_TIME};
use crate::trick::alone::as_first;

/// The poster: two to a row of a telephone, at twice its pixels.
const POSTER: [u32; 2] = [640, 360];

const TABLE_PID: u16 = 0x100;
const PICTURES_PID: u16 = 0x101;

/// Who draws.
pub(super) struct Artist<'a> {
    pub(super) ffmpeg: &'a Path,
    pub(super) sandbox: Sandbox,
    pub(super) files: &'a PictureFiles,
    pub(super) id: TitleId,
    pub(super) cancel: &'a AtomicBool,
}

impl Artist<'_> {
    /// An empty film, for pictures of streams of this type. There is one at a time.
    pub(super) fn film(&self, kind: u8) -> Result<SlideshowFile, PicturesError> {
        let path = self.files.work_file(self.id).map_err(PicturesError::NotKept)?;
        let file = File::create(&path)
            .map_err(|error| PicturesError::NotKept(StoreError::write("create", &path, 0, 0, error)))?;
        let entry = StreamEntry { pid: PICTURES_PID, stream_type: kind, descriptors: Vec::new() };
        let tables = Tables::new(1, TABLE_PID, 0, PICTURES_PID, &[entry]);
        Ok(SlideshowFile {
            path,
            file,
            kind,
            tables,
            packets: PacketWriter::default(),
            bytes: 0,
            second: 0,
            last: Vec::new(),
        })
    }

    /// Draws all `pictures` pictures of a film, small, in rows.
    pub(super) fn sheet(&self, mut film: SlideshowFile, pictures: usize) -> Result<Vec<u8>, PicturesError> {
        film.end()?;
        let rows = u32::try_from(pictures).unwrap_or(u32::MAX).div_ceil(SHEET_COLUMNS).max(1);
        // One of each second; where one cannot be decoded, that before it again.
        let filter = format!("fps=1:start_time=0:round=near,{},tile={SHEET_COLUMNS}x{rows}", fit(TILE));
        self.draw(&film, &filter)
    }

    /// The first, large.
    pub(super) fn poster(&self, film: SlideshowFile) -> Result<Vec<u8>, PicturesError> {
        self.draw(&film, &fit(POSTER))
    }

    fn draw(&self, film: &SlideshowFile, filter: &str) -> Result<Vec<u8>, PicturesError> {
        let mut command = Command::new(self.ffmpeg);
        let input = File::open(&film.path)
            .map_err(StoreError::io("open", &film.path))
            .map_err(PicturesError::NotKept)?;
        command.args(["-v", "error", "-nostdin", "-threads", "1"]);
        command.args([
            "-protocol_whitelist",
            "file,pipe",
            "-format_whitelist",
            "mpegts",
            "-f",
            "mpegts",
            "-i",
        ]);
        command.arg(INPUT).args(["-map", "0:v:0", "-vf", filter, "-frames:v", "1", "-q:v", "5"]);
        command.args(["-threads", "1", "-c:v", "mjpeg", "-f", "image2pipe", "pipe:1"]);
        run(command, &input, self.sandbox, self.cancel)
    }
}

/// Filters that make a picture of any shape one of this size, with black beside it where that is needed.
fn fit([width, height]: [u32; 2]) -> String {
    let (half_width, half_height) = (width / 2, height / 2);
    format!(
        "scale=w='max(2,if(gt(dar,{width}/{height}),{width},2*trunc({half_height}*dar)))'\
         :h='max(2,if(gt(dar,{width}/{height}),2*trunc({half_width}/dar),{height}))',\
         setsar=1,pad={width}:{height}:(ow-iw)/2:(oh-ih)/2,format=yuvj420p"
    )
}

/// A transport stream that shows each of its pictures for a second: a file that goes when it is not needed any more.
pub(super) struct SlideshowFile {
    path: PathBuf,
    file: File,
    kind: u8,
    tables: Tables,
    packets: PacketWriter,
    bytes: usize,
    second: u64,
    last: Vec<u8>,
}

impl SlideshowFile {
    pub(super) fn kind(&self) -> u8 {
        self.kind
    }

    /// Puts a picture at its end; `false`: there is no room for it.
    pub(super) fn push(&mut self, still: &Still) -> Result<bool, PicturesError> {
        if self.bytes + still.bytes.len() > MAX_WORK_BYTES {
            return Ok(false);
        }
        self.last.clone_from(&still.bytes);
        self.write(&still.bytes)?;
        Ok(true)
    }

    /// Shows the last one once more: ffmpeg takes a picture behind which nothing comes for one that is over at once.
    fn end(&mut self) -> Result<(), PicturesError> {
        let last = std::mem::take(&mut self.last);
        self.write(&last)
    }

    /// Writes a picture. Pictures come from the whole title, so their original order counts are
    /// removed: here they would change the order.
    fn write(&mut self, picture: &[u8]) -> Result<(), PicturesError> {
        let picture = &as_first(self.kind, picture, self.second as u32);
        let begin = self.second * MEDIA_HZ;
        self.second += 1;
        self.packets.tables(&self.tables);
        self.packets.clock(PICTURES_PID, begin);
        let mut pes = Pes::picture(PICTURES_PID, begin + MEDIA_HZ, begin + MEDIA_HZ, picture.len(), true);
        while pes.packets() > 0 {
            self.packets.pes(&mut pes, picture);
        }
        let count = self.packets.out.len();
        let written = self.file.write_all(&self.packets.out);
        let failed = |error| StoreError::write("write", &self.path, self.bytes as u64, count as u64, error);
        written.map_err(failed).map_err(PicturesError::NotKept)?;
        self.bytes += count;
        self.packets.out.clear();
        Ok(())
    }
}

impl Drop for SlideshowFile {
    fn drop(&mut self) {
        // If it stays, the next start sweeps it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs it within its bounds. Returns its output.
fn run(
    command: Command,
    input: &File,
    sandbox: Sandbox,
    cancel: &AtomicBool,
) -> Result<Vec<u8>, PicturesError> {
    let bounds = ProcessBounds {
        memory: ByteLen(PICTURES_MEMORY),
        processor: PICTURES_TIME,
        silence: PICTURES_SILENCE,
        sandbox,
    };
    run_within(command, Some(input), cancel, bounds)
}

fn run_within(
    command: Command,
    input: Option<&File>,
    cancel: &AtomicBool,
    bounds: ProcessBounds,
) -> Result<Vec<u8>, PicturesError> {
    let mut child = HelperProgram::start(command, HelperFiles { input, ..HelperFiles::default() }, bounds)
        .map_err(stop)?;
    let (mut all, mut room) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match child.read(&mut room, cancel, &mut || {}).map_err(stop)? {
            0 => break,
            count => all.extend_from_slice(&room[..count]),
        }
        if all.len() > MAX_JPEG_BYTES {
            return Err(PicturesError::Ffmpeg(format!(
                "a picture has more than {}",
                ByteLen(MAX_JPEG_BYTES as u64)
            )));
        }
    }
    child.finish(cancel, &mut || {}).map_err(stop)?;
    // The marks of a JPEG's beginning and end (ITU-T T.81 section B.1.1.3).
    if all.starts_with(&[0xff, 0xd8]) && all.ends_with(&[0xff, 0xd9]) {
        return Ok(all);
    }
    Err(PicturesError::Ffmpeg("none of them can be decoded".to_owned()))
}

fn stop(stop: ChildStop) -> PicturesError {
    match stop {
        ChildStop::Cancelled => PicturesError::Cancelled,
        ChildStop::Start(error) => PicturesError::NoFfmpeg(error),
        ChildStop::Read(error) => PicturesError::Ffmpeg(error.to_string()),
        ChildStop::Exceeded(exceeded) => PicturesError::Ffmpeg(exceeded.to_string()),
        ChildStop::Failed { status, said } => PicturesError::Ffmpeg(format!("{status}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn bounds(silence: Duration) -> ProcessBounds {
        ProcessBounds {
            memory: ByteLen(1 << 30),
            processor: Duration::from_secs(5),
            silence,
            sandbox: Sandbox::Off,
        }
    }

    #[test]
    fn run_within_of_hung_flooding_or_failing_child_returns_error() {
        let no = AtomicBool::new(false);
        let begun = Instant::now();
        let quick = bounds(Duration::from_millis(200));
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("pid");
        let hangs = format!("echo $$ > {}; exec sleep 600", mark.display());
        assert!(matches!(run_within(sh(&hangs), None, &no, quick.clone()), Err(PicturesError::Ffmpeg(_))));
        let pid = std::fs::read_to_string(mark).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "it still runs");
        let floods =
            run_within(sh("exec cat /dev/zero"), None, &no, bounds(Duration::from_secs(60))).unwrap_err();
        assert!(floods.to_string().contains("more than"), "{floods}");
        for script in ["echo no picture", "exit 3", ":"] {
            assert!(
                matches!(
                    run_within(sh(script), None, &no, bounds(Duration::from_secs(60))),
                    Err(PicturesError::Ffmpeg(_))
                ),
                "{script}"
            );
        }
        assert!(matches!(
            run_within(sh("sleep 600"), None, &AtomicBool::new(true), quick.clone()),
            Err(PicturesError::Cancelled)
        ));
        assert!(matches!(
            run_within(Command::new("/no/such/program"), None, &no, quick.clone()),
            Err(PicturesError::NoFfmpeg(_))
        ));
        let jpeg = run_within(sh(r"printf '\377\330x\377\331'"), None, &no, bounds(Duration::from_secs(60)));
        assert_eq!(jpeg.unwrap(), [0xff, 0xd8, b'x', 0xff, 0xd9]);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
