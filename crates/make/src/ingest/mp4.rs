//! Detects picture tracks of MP4 and MOV files that join several pieces (ISO/IEC 14496-12). ffprobe does not report it.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;

use crate::limits::ingest::MAX_MP4_BOXES;

/// The kind of join in a picture track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// An edit list with several entries (section 8.6.6). ffmpeg copies the pictures between a key picture and the start of an
    /// entry too, and flags them as discarded, which a transport stream cannot carry.
    Edits,
    /// Several sample descriptions (section 8.5.2), each with parameter sets of its own. ffmpeg's filters write only the first.
    Descriptions,
}

/// Type and content of a box.
type Mp4Box = ([u8; 4], Range<u64>);

/// Reads boxes, up to a limit for the whole file.
struct Boxes<'a, R> {
    file: &'a mut R,
    left: usize,
}

impl Joined {
    /// Looks through the picture tracks of the file; `None`: each is a single piece, or the file is no MP4 file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn of(file: &mut (impl Read + Seek)) -> io::Result<Option<Self>> {
        let end = file.seek(SeekFrom::End(0))?;
        let mut boxes = Boxes { file, left: MAX_MP4_BOXES };
        let Some(movie) = boxes.find(0..end, &[*b"moov"])? else { return Ok(None) };
        for (kind, track) in boxes.within(movie)? {
            if kind != *b"trak" || !boxes.has_pictures(&track)? {
                continue;
            }
            if boxes.edits(&track)? > 1 {
                return Ok(Some(Self::Edits));
            }
            if boxes.descriptions(&track)? > 1 {
                return Ok(Some(Self::Descriptions));
            }
        }
        Ok(None)
    }
}

impl<R: Read + Seek> Boxes<'_, R> {
    /// The boxes of a range, up to the first that is damaged.
    fn within(&mut self, range: Range<u64>) -> io::Result<Vec<Mp4Box>> {
        let (mut found, mut at) = (Vec::new(), range.start);
        while self.left > 0
            && let Some([a, b, c, d, kind @ ..]) = self.bytes::<8>(&range, at)?
        {
            self.left -= 1;
            let (header, bytes) = match u32::from_be_bytes([a, b, c, d]) {
                0 => (8, range.end - at),
                1 => match self.bytes::<8>(&range, at + 8)? {
                    Some(bytes) => (16, u64::from_be_bytes(bytes)),
                    None => break,
                },
                bytes => (8, u64::from(bytes)),
            };
            if bytes < header || bytes > range.end - at {
                break;
            }
            found.push((kind, at + header..at + bytes));
            at += bytes;
        }
        Ok(found)
    }

    /// The content of the first box at the end of a path of box types.
    fn find(&mut self, mut range: Range<u64>, path: &[[u8; 4]]) -> io::Result<Option<Range<u64>>> {
        for kind in path {
            match self.within(range)?.into_iter().find(|found| found.0 == *kind) {
                Some((_, content)) => range = content,
                None => return Ok(None),
            }
        }
        Ok(Some(range))
    }

    fn has_pictures(&mut self, track: &Range<u64>) -> io::Result<bool> {
        let Some(handler) = self.find(track.clone(), &[*b"mdia", *b"hdlr"])? else { return Ok(false) };
        Ok(self.bytes(&handler, handler.start + 8)? == Some(*b"vide"))
    }

    /// Number of entries of the edit list without the empty ones, which only delay a track.
    fn edits(&mut self, track: &Range<u64>) -> io::Result<usize> {
        let Some(list) = self.find(track.clone(), &[*b"edts", *b"elst"])? else { return Ok(0) };
        let Some([version, _, _, _, count @ ..]) = self.bytes::<8>(&list, list.start)? else { return Ok(0) };
        // Version 1 has a duration and a media time of 64 bits instead of 32.
        let (entry_bytes, time_at) = if version == 1 { (20, 8) } else { (12, 4) };
        let mut shown = 0;
        for entry in 0..u64::from(u32::from_be_bytes(count)).min(MAX_MP4_BOXES as u64) {
            let Some(time) = self.bytes::<4>(&list, list.start + 8 + entry * entry_bytes + time_at)? else {
                break;
            };
            // The media time of an empty entry is -1.
            shown += usize::from(time != [0xff; 4]);
        }
        Ok(shown)
    }

    fn descriptions(&mut self, track: &Range<u64>) -> io::Result<u32> {
        let path = [*b"mdia", *b"minf", *b"stbl", *b"stsd"];
        let Some(table) = self.find(track.clone(), &path)? else { return Ok(0) };
        Ok(self.bytes(&table, table.start + 4)?.map_or(0, u32::from_be_bytes))
    }

    /// `N` bytes at `at`; `None` if they are not in the range.
    fn bytes<const N: usize>(&mut self, range: &Range<u64>, at: u64) -> io::Result<Option<[u8; N]>> {
        if at.checked_add(N as u64).is_none_or(|end| end > range.end) {
            return Ok(None);
        }
        let mut bytes = [0; N];
        self.file.seek(SeekFrom::Start(at))?;
        match self.file.read_exact(&mut bytes) {
            Ok(()) => Ok(Some(bytes)),
            // It became shorter meanwhile.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn boxed(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let bytes = u32::try_from(content.len() + 8).unwrap().to_be_bytes();
        [&bytes[..], kind, &content].concat()
    }

    fn elst(version: u8, times: &[i32]) -> Vec<u8> {
        let mut list = vec![version, 0, 0, 0];
        list.extend(u32::try_from(times.len()).unwrap().to_be_bytes());
        for &time in times {
            if version == 1 {
                list.extend(1000u64.to_be_bytes());
                list.extend(i64::from(time).to_be_bytes());
            } else {
                list.extend(1000u32.to_be_bytes());
                list.extend(time.to_be_bytes());
            }
            list.extend([0, 1, 0, 0]);
        }
        boxed(b"elst", &[&list])
    }

    fn track(handler: &[u8; 4], edits: &[u8], descriptions: u32) -> Vec<u8> {
        let hdlr = boxed(b"hdlr", &[&[0; 8], handler, &[0; 12]]);
        let stsd = boxed(b"stsd", &[&[0; 4], &descriptions.to_be_bytes()]);
        let minf = boxed(b"minf", &[&boxed(b"stbl", &[&stsd])]);
        boxed(
            b"trak",
            &[&boxed(b"tkhd", &[&[0; 84]]), &boxed(b"edts", &[edits]), &boxed(b"mdia", &[&hdlr, &minf])],
        )
    }

    fn file(tracks: &[Vec<u8>]) -> Vec<u8> {
        let tracks: Vec<&[u8]> = tracks.iter().map(Vec::as_slice).collect();
        // The media data may come first, with a length of 64 bits.
        let mdat = [&1u32.to_be_bytes()[..], b"mdat", &20u64.to_be_bytes(), &[7; 4]].concat();
        [boxed(b"ftyp", &[b"isom"]), mdat, boxed(b"moov", &tracks)].concat()
    }

    fn of(tracks: &[Vec<u8>]) -> Option<Joined> {
        Joined::of(&mut Cursor::new(file(tracks))).unwrap()
    }

    #[test]
    fn edit_list_with_several_shown_entries_is_joined() {
        for version in [0, 1] {
            assert_eq!(of(&[track(b"vide", &elst(version, &[-1, 1024]), 1)]), None);
            assert_eq!(of(&[track(b"soun", &elst(version, &[0, 1024]), 1)]), None);
            let tracks = [track(b"soun", &[], 1), track(b"vide", &elst(version, &[-1, 0, 1024]), 1)];
            assert_eq!(of(&tracks), Some(Joined::Edits));
        }
    }

    #[test]
    fn several_sample_descriptions_of_pictures_are_joined() {
        assert_eq!(of(&[track(b"vide", &[], 2)]), Some(Joined::Descriptions));
        assert_eq!(of(&[track(b"vide", &[], 1), track(b"soun", &[], 2)]), None);
    }

    #[test]
    fn number_of_boxes_is_limited() {
        let many = boxed(b"free", &[]).repeat(MAX_MP4_BOXES);
        let movie = boxed(b"moov", &[&track(b"vide", &[], 2)]);
        assert_eq!(Joined::of(&mut Cursor::new([many, movie].concat())).unwrap(), None);
    }

    #[test]
    fn damaged_file_is_read_without_error() {
        let whole = file(&[track(b"soun", &[], 1), track(b"vide", &elst(1, &[-1, 0, 1024]), 2)]);
        bolero::check!().with_type::<(Vec<(u16, [u8; 4])>, u16)>().for_each(|(damage, bytes)| {
            let mut file = whole.clone();
            for &(at, bytes) in damage {
                let at = usize::from(at) % (file.len() - 4);
                file[at..at + 4].copy_from_slice(&bytes);
            }
            file.truncate(usize::from(*bytes));
            Joined::of(&mut Cursor::new(file)).unwrap();
        });
    }
}
